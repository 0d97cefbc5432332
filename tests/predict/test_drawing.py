"""Pictures of tested images: what is drawn, and under which names."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.engine.hooks import DetVisualizationHook
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmdet.visualization import DetLocalVisualizer
from mmengine.config import Config
from mmengine.registry import VISUALIZERS
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from mmseg.visualization import SegLocalVisualizer
from PIL import Image

from xcit_dense.draw.classes import ALARM
from xcit_dense.errors import OutputError
from xcit_dense.predict.drawing import Drawing, DrawingHook, _folder_of_images, _place

PAPER = (20, 90, 200)
META = dict(classes=('a', 'b'), palette=[(200, 20, 20), (20, 200, 20)])


class Images(list):
    get_data_info = list.__getitem__


@pytest.fixture
def image(tmp_path):
    """The file of an image of 60 x 50."""
    path = tmp_path / 'images/deep/a.png'
    path.parent.mkdir(parents=True)
    Image.new('RGB', (60, 50), PAPER).save(path)
    return path


def images_in(folder, **prefix):
    return dict(type='CocoDataset', data_root=str(folder), data_prefix=prefix or dict(img_path='images'))


def runner_of(node, loading={}, visualizer=None, **more):
    node.setdefault('pipeline', [dict(type='LoadImageFromFile', **loading)])
    if visualizer:
        more['visualizer'] = VISUALIZERS.build(dict(visualizer, name='test'))
        more['visualizer'].dataset_meta = META
    return SimpleNamespace(test_dataloader=SimpleNamespace(dataset=Images([dict(img_path='a.png')])),
                           cfg=Config(dict(visualizer=visualizer, test_dataloader=dict(dataset=node))), **more)


def sample_of(path):
    boxes = InstanceData(bboxes=torch.tensor([[4., 6, 26, 44], [30, 9, 50, 40]]), labels=torch.tensor([0, 1]))
    found = InstanceData(**boxes, scores=torch.tensor([0.9, 0.4]))
    return DetDataSample(metainfo=dict(img_path=str(path)), gt_instances=boxes, pred_instances=found)


def visualizer_of(kind=DetLocalVisualizer, save_dir=None, **settings):
    if save_dir:
        settings.update(vis_backends=[dict(type='LocalVisBackend')], save_dir=str(save_dir))
    return dict(type=kind, **settings)


def path_of(dataset, image):
    return f'out/{_place(_folder_of_images(runner_of(dataset).cfg), image).as_posix()}'


def test_images_of_any_place_have_a_picture_each_below_the_folder(tmp_path, monkeypatch):
    """Data sets may have images of one name, or know no folder; a list may name files with `..` or from the root on."""
    for prefix, image, wanted in (
            (dict(img_path='images', seg_map_path='maps'), 'images/deep/a.png', 'deep/a.png'),  # mmseg
            (dict(img='images/'), 'images/deep/a.npy', 'deep/a.npy.png'),  # mmdet
            (dict(sub_data_root='VOC2007/'), 'VOC2007/JPEGImages/a.png', 'VOC2007/JPEGImages/a.png')):
        dataset = images_in(tmp_path, **prefix)
        for each in (dict(type='RepeatDataset', times=2, dataset=dataset),
                     dict(type='ConcatDataset', datasets=[dataset, dataset])):
            assert path_of(each, tmp_path / image) == f'out/{wanted}'
    monkeypatch.chdir(tmp_path)
    here, dataset = tmp_path.as_posix(), images_in(tmp_path)
    both = dict(type='ConcatDataset', datasets=[images_in(tmp_path / part) for part in 'xy'])
    assert [path_of(both, tmp_path / part / 'images/a.png') for part in 'xy'] == [
        f'out/{part}/images/a.png' for part in 'xy']
    assert path_of(dataset, tmp_path / 'images/../other/a.png') == f'out{here}/other/a.png'
    assert path_of(dataset, '/b/a.png') == 'out/b/a.png'
    assert path_of(dict(type='Mine'), 'a.png') == 'out/a.png'
    assert path_of(images_in('', img_path='images'), 'images/deep/a.png') == 'out/deep/a.png'  # relative paths


def test_a_score_of_zero_is_one():
    assert DrawingHook(score_thr=0.).options == dict(pred_score_thr=0.) and DrawingHook().options == {}


def drawn_by(kind, visualizer, image, sample=None, loading={}, **options):
    folder = image.parents[2]
    runner = runner_of(images_in(folder, img='images'), loading, visualizer=visualizer, work_dir=str(folder),
                       timestamp='now')
    np.random.seed(0)
    sample = sample or sample_of(image)
    sample.set_metainfo(dict(img_path=str(image)))
    kind(draw=True, test_out_dir=str(folder / kind.__name__), **options).after_test_iter(runner, 0, None, [sample])
    return np.asarray(Image.open(folder / kind.__name__ / ('deep/a.png' if kind is DrawingHook else 'a.png')))


@pytest.mark.parametrize('threshold', (None, 0.5))
def test_truth_is_left_and_the_prediction_above_the_threshold_right(threshold, image):
    options = {} if threshold is None else dict(score_thr=threshold)
    drawn = drawn_by(DrawingHook, visualizer_of(), image, **options)
    assert drawn.shape == (50, 120, 3)
    green, red = ((drawn == colour).all(2) for colour in ((20, 200, 20), (200, 20, 20)))
    assert red[:, :60].any() and red[:, 60:].any() and (drawn[:, 59] == 255).all() and (drawn[:, 58] == PAPER).all()
    assert green[:, :60].any() and green[:, 60:].any() == (threshold is None)
    own, random = (Drawing(visualizer_of(), dict(classes='ab', palette=palette), **options).draw(
        drawn[:, :60], sample_of(image)) for palette in (None, 'random'))
    assert np.array_equal(own, random)


def test_label_maps_are_drawn_too_and_nothing_if_not_asked_for(image, tmp_path):
    sample = SegDataSample(**{name: PixelData(data=torch.full((1, 50, 60), label))
                              for name, label in (('gt_sem_seg', 0), ('pred_sem_seg', 1))})
    sample.gt_sem_seg.data[:, 10:40], sample.gt_sem_seg.data[:, 40:] = 255, 7
    sample.pred_sem_seg.data[:, 30:] = 255
    drawn = drawn_by(DrawingHook, visualizer_of(SegLocalVisualizer), image, sample).astype(int)
    for column, colour in zip((2, 62), META['palette'], strict=True):
        assert np.abs(drawn[2, column] - (0.4 * np.array(PAPER) + 0.6 * np.array(colour))).max() <= 2
    assert np.abs(drawn[30:, :59] - 0.25 * np.array(PAPER)).max() <= 1  # labels that do not count
    assert (drawn[30:, 60:] == ALARM).all(2).any()  # of a prediction, one without a class
    del sample.gt_sem_seg  # no truth, no panel of it
    assert drawn_by(DrawingHook, visualizer_of(SegLocalVisualizer), image, sample).shape == (50, 60, 3)
    DrawingHook(False, str(tmp_path / 'none')).after_test_iter(None, 0, None, [sample])
    assert not (tmp_path / 'none').exists()


class OwnVisualizer(DetLocalVisualizer):
    """A user's visualizer, which inherits."""


@pytest.mark.parametrize('settings', (dict(line_width=1), dict(bbox_color='red'), dict(kind=OwnVisualizer)), ids=str)
def test_changed_visualizers_draw_as_with_the_hook_of_mmdet(settings, image):
    sample, visualizer = sample_of(image), visualizer_of(**settings)
    ours, theirs = (drawn_by(kind, visualizer, image, sample) for kind in (DrawingHook, DetVisualizationHook))
    assert ours.shape == (50, 120, 3) and (ours == theirs).all()


def test_masks_of_any_kind_are_drawn(image):
    mask, boxes = np.zeros((2, 50, 60), np.uint8), torch.tensor([[10., 10, 25, 30], [30, 20, 56, 40]])
    mask[0, 10:30, 10:25], mask[1, 20:40, 30:56] = 1, 1
    polygons = [[np.array([x1, y1, x2, y1, x2, y2, x1, y2], float)] for x1, y1, x2, y2 in boxes.tolist()]
    pictures = []
    for masks in (BitmapMasks(mask, 50, 60), PolygonMasks(polygons, 50, 60), torch.from_numpy(mask).bool()):
        for given in (boxes, boxes * 0):
            sample = DetDataSample(gt_instances=InstanceData(bboxes=given, labels=torch.tensor([0, 1]), masks=masks))
            pictures.append(drawn_by(DrawingHook, visualizer_of(), image, sample)[:, :59].astype(int))
    assert all(np.abs(picture - pictures[0]).max(2).astype(bool).mean() < 0.05 for picture in pictures)
    assert np.abs(pictures[0][32:37, 36:46] - 0.57 * np.array(PAPER) - 0.43 * np.array([20, 200, 20])).max() <= 1


def test_without_a_folder_pictures_go_to_the_visualizer_as_by_mmdet(image, tmp_path):
    """Configs built on these say `interval` and the like of mmdet's hook for the validation."""
    runner = runner_of(images_in(tmp_path), iter=6, visualizer=visualizer_of(save_dir=tmp_path / 'shown'))
    shown = []
    runner.visualizer.show = lambda drawn, **options: shown.append((drawn, options))
    for hook, name in ((DrawingHook(True), 'test_img'), (DrawingHook(True, show=True, wait_time=7), 'a.png')):
        hook.after_test_iter(runner, 0, None, [sample_of(image), sample_of(image)])
        assert len(list(tmp_path.rglob(f'{name}_*.png'))) == 2
    wanted = drawn_by(DrawingHook, visualizer_of(), image)  # backends and folders do not change the look
    for drawn, options in shown:
        assert np.array_equal(drawn, wanted) and options == dict(win_name='a.png', wait_time=7)
    assert len(shown) == 2
    for kind in (DetVisualizationHook, DrawingHook):
        hook = kind(draw=True, interval=3, show=False, wait_time=1, backend_args=dict(backend='local'))
        for batch in range(4):
            hook.after_val_iter(runner, batch, None, [sample_of(image), None])
        pictures = list(tmp_path.rglob('val_img_*.png'))
        assert sorted(path.name for path in pictures) == ['val_img_6.png', 'val_img_9.png']
        for path in pictures:
            path.unlink()


@pytest.mark.parametrize('loading, size', (({}, (40, 24)), (dict(color_type='color_ignore_orientation'), (24, 40))))
def test_a_picture_is_of_the_image_as_the_data_set_reads_it(loading, size, image, photograph):
    """Not rotated if the model has not seen it rotated: the boxes would be next to the objects."""
    sample = DetDataSample(gt_instances=InstanceData())
    drawn = drawn_by(DrawingHook, visualizer_of(), photograph(image), sample, loading)
    assert drawn.shape == (size[0], 2 * size[1], 3)  # side by side


def test_data_sets_that_do_not_list_their_images_overwrite_nothing_either(image, tmp_path):
    runner = runner_of(images_in(tmp_path), visualizer=visualizer_of())
    runner.test_dataloader.dataset = SimpleNamespace()
    hook = DrawingHook(True, str(tmp_path / 'out'))
    hook.before_test(runner)
    for _ in range(2):
        hook.after_test_iter(runner, 0, None, [sample_of(image)])
    hook.after_test(runner)
    picture, = (tmp_path / 'out').rglob('a.png')
    DrawingHook(True, str(tmp_path / 'out')).after_test_iter(runner, 0, None, [sample_of(image)])
    picture.write_text('mine')
    with pytest.raises(OutputError, match='a.png'):
        DrawingHook(True, str(tmp_path / 'out')).after_test_iter(runner, 0, None, [sample_of(image)])
    assert picture.read_text() == 'mine'
