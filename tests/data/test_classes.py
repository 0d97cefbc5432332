"""Classes out of the data, and where they go."""
import pytest
from mmengine.config import Config

from helpers.faulty_data import ANNOTATIONS, rewrite
from helpers.paths import SMALL_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import classes_of_data, heads_of_classes, set_classes, take_classes
from xcit_dense.data.datasets import LOADERS
from xcit_dense.draw.classes import class_colours
from xcit_dense.errors import DataError

NAMES = ('disc', 'square', 'triangle', 'star', 'cross')
VALIDATION = ANNOTATIONS.replace('train', 'val')


def test_classes_come_from_the_data(demo_data, capsys):
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    assert cfg.model.roi_head.bbox_head.num_classes == 80
    take_classes(cfg)
    assert 'is replaced by' not in capsys.readouterr().out  # a number of COCO is nobody's own
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 5
    assert cfg.val_dataloader.dataset.metainfo.classes == NAMES
    # those of a checkpoint are compared with the data
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    checkpoint = dict(meta=dict(dataset_meta=dict(classes=('square', 'disc', *NAMES[2:]))))
    with pytest.raises(DataError, match=r'different classes than run\.pth.*, or use a checkpoint of a model for this'):
        take_classes(cfg, checkpoint, 'run.pth', loaders=['test_dataloader'])
    take_classes(cfg, checkpoint, 'run.pth', loaders=[])
    assert cfg.test_dataloader.dataset.metainfo.classes[0] == 'square'


def test_classes_keep_the_order_of_the_file_as_mmdet_does(root, tmp_path, capsys):
    """mmdet counts the categories of each file by themselves: other ids are right, another order is not."""
    rewrite(root, lambda content: content['categories'].pop(), VALIDATION)
    with pytest.raises(DataError, match=f'val_dataloader .{root}. has different classes than the training data, or '
                                        'a different order'):
        take_classes(load_config(SMALL_CONFIG, data_root=root))
    rewrite(root, lambda content: content.update(categories=[
        dict(id=9 + number, name=name) for number, name in enumerate(NAMES)]), VALIDATION)
    take_classes(load_config(SMALL_CONFIG, data_root=root))
    assert 'val_dataloader has other category ids than the training data' in capsys.readouterr().out
    rewrite(root, lambda content: content['categories'].reverse())
    cfg = load_config(SMALL_CONFIG, data_root=root, work_dir=tmp_path)
    assert classes_of_data(cfg.train_dataloader.dataset) == dict(classes=NAMES[::-1], category_ids=(5, 4, 3, 2, 1))
    (root / ANNOTATIONS).write_text('[1, 2]')
    with pytest.raises(DataError, match='classes of the data cannot be read from .*instances_train2017.json'):
        take_classes(load_config(SMALL_CONFIG, data_root=root, work_dir=tmp_path))


def test_classes_reach_heads_and_data_sets(capsys):
    dataset = dict(type='CocoDataset', metainfo=dict(old=1))
    cfg = Config(dict(
        model=dict(backbone=dict(num_classes=1), rpn_head=dict(num_classes=1), num_classes=7, roi_head=dict(bbox_head=[
            dict(type='A', num_classes=7), dict(type='B', num_classes=7, inner=dict(num_classes=7))])),
        **{loader: dict(dataset=dict(dataset)) for loader in LOADERS}))
    set_classes(cfg, ['a', 'background', 'c'], category_ids=(9, 0, 4))
    assert 'num_classes=7 in the config is replaced by 3, the number' in capsys.readouterr().out
    set_classes(cfg, ['a', 'background', 'c'], category_ids=(9, 0, 4))
    assert not capsys.readouterr().out  # it is that of the data
    assert [head['num_classes'] for head in heads_of_classes(cfg.model)] == [3] * 4
    assert cfg.model.backbone.num_classes == cfg.model.rpn_head.num_classes == 1
    for loader in LOADERS:
        meta = cfg[loader].dataset.metainfo
        assert set(meta) == {'classes', 'palette', 'category_ids'} and meta.category_ids == (9, 0, 4)
        assert meta.classes == ('a', 'background', 'c') and meta.palette == class_colours(meta.classes)


def test_classes_of_heads_with_queries():
    """Mask2Former counts things, and its loss weighs 'no object' too; of panoptic data the counts stay."""
    cfg = load_config('mask2former_xcit_n12_p16_small')
    set_classes(cfg, 'abc')
    head, fusion = cfg.model.panoptic_head, cfg.model.panoptic_fusion_head
    assert head.num_things_classes == fusion.num_things_classes == 3 and 'num_classes' not in head
    assert head.loss_cls.class_weight == [1., 1., 1., 0.1]
    cfg = load_config('mask2former_xcit_n12_p16_small_seg')
    set_classes(cfg, 'ab')
    assert cfg.model.decode_head.num_classes == 2 and cfg.model.decode_head.loss_cls.class_weight == [1., 1., 0.1]
    assert not [*heads_of_classes(dict(head, num_stuff_classes=2))]


@pytest.mark.parametrize('weights, kept', (
    ([0.5] * 19, None), ([1., 2.], [1., 2.]), ([1., 2.] * 10, [1., 2.] * 10)))
def test_weights_of_other_classes_are_omitted(weights, kept, capfd):
    """Cityscapes' in stock configs (CGNet, DDRNet, PIDNet); as many as the data has classes are the user's."""
    loss = dict(type='CrossEntropyLoss', class_weight=weights)
    cfg = Config(dict(model=dict(decode_head=dict(num_classes=19, loss_decode=[loss]))))
    set_classes(cfg, 'ab')
    assert cfg.model.decode_head.loss_decode[0].class_weight == kept
    assert ('class_weight in the config weighs other classes' in capfd.readouterr().out) == (kept is None)
