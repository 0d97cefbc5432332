"""Configs placed on a folder: one for detection, with what mmdet then reads, and one for segmentation."""
import contextlib
import io
from pathlib import Path

from mmdet.datasets import CocoDataset
from mmengine.config import Config

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.annotations import DataOptions, place_data
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_before_training
from xcit_dense.data.classes import take_classes
from xcit_dense.data.datasets import LOADERS


def detector(root, with_mask=False, **changes):
    """Return the parts of a config for detection that matter, in COCO's layout."""
    parts, cfg = dict(train='train', val='val', test='val'), dict(classes_from_data=True, model=dict())
    for part, name in parts.items():
        pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=with_mask)]
        cfg[f'{part}_dataloader'] = dict(dataset=dict(
            type='CocoDataset', data_root=str(root), ann_file=f'annotations/instances_{name}2017.json',
            data_prefix=dict(img=f'{name}2017/'), pipeline=pipeline, test_mode=part != 'train'))
        if part != 'train':
            cfg[f'{part}_evaluator'] = dict(type='CocoMetric', metric='bbox',
                                            ann_file=f'{root}/annotations/instances_{name}2017.json')
    return Config(dict(cfg, **changes))


def placed(root, folder, cfg=None, keep=False, **options):
    """Return the config of `detector` after `place_data`, which writes into ``folder``."""
    cfg = cfg or detector(root)
    place_data(cfg, root, DataOptions(**options), Path(folder), keep)
    return cfg


def segmentor(root, work_dir, **options):
    """Return the tiny config for the data in a folder, with its classes, as ``train`` uses it."""
    cfg = load_config(TINY_SEG_CONFIG, data_root=str(root), data=DataOptions(**options), work_dir=work_dir,
                      pretrained=False)
    check_before_training(cfg)
    take_classes(cfg)
    return cfg


def read(cfg):
    """Return the records of mmdet's own data set by part; all images must exist, and metrics read the same file."""
    found = {}
    take_classes(cfg)
    for part, loader in zip(('train', 'val', 'test'), LOADERS, strict=True):
        config = {key: value for key, value in cfg[loader].dataset.items() if key not in ('type', '_scope_')}
        with contextlib.redirect_stdout(io.StringIO()):
            data = CocoDataset(**dict(config, pipeline=[], test_mode=True))
        found[part] = data
        records = [data.get_data_info(i) for i in range(len(data))]
        assert records and all(Path(record['img_path']).is_file() for record in records)
        if part != 'train':
            assert cfg[loader.replace('dataloader', 'evaluator')].ann_file == data.ann_file
    return found


def numbers(cfg):
    """Return the numbers of images and boxes by part, and the names of the classes, which are the same in all."""
    found = read(cfg)
    names, = {data.metainfo['classes'] for data in found.values()}
    return {part: (len(data), sum(len(data.get_data_info(i)['instances']) for i in range(len(data))))
            for part, data in found.items()}, names
