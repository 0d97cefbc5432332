"""The views that DINO compares: their numbers and sizes, and that a resumed run draws the same ones."""
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from xcit_dense.data.unlabelled import UnlabelledImages
from xcit_dense.data.views import MultiCrop
from xcit_dense.errors import DataError
from xcit_dense.train.loaders import ResumableLoader


def test_global_views_come_first_and_keep_more_of_the_image():
    step = MultiCrop(global_size=48, local_size=16, num_local=3, global_ratio=(0.9, 1.), local_ratio=(0.01, 0.02))
    ramp = np.linspace(0, 255, 100).astype(np.uint8)[None, :, None].repeat(100, 0).repeat(3, 2)
    spreads = []
    for _ in range(20):
        views = step(dict(img=ramp))['img']
        assert [view.shape for view in views] == [(48, 48, 3)] * 2 + [(16, 16, 3)] * 3
        assert {view.dtype for view in views} == {np.dtype(np.uint8)}
        spreads.append([float(np.ptp(view)) for view in views])
    assert np.mean(spreads, 0)[:2].min() > 2 * np.mean(spreads, 0)[2:].max()


def test_the_views_see_the_channels_in_the_order_of_pil_and_return_them_in_that_of_opencv():
    """Grey, saturation and hue weigh the channels differently."""
    image, step = np.random.RandomState(0).randint(0, 256, (40, 40, 3), np.uint8), MultiCrop(32, 16, 6)
    torch.manual_seed(0)
    found = step(dict(img=image))['img']
    torch.manual_seed(0)
    wanted = [np.asarray(view(Image.fromarray(image[..., ::-1].copy()))) for view in step.views]
    assert all(map(np.array_equal, found, (view[..., ::-1] for view in wanted)))


def test_some_views_are_grey_some_keep_their_colour_and_some_second_ones_are_solarised():
    torch.manual_seed(0)
    step = MultiCrop(8, 8, 1)
    colours, greys = (np.array([step(dict(img=np.full((16, 16, 3), colour, np.uint8)))['img'] for _ in range(200)])[
        :, :, 0, 0].astype(int) for colour in ((40, 90, 160), (200, 200, 200)))
    is_grey, is_same = np.ptp(colours, axis=-1) == 0, (colours == (40, 90, 160)).all(-1)
    assert (abs(is_grey.mean(0) - 0.2) < 0.1).all() and (abs(is_same.mean(0) - 0.2 * 0.8) < 0.1).all()
    solarised = (greys < 110).all(-1)  # the other changes keep it above 0.6 * 200
    assert 0.1 < solarised[:, 1].mean() < 0.3 and not solarised[:, ::2].any()


def test_without_blurs_no_view_is_blurred_and_with_them_the_first_always_is():
    noise = np.random.RandomState(0).randint(0, 256, (64, 64, 3), np.uint8)

    def sharpness(blurs):
        torch.manual_seed(1)
        step = MultiCrop(64, 16, 0, global_ratio=(1., 1.), blurs=blurs)
        return np.mean([np.abs(np.diff(step(dict(img=noise))['img'][0].astype(int), axis=1)).mean()
                        for _ in range(20)])

    assert sharpness(True) < 0.7 * sharpness(False)


@pytest.mark.parametrize('image', [np.zeros((9, 9), np.uint8), np.zeros((9, 9, 4), np.uint8), np.zeros((9, 9, 3))])
def test_other_images_are_an_error_that_says_what_is_needed(image):
    with pytest.raises(DataError, match='three channels of bytes, as LoadImageFromFile reads them; got the shape'):
        MultiCrop()(dict(img=image))


def test_a_resumed_run_draws_the_same_views_with_and_without_workers(tmp_path):
    for i in range(8):
        Image.fromarray(np.random.RandomState(i).randint(0, 256, (40, 50, 3), np.uint8)).save(tmp_path / f'{i}.png')
    data = UnlabelledImages(data_root=str(tmp_path), pipeline=[dict(type='LoadImageFromFile'), dict(
        type='MultiCrop', global_size=32, local_size=16, num_local=2)])

    def batches(workers, begin):
        loader = ResumableLoader(DataLoader(data, batch_size=2, num_workers=workers, collate_fn=lambda batch: batch), 3)
        loader.load_state_dict(dict(passes=1, batches=begin))
        torch.manual_seed(begin + workers)  # nothing depends on what came before
        return [np.concatenate([view.ravel() for sample in batch for view in sample['img']]) for batch in loader]

    whole = batches(0, 0)
    assert len(whole) == 4 and not np.array_equal(whole[0], whole[1])
    for workers, begin in ((0, 2), (1, 0), (2, 1)):
        assert all(map(np.array_equal, batches(workers, begin), whole[begin:]))
