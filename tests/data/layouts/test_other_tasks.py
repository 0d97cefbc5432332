"""A folder that does not exist, or has data for other models: an error at once, with the configs to use."""
import pytest

from helpers import exports, exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_before_training
from xcit_dense.data.datasets import check_data
from xcit_dense.errors import DataError


@pytest.mark.parametrize('make, config, words', (
    (exports.yolo, TINY_SEG_CONFIG, 'YOLO labels in data.yaml.*fasterrcnn_xcit_s12_p16_custom'),
    (exports.roboflow, TINY_SEG_CONFIG, "COCO annotations in .*_annotations.coco.json.*maskrcnn_xcit_s12_p16_custom"),
    (exports_segmentation.camvid, TINY_CONFIG, 'label maps in .*annot.*semfpn_xcit_s12_p16_custom'),
    (exports_segmentation.label_studio, TINY_CONFIG, 'Label Studio.*semfpn_xcit_s12_p16_custom')))
def test_data_for_other_models(make, config, words, tmp_path):
    with pytest.raises(DataError, match=words):
        load_config(config, data_root=make(tmp_path / 'data'), work_dir=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_class_folders_for_a_dense_model(config, tmp_path):
    for name in ('disc', 'square'):
        (tmp_path / 'data/train' / name).mkdir(parents=True)
        (tmp_path / 'data/train' / name / 'a.jpg').touch()
    with pytest.raises(DataError, match='a folder of images for each class in train .use xcit_s12_p16_custom'):
        load_config(config, data_root=tmp_path / 'data', work_dir=tmp_path / 'run')


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_no_folder(config, tmp_path):
    (tmp_path / 'file').touch()
    for name, words in (('absent', 'does not exist'), ('file', 'is not a folder')):
        cfg = load_config(config, data_root=tmp_path / name, work_dir=tmp_path / 'run')
        with pytest.raises(DataError, match=f'{name} {words}: set --data-root'):
            check_before_training(cfg)
        with pytest.raises(DataError, match=f'there is no folder .*{name}: set --data-root'):
            check_data(cfg)
