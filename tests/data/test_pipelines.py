"""What a pipeline reads, by the classes of its steps, at any depth and by any name."""
import json

import pytest
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.evaluation import CocoMetric
from mmengine.config import Config

from helpers.faulty_data import ANNOTATIONS, coco, folders, kinds_of, only, rewrite
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_before_training, check_data_set, check_data_sets
from xcit_dense.data.pipelines import image_loader, judges_masks, loads_masks, map_loader, turns_images


class MyAnnotations(LoadAnnotations):
    """A user's own class, with masks by default."""

    def __init__(self, with_mask=True, **options):
        super().__init__(with_mask=with_mask, **options)


MASKS = dict(with_bbox=True, with_mask=True)
#: Pipelines, and whether they read masks.
PIPELINES = {
    'name': ([dict(type='LoadAnnotations', **MASKS)], True),
    'boxes': ([dict(type='LoadAnnotations', with_bbox=True)], False),
    'scoped': ([dict(type='mmdet.LoadAnnotations', **MASKS)], True),
    'scoped boxes': ([dict(type='mmdet.LoadAnnotations', with_bbox=True)], False),
    'class': ([dict(type=LoadAnnotations, **MASKS)], True),
    'class boxes': ([dict(type=LoadAnnotations)], False),
    'own': ([dict(type=MyAnnotations)], True),
    'own boxes': ([dict(type=MyAnnotations, with_mask=False)], False),
    'choice': ([dict(type='RandomChoice', transforms=[[dict(type='Resize')], [dict(type='LoadAnnotations', **MASKS)]])],
               True),
    'branches': ([dict(type='MultiBranch', branch_field=['a'], a=dict(
        type='Compose', transforms=[dict(type='mmdet.LoadAnnotations', **MASKS)]))], True),
    'unknown': ([dict(type='of.nobody.Known')], False),
    'absent': ([dict(type='LoadImageFromFile')], False),
    'empty': ([], False),
}


@pytest.mark.parametrize('pipeline, reads', PIPELINES.values(), ids=PIPELINES)
def test_masks_are_looked_at_where_a_step_reads_them(root, pipeline, reads):
    dataset = coco(root, pipeline=pipeline)
    assert loads_masks(dataset) == loads_masks(Config(dataset)) == reads
    rewrite(root, lambda content: [annotation.pop('segmentation') for annotation in content['annotations']])
    assert kinds_of(check_data_set(dataset)) == ({'mask-missing'} if reads else set())


@pytest.mark.parametrize('step, turned', (
    (dict(type='LoadImageFromFile'), True), (dict(type='mmcv.LoadImageFromFile', color_type='unchanged'), False),
    (dict(type=LoadImageFromFile, color_type='color_ignore_orientation'), False),
    (dict(type='RandomChoice', transforms=[[dict(type=LoadImageFromFile, imdecode_backend='tifffile')]]), False),
    (dict(type='LoadAnnotations'), True)))
def test_images_are_turned_as_the_step_says(step, turned):
    dataset = coco('x', pipeline=[dict(type='RandomFlip'), step])
    assert turns_images(dataset) == turned


def test_loaders_are_found_by_their_classes():
    seg = folders('x')
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    for scope in ('', 'mmseg.'):
        pipeline = [dict(step, type=scope + step['type']) for step in steps]
        images, maps = (find(dict(seg, pipeline=pipeline)) for find in (image_loader, map_loader))
        assert images.kind is LoadImageFromFile and images.is_standard and images.is_local
        assert maps.kind.__module__.startswith('mmseg') and maps.is_standard
    away = dict(type=LoadImageFromFile, backend_args=dict(backend='petrel'))
    assert not image_loader(coco('x', pipeline=[away])).is_local
    assert image_loader(coco('x', pipeline=[])).kind is None and image_loader(coco('x', pipeline=[])).is_standard
    own = map_loader(coco('x', pipeline=[dict(type=MyAnnotations)]))
    assert own.kind is MyAnnotations and not own.is_standard


@pytest.mark.parametrize('metrics, judges', (
    (dict(type='CocoMetric'), False), (dict(type='mmdet.CocoMetric', metric='segm'), True),
    (dict(type=CocoMetric, metric=['bbox', 'segm']), True), (dict(type=CocoMetric, metric='bbox'), False),
    (dict(type='LVISMetric', metric='bbox'), None), (None, None),
    ([dict(type='CocoMetric'), dict(type='CocoMetric', metric=['segm'])], True),
    (dict(type='Evaluator', metrics=[dict(type='CocoMetric')]), False)))
def test_metrics_tell_whether_they_read_masks(metrics, judges):
    assert judges_masks(Config(dict(val_evaluator=metrics)), 'val_dataloader') is judges


def test_boxes_alone_train_the_config_for_boxes(root):
    for name in (ANNOTATIONS, ANNOTATIONS.replace('train', 'val')):
        content = json.loads((root / name).read_text())
        for annotation in content['annotations']:
            annotation.pop('segmentation')
        (root / name).write_text(json.dumps(content))
    cfg = load_config('retinanet_xcit_s12_p16_coco', data_root=root, pretrained=False)
    cfg.classes_from_data = True
    check_before_training(cfg)
    assert all('with_mask=True' not in str(cfg[loader]) for loader in ('train_dataloader', 'val_dataloader'))
    # what the metric reads by itself counts too
    cfg.val_evaluator.metric = ['bbox', 'segm']
    reports = check_data_sets(cfg)
    assert kinds_of(reports['train_dataloader']) == kinds_of(reports['test_dataloader']) == set()
    only(reports['val_dataloader'], 'mask-missing')
