"""What a pipeline reads, by the classes of its steps, at any depth and by any name."""
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config

from helpers.faulty_data import coco, folders, kinds_in, rewrite
from xcit_dense.data.datasets import DataSet
from xcit_dense.data.pipelines import image_loader, is_known_loader, loads_masks, map_loader, turns_images


class MyAnnotations(LoadAnnotations):

    def __init__(self, with_mask=True, **options):
        super().__init__(with_mask=with_mask, **options)


MASKS = dict(with_bbox=True, with_mask=True)


def test_masks_are_looked_at_where_a_step_reads_them(root):
    rewrite(root, lambda content: [annotation.pop('segmentation') for annotation in content['annotations']])
    for reads, steps in ((True, (
            dict(type='LoadAnnotations', **MASKS), dict(type='mmdet.LoadAnnotations', **MASKS),
            dict(type=LoadAnnotations, **MASKS), dict(type=MyAnnotations),
            dict(type='RandomChoice', transforms=[[dict(type='Resize')], [dict(type='LoadAnnotations', **MASKS)]]),
            dict(type='MultiBranch', branch_field=['a'], a=dict(
                type='Compose', transforms=[dict(type='mmdet.LoadAnnotations', **MASKS)])))), (False, (
            dict(type='LoadAnnotations', with_bbox=True), dict(type='mmdet.LoadAnnotations', with_bbox=True),
            dict(type=LoadAnnotations), dict(type=MyAnnotations, with_mask=False), dict(type='of.nobody.Known'),
            dict(type='LoadImageFromFile'), None))):
        for step in steps:
            dataset = coco(root, pipeline=[step] if step else [])
            assert loads_masks(DataSet(dataset)) == loads_masks(DataSet(Config(dataset))) == reads, step
            assert kinds_in(dataset) == ({'mask-missing'} if reads else set()), step


def test_images_are_turned_as_the_step_says():
    for step, turned in (
            (dict(type='LoadImageFromFile'), True),
            (dict(type='mmcv.LoadImageFromFile', color_type='unchanged'), False),
            (dict(type=LoadImageFromFile, color_type='color_ignore_orientation'), False),
            (dict(type='RandomChoice', transforms=[[dict(type=LoadImageFromFile, imdecode_backend='tifffile')]]),
             False),
            (dict(type='LoadAnnotations'), True)):
        assert turns_images(DataSet(coco('x', pipeline=[dict(type='RandomFlip'), step]))) == turned, step


def test_loaders_are_found_by_their_classes():
    seg = folders('x')
    steps = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
    for scope in ('', 'mmseg.'):
        pipeline = [dict(step, type=scope + step['type']) for step in steps]
        dataset = DataSet(dict(seg, pipeline=pipeline))
        assert image_loader(dataset)[0] is LoadImageFromFile and is_known_loader(*image_loader(dataset))
        assert map_loader(dataset)[0].__module__.startswith('mmseg')
    none = image_loader(DataSet(coco('x', pipeline=[])))
    assert none == (None, {}) and is_known_loader(*none)
    assert map_loader(DataSet(coco('x', pipeline=[dict(type=MyAnnotations)])))[0] is MyAnnotations
