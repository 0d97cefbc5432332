"""Counting the pixels of a test: exact figures on maps that are small enough to count by hand."""
import numpy as np
import pytest
import torch

from xcit_dense.report.pixels import PixelCounts, areas_of

VOID = 255


def counts_of(*images, classes=3, ignored=VOID, kept=24):
    """Count pairs of ground truth and prediction, which are lists of rows."""
    counts = PixelCounts(classes, ignored, kept)
    for place, maps in enumerate(images):
        counts.add(place, f'{place}.png', *map(torch.tensor, maps))
    return counts


def test_pixels_are_counted_with_truth_in_rows():
    counts = counts_of(([[0, 0, 1], [1, 1, VOID]], [[0, 2, 1], [1, 0, 1]]), ([[0]], [[0]]))
    assert counts.confusion.tolist() == [[2, 0, 1, 0], [1, 2, 0, 0], [0] * 4, [0] * 4]
    assert counts.images_of.tolist() == [2, 1, 0]
    assert [part.tolist() for part in areas_of(counts.confusion)] == [[2, 2, 0], [4, 3, 1], [3, 2, 1], [3, 3, 0]]


def test_figures_of_an_image():
    """A class counts if the ground truth or the prediction has it."""
    image, = counts_of(([[0, 0, 1], [1, 1, VOID]], [[0, 2, 1], [1, 0, 1]])).images
    assert image.path == '0.png' and image.wrong == 0.4
    assert image.miou == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert image.confused[:2] in ((0, 2), (1, 0)) and image.confused[2] == 0.2
    perfect, ignored = counts_of(([[1, 1]], [[1, 1]]), ([[VOID]], [[1]])).images
    assert (perfect.miou, perfect.wrong, perfect.confused) == (1, 0, None)
    assert (ignored.miou, ignored.wrong, ignored.confused) == (None, None, None)


def test_labels_that_are_no_class_are_wrong():
    """As mmseg counts them: in the union of the class that was predicted there."""
    counts = counts_of(([[7, 7, 0, 0]], [[7, 0, 0, -1]]))
    assert counts.confusion[3].tolist() == [1, 0, 0, 1] and counts.confusion[0].tolist() == [1, 0, 0, 1]
    assert counts.images[0].miou == pytest.approx(1 / 3) and counts.images[0].wrong == 0.75


@pytest.mark.parametrize('ignored, classes, kind', ((VOID, 3, torch.uint8), (VOID, 3, torch.int64), (0, 3, torch.int32),
                                                    (VOID, 255, torch.int64), (65535, 1000, torch.int64)))
def test_label_maps_of_the_worst_are_kept_whole(ignored, classes, kind):
    noise = torch.Generator().manual_seed(0)
    truth, prediction = (torch.randint(0, min(classes, 255), (31, 17), generator=noise).to(kind) for _ in '12')
    truth[:9] = ignored
    counts = PixelCounts(classes, ignored, 1)
    counts.add(0, 'a.png', truth, prediction)
    image, = counts.worst()
    for compressed, wanted in ((image.truth, truth), (image.prediction, prediction)):
        labels, void = counts.labels_of(compressed)
        assert labels.shape == (31, 17) and ((labels == void) == (truth == ignored).numpy()).all()
        assert np.array_equal(labels[labels != void], wanted[truth != ignored].numpy())


def test_the_worst_images_are_kept_the_worst_first():
    """Of equal ones those that come first in the data set."""
    images = [([[0] * 4], [[0] * right + [1] * (4 - right)]) for right in (4, 1, 3, 1, 0, 2)]
    counts = counts_of(*images, ([[VOID] * 4], [[0] * 4]), kept=3)
    assert [image.figures.place for image in counts.worst()] == [4, 1, 3]
    assert len(counts.images) == 7


def test_processes_are_joined():
    noise = np.random.default_rng(0)
    images = [(noise.integers(0, 3, (4, 4)).tolist(), noise.integers(0, 3, (4, 4)).tolist()) for _ in range(12)]
    whole, parts = counts_of(*images, kept=5), []
    for rank in (0, 1):
        part = PixelCounts(3, VOID, 5)
        for place in range(rank, 12, 2):
            part.add(place, f'{place}.png', *map(torch.tensor, images[place]))
        parts.append(part)
    parts[0].join(parts[1])
    assert (parts[0].confusion == whole.confusion).all() and (parts[0].images_of == whole.images_of).all()
    assert sorted(parts[0].images) == whole.images and parts[0].worst() == whole.worst()


def test_counts_are_exact_beyond_the_digits_of_float32():
    counts = PixelCounts(2, VOID, 1)
    counts.confusion[0, 0] = 10**11
    counts.add(0, 'a.png', torch.tensor([[0]]), torch.tensor([[0]]))
    assert counts.confusion[0, 0] == 10**11 + 1
