"""Labels without a class: in the middle of the others or behind them, through data, loss, padding, metric and check."""
import numpy as np
import pytest
from annotations import exports_segmentation as exports
from mmengine.registry import DATASETS, init_default_scope

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.annotations import DataOptions
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_before_training, check_data_set, check_data_sets
from xcit_dense.data.classes import take_classes
from xcit_dense.data.label_maps import label_map, labels_in_files, labels_of_classes, void_names
from xcit_dense.errors import ConfigError, DataError


def config(root, *ignored, options=None, name=TINY_SEG_CONFIG, **more):
    return load_config(name, data_root=str(root), data=DataOptions(ignore_label=ignored, **more), cfg_options=options,
                       work_dir=root.parent / 'run', pretrained=False)


def built(cfg, part='train'):
    init_default_scope('mmseg')
    dataset = cfg[f'{part}_dataloader'].dataset
    steps = [step for step in dataset.pipeline if step['type'] in ('LoadImageFromFile', 'LoadAnnotations')]
    return DATASETS.build(dict(dataset, pipeline=steps))


@pytest.fixture
def camvid(tmp_path):
    return exports.camvid(tmp_path / 'data')


def test_classes_and_labels_are_each_others():
    for first, ignored, count, labels in (
            (0, {11}, 3, [0, 1, 2]), (0, {1}, 3, [0, 2, 3]), (0, {0, 2}, 3, [1, 3, 4]), (1, {2}, 3, [1, 3, 4]),
            (1, {0, 255}, 2, [1, 2]), (0, set(), 2, [0, 1])):
        assert labels_of_classes(first, ignored, count) == labels
        changed = label_map(first, ignored, count)
        assert labels_in_files(first, changed, count) == tuple(labels)
        read = {label: (changed or {}).get(label - first, label - first) for label in labels}
        assert list(read.values()) == list(range(count))
        assert all(changed[label - first] == 255 for label in ignored if first <= label < 255)


@pytest.mark.parametrize('zero, listed, ignored, classes', (
    (False, exports.CAMVID[:4], (4, ), ('sky', 'road', 'pole', 'car')),  # the list does without the void
    (False, exports.CAMVID, (0, ), ('road', 'pole', 'car', 'void')), (False, None, (2, ), '0134'),
    (True, exports.CAMVID[1:], (4, 2), ('road', 'car'))))  # 0 is unlabelled
def test_ignored_labels_are_255_after_loading_and_others_move_up(tmp_path, zero, listed, ignored, classes):
    root = exports.camvid(tmp_path / 'data', listed=listed)
    cfg = config(root, *ignored, options={
        f'{part}_dataloader.dataset.reduce_zero_label': zero for part in ('train', 'val', 'test')})
    check_before_training(cfg)
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple(classes)
    assert cfg.model.decode_head.num_classes == len(classes)
    for part, first in (('train', 0), ('val', 100)):
        dataset = built(cfg, part)
        labels = exports.scene(first)[1]
        kept = [label for label in range(zero, 5) if label not in ignored]
        expected = np.full_like(labels, 255)
        for place, label in enumerate(kept):
            expected[labels == label] = place
        assert (dataset[0]['gt_seg_map'] == expected).all()
    report = check_data_sets(cfg)['train_dataloader']
    amounts = {name: pixels for name, _, pixels in report.classes}
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


def test_padding_is_what_the_heads_leave_out(camvid):
    """The loss fails at 255."""
    cfg, plain = config(camvid, options={'model.decode_head.ignore_index': 4}), config(camvid)
    for each in (cfg, plain):
        take_classes(each, on_findings='warn')
    assert cfg.model.data_preprocessor.seg_pad_val == 4 and plain.model.data_preprocessor.seg_pad_val == 255


def test_a_label_without_a_class_is_told_with_what_helps(camvid):
    (camvid / 'classes.txt').write_text('\n'.join(exports.CAMVID[:3]))
    scenes = [exports.scene(number)[1] for number in range(4)]
    pixels = sum((labels == 4).sum() for labels in scenes)
    with pytest.raises(DataError) as stopped:
        check_before_training(config(camvid))
    said = str(stopped.value)
    assert f'4 ({pixels:,} pixels in 4 images)' in said and '--ignore-label 3 4.' in said and 'classes.txt' in said
    assert said.count('has labels without a class') == 2 and '4 times, for example' in said  # training and validation
    with pytest.raises(DataError, match=r'--ignore-label 3 4\..*classes\.txt'):
        take_classes(config(camvid))
    check_before_training(cfg := config(camvid, 3, 4, 77))
    take_classes(cfg)
    assert cfg.model.decode_head.num_classes == 3


def test_a_name_that_stands_for_no_class_is_a_hint(camvid):
    for name, is_void in (
            ('Unlabelled', True), ('background-unknown', True), ('dont_care', True), ('background', False),
            ('avoid', False)):
        assert bool(void_names([name])) == is_void, name
    for name, is_void in (('unlabeled', True), ('other', False)):
        (camvid / 'classes.txt').write_text('\n'.join((*exports.CAMVID[:4], name)))
        cfg = config(camvid)
        findings = check_data_set(cfg.train_dataloader.dataset, from_data=True).findings
        assert [(finding.kind, finding.severity) for finding in findings] == [('class-void', 'warning')] * is_void
        assert all('--ignore-label 4' in finding.sentence for finding in findings)
        check_before_training(cfg)  # and no more than a hint
        assert check_data_set(config(camvid, 4).train_dataloader.dataset, from_data=True).findings == []


def test_labels_are_numbers_of_a_byte(camvid):
    with pytest.raises(ConfigError, match='0 to 255, got 256'):
        config(camvid, 256)
    with pytest.raises(ConfigError, match='ImageFolderDataset'):
        config(camvid, 4, options={f'{part}_dataloader.dataset.type': 'BaseSegDataset'
                                   for part in ('train', 'val', 'test')})
