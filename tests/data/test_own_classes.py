"""Own label maps in a config whose data set has the classes of a benchmark: refused, or with `classes_from_data`."""
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.datasets import ADE20KDataset, BaseSegDataset
from mmseg.models import FCNHead
from mmseg.models.losses import CrossEntropyLoss, LovaszLoss, TverskyLoss
from mmseg.registry import DATASETS
from torch.nn import functional as F

from helpers import exports_segmentation as exports
from helpers.faulty_data import kinds_of, only
from helpers.refusals import stock
from helpers.tools import run_tool
from xcit_dense.compat.internals import mend_weighted_losses
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.errors import ConfigError, DataError

NAMES = ('soil', 'crop', 'weed', 'track')
BENCHMARKS = sorted(name for name, kind in DATASETS.module_dict.items() if kind.__module__.startswith('mmseg.')
                    and getattr(kind, 'load_data_list', 0) is BaseSegDataset.load_data_list and kind.METAINFO)


def config(folder, kind, several=False, **settings):
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', reduce_zero_label='ADE' in kind)]
    prefix = dict(img_path='train/images', seg_map_path='train/masks') if settings else dict(seg_map_path='a')
    dataset = dict(type=kind, data_root='data', data_prefix=prefix, ann_file='', pipeline=steps)
    train = dict(type='ConcatDataset', datasets=[dataset, dataset]) if several else dataset
    model = dict(decode_head=dict(num_classes=150), auxiliary_head=[dict(num_classes=150)])
    Config(dict(default_scope='mmseg', model=model, work_dir=str(folder), train_dataloader=dict(dataset=train),
                val_dataloader=dict(dataset=dict(dataset, test_mode=True)), **settings)).dump(folder / 'config.py')
    return folder / 'config.py'


@pytest.fixture
def data(tmp_path):
    for part in ('train', 'val'):
        exports.pairs(tmp_path, f'{part}/images', f'{part}/masks', exports.names(2), label='_mask.png', image='.png',
                      change=lambda labels: np.where(labels == 4, 255, labels).astype(np.uint8))
    (tmp_path / 'classes.txt').write_text('\n'.join(NAMES))
    return tmp_path


@pytest.mark.parametrize('kind', BENCHMARKS)
def test_own_classes_with_the_data_set_of_a_benchmark(data, kind):
    plain = load_config(path := config(data, kind, 'VOC' in kind, classes_from_data=True)).val_dataloader.dataset
    assert plain.type == 'BaseSegDataset' and (kind != 'DarkZurichDataset' or plain.img_suffix == '_rgb_anon.png')
    cfg = load_config(path, data_root=data)
    take_classes(cfg)
    init_default_scope('mmseg')
    assert [head.num_classes for head in (cfg.model.decode_head, *cfg.model.auxiliary_head)] == [4, 4]
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        found = DATASETS.build(loader.dataset)
        assert found.metainfo['classes'] == NAMES and len(set(found.metainfo['palette'])) == 4
        assert {*np.unique(found[0]['gt_seg_map']).tolist()} == {0, 1, 2, 3, 255}


def test_other_names_than_those_of_the_benchmark_are_refused(data):
    """Names in `classes.txt` by the check of the data, which can be told to warn; others when the data is found."""
    dataset = load_config(config(data, 'ADE20KDataset'), data_root=data).train_dataloader.dataset
    found = check_data_set(dataset)
    assert kinds_of(found) == {'class-missing', 'class-unused'}
    assert 'first 3 of the 150 classes of ADE20KDataset' in found.warnings[0].sentence  # which ignores 0
    names = [f'{name}, thing' for name in ADE20KDataset.METAINFO['classes']]
    (data / 'classes.txt').write_text('\n'.join(['wall', *names[1:]]))  # as many, of which some are alike
    assert kinds_of(check_data_set(dataset)) == {'class-unused'}
    (data / 'classes.txt').rename(data / 'names.txt')
    unnamed = check_data_set(dataset)
    assert kinds_of(unnamed) == {'class-missing'} and 'while label 0 is ignored' in unnamed.errors[0].sentence
    (data / 'names.txt').write_text('\n'.join(NAMES))
    with pytest.raises(DataError, match='names.txt does not have 150 of the 150 .* classes_from_data = True'):
        load_config(data / 'config.py', data_root=data)


@pytest.mark.slow
@pytest.mark.skipif(not stock('mmseg').is_dir(), reason='the maintained forks ship no stock configs')
def test_an_adapted_stock_config_learns_own_classes(data):
    mine, run, root = data / 'mine.py', data / 'run', ('--data-root', data)
    run_tool('adapt', 'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py', *root, '--out', mine)
    done = run_tool('train', mine, *root, '--work-dir', run, '--iterations', 1, '--image-size', 64, '--no-pretrained',
                    '--cfg-options', 'model.decode_head.loss_decode.class_weight=[1.,2.,3.,4.]')
    assert all(f' {name} ' in done.stdout for name in NAMES) and ' building ' not in done.stdout
    assert 'mIoU' in run_tool('test', mine, run, *root, '--work-dir', data / 'test').stdout


def test_a_class_of_the_user_that_sets_its_own_suffixes(data):
    own = type('Own', (BaseSegDataset, ), dict(METAINFO=dict(classes=NAMES), __init__=lambda self, **options: (
        BaseSegDataset.__init__(self, img_suffix='.png', seg_map_suffix='_mask.png', **options))))
    dataset = dict(type=own, data_root=str(data), data_prefix=dict(img_path='val/images', seg_map_path='val/masks'))
    assert not kinds_of(check_data_set(dataset)) and check_data_set(dataset).counts['images'] == 2
    (data / 'classes.txt').unlink()
    assert classes_of_data(dataset)['classes'] == NAMES
    unknown = type('Unknown', (own, ), dict(get_label_map=lambda names=None: None))
    only(check_data_set(dict(dataset, type=unknown)), 'not-checked')  # only it knows what its labels mean


@pytest.mark.parametrize('sigmoid', (False, True))
def test_weights_of_classes_with_ignored_pixels(sigmoid):
    weights, scores, labels = torch.tensor([1., 2., 3.]), torch.randn(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
    labels[0, 0], head = 255, FCNHead(in_channels=4, channels=4, num_classes=3)
    head.loss_decode = CrossEntropyLoss(sigmoid, class_weight=[1, 2, 3], avg_non_ignore=True)
    with pytest.raises((IndexError, RuntimeError)):  # mmsegmentation's
        head.loss_decode(scores, labels, ignore_index=255)
    mend_weighted_losses(torch.nn.Sequential(head))
    scored, wanted = scores.movedim(1, 3)[labels != 255], labels[labels != 255]
    wanted = F.cross_entropy(scored, wanted, weights) if not sigmoid else F.binary_cross_entropy_with_logits(
        scored, torch.eye(3)[wanted], pos_weight=weights)
    torch.testing.assert_close(head.loss_decode(scores, labels, ignore_index=255), wanted)
    if not sigmoid:  # of points, as of PointRend
        torch.testing.assert_close(head.loss_decode(scored, labels[labels != 255], ignore_index=255), wanted)
    weights = [1, 2, 3]  # which these use in their own way
    for loss in (LovaszLoss(reduction='none', class_weight=weights), TverskyLoss(class_weight=weights)):
        head.loss_decode = loss
        mend_weighted_losses(torch.nn.Sequential(head))
        assert head.loss_decode(scores, labels, ignore_index=255).isfinite()
    head.loss_decode = CrossEntropyLoss(class_weight=[1, 2, 3])
    head.out_channels += 1
    with pytest.raises(ConfigError, match='class_weight has 3 weights, but the head has 4 outputs'):
        mend_weighted_losses(torch.nn.Sequential(head))
