"""Label maps as the check and the classes read them; labels without a class, through data, loss, padding and metric."""
import numpy as np
import pytest
from mmengine.config import Config
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from helpers import exports_segmentation as exports
from helpers.exports_segmentation import found
from helpers.faulty_data import coco, folders, kinds_of, only, to_hdr
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.annotations import DataOptions
from xcit_dense.config.loading import load_config
from xcit_dense.data import label_maps
from xcit_dense.data.check.check import check_before_training, check_data_set, check_data_sets
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.label_maps import LabelMaps, void_names
from xcit_dense.errors import ConfigError, DataError


class Tens(LoadAnnotations):
    """A user's step: the labels are the tens in the files."""


def test_label_maps_that_a_step_of_the_user_reads_are_not_judged_and_need_names(root):
    for path in (root / 'annotations/training').iterdir():
        Image.fromarray(np.asarray(Image.open(path)) * 10).save(path)
    own = folders(root, pipeline=[dict(type='LoadImageFromFile'), dict(type=Tens)])
    assert check_data_set(own).findings == [] and len(classes_of_data(own)['classes']) == 6
    assert check_data_set(dict(own, pipeline=own['pipeline'][:1])).findings == []  # nothing reads them
    standard = dict(own, pipeline=[dict(type='mmseg.LoadImageFromFile'), dict(type='mmseg.LoadAnnotations')])
    only(check_data_set(standard), 'map-labels')
    with pytest.raises(DataError, match='has the label'):
        classes_of_data(standard)
    (root / 'classes.txt').unlink()
    with pytest.raises(DataError, match='read by a step of your own, .*classes.txt'):
        classes_of_data(own)


def test_without_the_label_zero_classes_begin_at_one(tmp_path, capfd):
    for folder in ('images/training', 'annotations/training'):
        (tmp_path / folder).mkdir(parents=True)
    Image.new('RGB', (8, 6), (1, 2, 3)).save(tmp_path / 'images/training/a.png')
    labels, names = np.arange(48, dtype=np.uint8).reshape(6, 8) % 4, ('1', '2', '3')
    Image.fromarray(labels).save(tmp_path / 'annotations/training/a.png')
    dataset = folders(tmp_path, reduce_zero_label=True, metainfo={})
    for listed in (False, True):
        report = check_data_set(dataset)
        assert report.findings == [] and [name for name, *_ in report.classes][:3] == list(names)
        capfd.readouterr()
        assert classes_of_data(dataset)['classes'] == names
        assert ('(void, border), --ignore-label LABEL' in ''.join(capfd.readouterr())) != listed
        (tmp_path / 'classes.txt').write_text('\n'.join(names))
    Image.fromarray(labels + 1).save(tmp_path / 'annotations/training/a.png')
    assert kinds_of(check_data_set(dataset)) == {'map-labels'}
    with pytest.raises(DataError, match='has the label 4, but the 3 classes have the labels 1 to 3'):
        classes_of_data(dataset)


def test_what_is_ignored(root):
    """By the data set's own label, and by a label of the heads, which they see after the pipeline."""
    for zero in (False, True):
        ignored = LabelMaps(folders(root, reduce_zero_label=zero, ignore_index=200), [77]).ignored
        assert ignored == ({200, 255, 78, 0} if zero else {200, 255, 77})


def test_images_that_opencv_reads_and_pillow_does_not(root):
    """In an annotation file and in folders."""
    to_hdr(root / 'train2017', root)
    to_hdr(root / 'images/training')
    steps = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations', with_mask=True)]
    dataset = coco(root, pipeline=steps)
    assert check_data_set(dataset).findings == []
    (root / 'train2017/000000000003.hdr').write_bytes(b'bad')
    only(check_data_set(dataset), 'image-unreadable')
    folder = folders(root, type='BaseSegDataset', img_suffix='.hdr', pipeline=[steps[0], dict(type='LoadAnnotations')])
    only(check_data_set(folder), 'image-left-out')  # the others


def config(root, *ignored, options=None, name=TINY_SEG_CONFIG, **more):
    return load_config(name, data_root=str(root), data=DataOptions(ignore_label=ignored, **more), cfg_options=options,
                       work_dir=root.parent / 'run', pretrained=False)


@pytest.fixture
def camvid(tmp_path):
    return exports.camvid(tmp_path / 'data')


@pytest.mark.parametrize('zero, listed, ignored, classes', (
    (False, exports.CAMVID[:4], (4, ), ('sky', 'road', 'pole', 'car')),  # the list does without the void
    (False, exports.CAMVID, (0, ), ('road', 'pole', 'car', 'void')), (False, None, (2, ), '0134'),
    (True, exports.CAMVID[1:], (4, 2), ('road', 'car'))))  # 0 is unlabelled
def test_ignored_labels_are_255_after_loading_and_others_move_up(tmp_path, zero, listed, ignored, classes):
    cfg = config(exports.camvid(tmp_path / 'data', listed=listed), *ignored, options={
        f'{part}_dataloader.dataset.reduce_zero_label': zero for part in ('train', 'val', 'test')})
    check_before_training(cfg)
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple(classes)
    assert cfg.model.decode_head.num_classes == len(classes)
    for part, first in (('train', 0), ('val', 100)):
        labels = exports.scene(first)[1]
        kept = [label for label in range(zero, 5) if label not in ignored]
        expected = np.select([labels == label for label in kept], range(len(kept)), 255)
        assert (next(iter(found(cfg, part).values())) == expected).all()
    amounts = {name: pixels for name, _, pixels in check_data_sets(cfg)['train_dataloader'].classes}
    scenes = [exports.scene(number)[1] for number in range(4)]
    for place, label in enumerate(kept):
        assert amounts[classes[place]] == sum((labels == label).sum() for labels in scenes)
    assert amounts['(ignored)'] == sum(np.isin(labels, kept, invert=True).sum() for labels in scenes)


def test_loss_padding_and_metric_follow(camvid, demo_data):
    """Also if the config had other numbers before."""
    kinds = {f'{part}_dataloader.dataset.type': 'ImageFolderDataset' for part in ('train', 'val', 'test')}
    cfg = config(camvid, 4, name='upernet_xcit_n12_p16_ade20k', options={
        **kinds, 'classes_from_data': True, 'model.decode_head.ignore_index': 4,
        'model.auxiliary_head.ignore_index': 3, 'model.auxiliary_head.loss_decode.ignore_index': None,
        'model.data_preprocessor.seg_pad_val': 4, 'val_evaluator.ignore_index': 4})
    assert cfg.model.decode_head.ignore_index == cfg.model.auxiliary_head.ignore_index == 255
    assert cfg.model.auxiliary_head.loss_decode.ignore_index is None  # of a binary loss
    assert cfg.model.data_preprocessor.seg_pad_val == cfg.val_evaluator.ignore_index == 255
    with pytest.raises(ConfigError, match="'ADE20KDataset' cannot ignore labels. Use ImageFolderDataset"):
        config(demo_data, 3, name='semfpn_xcit_n12_p16_ade20k')
    with pytest.raises(ConfigError, match='0 to 255, got 256'):
        config(camvid, 300, 256)
    # padding is what the heads leave out: the loss fails at 255
    cfg, plain = config(camvid, options={'model.decode_head.ignore_index': 4}), config(camvid)
    for each in (cfg, plain):
        take_classes(each, on_findings='warn')
    two = [dict(num_classes=2, ignore_index=label) for label in (4, 3)]
    heads = Config(dict(model=dict(decode_head=two, data_preprocessor=dict(seg_pad_val=255))))
    label_maps.pad_as_ignored(heads)  # of heads that differ, neither is right
    assert heads.model.data_preprocessor.seg_pad_val == 255
    assert cfg.model.data_preprocessor.seg_pad_val == 4 and plain.model.data_preprocessor.seg_pad_val == 255


def test_a_label_without_a_class_is_told_with_what_helps(camvid):
    (camvid / 'classes.txt').write_text('\n'.join(exports.CAMVID[:3]))
    pixels = sum((exports.scene(number)[1] == 4).sum() for number in range(4))
    with pytest.raises(DataError) as stopped:
        check_before_training(config(camvid))
    said = str(stopped.value)
    assert f'4 ({pixels:,} pixels in 4 images)' in said and '--ignore-label 3 4.' in said and 'classes.txt' in said
    assert said.count('has labels without a class') == 2 and '4 times, for example' in said  # training and validation
    words = rf'the label 4, but .* 4 \({pixels:,} pixels in 4 images\)\..*--ignore-label 3 4\..*classes\.txt'
    with pytest.raises(DataError, match=words):
        take_classes(config(camvid))
    check_before_training(cfg := config(camvid, 3, 4, 77, 255))
    take_classes(cfg)
    assert cfg.model.decode_head.num_classes == 3


def test_a_name_that_stands_for_no_class_is_a_hint(camvid):
    names = ('Unlabelled', 'avoid', 'background-unknown', 'background', 'dont_care')
    assert void_names(names) == [(place, names[place]) for place in (0, 2, 4)]
    for name, is_void in (('unlabeled', True), ('other', False)):
        (camvid / 'classes.txt').write_text('\n'.join((*exports.CAMVID[:4], name)))
        cfg = config(camvid)
        findings = check_data_set(cfg.train_dataloader.dataset, from_data=True).findings
        assert [(finding.kind, finding.severity) for finding in findings] == [('class-void', 'warning')] * is_void
        assert all('--ignore-label 4' in finding.sentence for finding in findings)
        check_before_training(cfg)  # and no more than a hint
        assert check_data_set(config(camvid, 4).train_dataloader.dataset, from_data=True).findings == []
