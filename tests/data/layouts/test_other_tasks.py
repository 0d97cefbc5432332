"""A folder that is not there, or that has data for other models: said at once, with the configs that take it."""
import pytest

from helpers import exports, exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_before_training
from xcit_dense.errors import DataError


@pytest.mark.parametrize('make, config, words', (
    (exports.yolo, TINY_SEG_CONFIG, 'labels of YOLO, data.yaml.*fasterrcnn_xcit_s12_p16_custom'),
    (exports.roboflow, TINY_SEG_CONFIG, "COCO's form, .*_annotations.coco.json.*maskrcnn_xcit_s12_p16_custom"),
    (exports_segmentation.camvid, TINY_CONFIG, 'label maps in .*annot.*semfpn_xcit_s12_p16_custom'),
    (exports_segmentation.label_studio, TINY_CONFIG, 'Label Studio.*semfpn_xcit_s12_p16_custom')))
def test_data_for_other_models(make, config, words, tmp_path):
    with pytest.raises(DataError, match=words):
        load_config(config, data_root=make(tmp_path / 'data'), work_dir=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_no_folder(config, tmp_path):
    (tmp_path / 'file').touch()
    for name, words in (('absent', 'is not there'), ('file', 'is no folder')):
        cfg = load_config(config, data_root=tmp_path / name, work_dir=tmp_path / 'run')
        with pytest.raises(DataError, match=f'{name} {words}: give --data-root'):
            check_before_training(cfg)
