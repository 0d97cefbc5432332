"""Pictures of tested images: what is drawn, and under which names."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.engine.hooks import DetVisualizationHook
from mmdet.structures import DetDataSample
from mmdet.visualization import DetLocalVisualizer
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset
from mmengine.registry import HOOKS, init_default_scope
from mmengine.structures import InstanceData
from PIL import Image

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.errors import OutputError
from xcit_dense.for_mmseg import SegDrawingHook
from xcit_dense.predict.drawing_hook import DrawingHook


class Images(BaseDataset):
    """A data set without annotations."""

    METAINFO = dict(classes=('a', 'b'), palette=[(200, 20, 20), (20, 200, 20)])

    def load_data_list(self):
        return [dict(img_path='a.png')]


def config(**loading):
    dataset = dict(type='CocoDataset', pipeline=[dict(type='LoadImageFromFile', **loading)])
    return Config(dict(test_dataloader=dict(dataset=dataset)))


def runner_of(dataset, cfg=None, **more):
    return SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset), cfg=cfg or config(), **more)


def sample_of(path):
    boxes = InstanceData(bboxes=torch.tensor([[4., 6, 26, 44], [30, 9, 50, 40]]), labels=torch.tensor([0, 1]))
    found = InstanceData(**boxes, scores=torch.tensor([0.9, 0.4]))
    return DetDataSample(metainfo=dict(img_path=str(path)), gt_instances=boxes, pred_instances=found)


def images_in(folder, **prefix):
    return Images(data_root=str(folder), data_prefix=prefix or dict(img_path='images'))


def path_of(dataset, image, folder='out'):
    found = DrawingHook(True, folder).path_of(runner_of(dataset), SimpleNamespace(img_path=str(image)))
    return found.as_posix()


@pytest.mark.parametrize('prefix, image, wanted', (
    (dict(img_path='images'), 'images/deep/a.png', 'deep/a.png'),  # mmseg
    (dict(img_path='images', seg_map_path='maps'), 'images/a.png', 'a.png'),
    (dict(img='images/'), 'images/deep/a.png', 'deep/a.png'),  # mmdet
    (dict(sub_data_root='VOC2007/'), 'VOC2007/JPEGImages/a.png', 'VOC2007/JPEGImages/a.png'),
    (dict(img=''), 'x/a.png', 'x/a.png'),
))
def test_pictures_are_named_below_the_folder_of_the_images(prefix, image, wanted, tmp_path):
    dataset = images_in(tmp_path, **prefix)
    assert path_of(dataset, tmp_path / image) == f'out/{wanted}'
    assert path_of(RepeatDataset(dataset, 2), tmp_path / image) == f'out/{wanted}'
    assert path_of(ConcatDataset([dataset, dataset]), tmp_path / image) == f'out/{wanted}'


def test_images_of_one_name_in_several_data_sets_have_a_picture_each(tmp_path):
    both = ConcatDataset([images_in(tmp_path / part) for part in 'xy'])
    assert [path_of(both, tmp_path / part / 'images/a.png') for part in 'xy'] == [
        f'out/{part}/images/a.png' for part in 'xy']


def test_images_of_any_other_place_have_pictures_below_the_folder(tmp_path, monkeypatch):
    """A list may name files with `..` or from the root on; a data set may know no folder."""
    monkeypatch.chdir(tmp_path)
    here = tmp_path.as_posix()
    dataset = images_in(tmp_path)
    assert path_of(dataset, tmp_path / 'images/../other/a.png') == f'out{here}/other/a.png'
    assert path_of(dataset, '/b/a.png') == 'out/b/a.png'
    assert path_of([], 'a.png') == f'out{here}/a.png'
    assert path_of(images_in('', img_path='images'), 'images/deep/a.png') == 'out/deep/a.png'  # relative paths


@pytest.mark.parametrize('threshold', (None, 0.5))
def test_objects_are_drawn_as_by_the_hook_of_mmdet(threshold, tmp_path):
    image = tmp_path / 'images/deep/a.png'
    image.parent.mkdir(parents=True)
    Image.new('RGB', (60, 50), (20, 90, 200)).save(image)
    visualizer = DetLocalVisualizer.get_instance('both hooks')
    visualizer.dataset_meta = Images.METAINFO
    dataset = images_in(tmp_path, img='images')
    runner = runner_of(dataset, visualizer=visualizer, work_dir=str(tmp_path), timestamp='now')
    options = {} if threshold is None else dict(score_thr=threshold)
    for kind, folder in ((DetVisualizationHook, 'theirs'), (DrawingHook, 'ours')):
        np.random.seed(0)
        hook = kind(draw=True, test_out_dir=str(tmp_path / folder), **options)
        hook.after_test_iter(runner, 0, None, [sample_of(image)])
    ours, theirs = (np.asarray(Image.open(tmp_path / name)) for name in ('ours/deep/a.png', 'theirs/a.png'))
    assert ours.shape == (50, 120, 3) and (ours == theirs).all()
    green = (np.abs(ours.astype(int) - (20, 200, 20)).max(2) < 40)
    assert green[:, :60].any() and green[:, 60:].any() == (threshold is None)


def test_without_a_folder_pictures_go_to_the_visualizer(tmp_path):
    image = tmp_path / 'a.png'
    Image.new('RGB', (60, 50)).save(image)
    visualizer = DetLocalVisualizer('kept', vis_backends=[dict(type='LocalVisBackend')], save_dir=str(tmp_path))
    visualizer.dataset_meta = Images.METAINFO
    hook = DrawingHook(True)
    for _ in range(2):
        hook.after_test_iter(runner_of(images_in(tmp_path), visualizer=visualizer), 0, None, [sample_of(image)])
    assert len(list(tmp_path.rglob('test_img_*.png'))) == 2


def test_pictures_of_a_validation_as_by_mmdet(tmp_path):
    """Configs built on these say `interval` and the like of mmdet's hook."""
    image = tmp_path / 'a.png'
    Image.new('RGB', (60, 50)).save(image)
    visualizer = DetLocalVisualizer.get_instance('val', vis_backends=[dict(type='LocalVisBackend')],
                                                 save_dir=str(tmp_path))
    visualizer.dataset_meta = Images.METAINFO
    for kind in (DetVisualizationHook, DrawingHook):
        hook = kind(draw=True, interval=3, show=False, wait_time=1, backend_args=dict(backend='local'))
        for batch in range(4):
            hook.after_val_iter(runner_of(None, iter=6, visualizer=visualizer), batch, None, [sample_of(image)])
        pictures = list(tmp_path.rglob('val_img_*.png'))
        assert sorted(path.name for path in pictures) == ['val_img_6.png', 'val_img_9.png']
        for path in pictures:
            path.unlink()


def test_both_frameworks_have_the_hook_and_older_configs_their_name():
    for config, scope in ((TINY_CONFIG, 'mmdet'), (TINY_SEG_CONFIG, 'mmseg')):
        cfg = load_config(config)
        init_default_scope(scope)
        assert type(HOOKS.build(cfg.default_hooks.visualization)) is DrawingHook
    for name in ('SegDrawingHook', 'mmseg.SegDrawingHook'):
        assert type(HOOKS.build(dict(type=name))) is DrawingHook is SegDrawingHook


@pytest.mark.parametrize('loading, size', (({}, (30, 20)), (dict(color_type='color_ignore_orientation'), (20, 30))))
def test_a_picture_is_of_the_image_as_the_data_set_reads_it(loading, size, tmp_path):
    """Not turned where the model has not seen it turned: the boxes would lie beside the objects."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new('RGB', (30, 20)).save(tmp_path / 'a.png', exif=exif)
    visualizer = DetLocalVisualizer.get_instance('turned')
    visualizer.dataset_meta = Images.METAINFO
    hook = DrawingHook(True, str(tmp_path / 'out'))
    sample = DetDataSample(metainfo=dict(img_path=str(tmp_path / 'a.png')), gt_instances=InstanceData())
    runner = runner_of(images_in(tmp_path, img=''), config(**loading), visualizer=visualizer)
    hook.after_test_iter(runner, 0, None, [sample])
    height, width = size
    assert Image.open(tmp_path / 'out/a.png').size == (2 * width, height)  # side by side


class OwnImages:
    """A data set that tells of its images one by one."""


def test_data_sets_that_do_not_list_their_images_overwrite_nothing_either(tmp_path):
    Image.new('RGB', (60, 50)).save(tmp_path / 'a.png')
    visualizer = DetLocalVisualizer.get_instance('own')
    visualizer.dataset_meta = Images.METAINFO
    runner = runner_of(OwnImages(), visualizer=visualizer)
    hook = DrawingHook(True, str(tmp_path / 'out'))
    hook.before_test(runner)
    for _ in range(2):
        hook.after_test_iter(runner, 0, None, [sample_of(tmp_path / 'a.png')])
    hook.after_test(runner)
    picture, = (tmp_path / 'out').rglob('a.png')
    DrawingHook(True, str(tmp_path / 'out')).after_test_iter(runner, 0, None, [sample_of(tmp_path / 'a.png')])
    picture.write_text('mine')
    with pytest.raises(OutputError, match='a.png'):
        DrawingHook(True, str(tmp_path / 'out')).after_test_iter(runner, 0, None, [sample_of(tmp_path / 'a.png')])
    assert picture.read_text() == 'mine'
