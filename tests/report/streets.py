"""Data similar to CamVid: streets with thin poles, rare signs and pixels without a class, as folders of maps."""
from pathlib import Path

import cv2
import numpy as np

CLASSES = ('sky', 'building', 'road', 'pavement', 'car', 'pole', 'sign')
#: The label of pixels without a class.
VOID = 255


def make_streets(root, num_train=40, num_val=12, size=(480, 360), seed=0) -> Path:
    """Write ``images/{training,validation}``, ``annotations/{training,validation}`` and ``classes.txt``.

    Args:
        root: Folder to write into.
        num_train: Training images.
        num_val: Validation images.
        size: Width and height of the images in pixels.
        seed: Of the random numbers.
    """
    root = Path(root)
    for stream, (split, count) in enumerate(dict(training=num_train, validation=num_val).items()):
        for part in ('images', 'annotations'):
            (root / part / split).mkdir(parents=True)
        for number in range(1, count + 1):
            picture, labels = _draw(np.random.default_rng((seed, stream, number)), *size)
            cv2.imwrite(str(root / f'images/{split}/{number:04d}.png'), picture)
            cv2.imwrite(str(root / f'annotations/{split}/{number:04d}.png'), labels)
    (root / 'classes.txt').write_text('\n'.join(CLASSES) + '\n')
    return root


def _draw(rng, width, height):
    """Return an image (H, W, 3) uint8 and its label map (H, W) uint8."""
    labels = np.zeros((height, width), np.uint8)
    horizon, left = int(height * rng.uniform(0.4, 0.55)), 0
    while left < width:
        right = left + int(rng.integers(width // 8, width // 3))
        labels[int(horizon * rng.uniform(0.1, 0.8)):horizon, left:right] = 1
        left = right + int(rng.integers(0, width // 8))
    labels[horizon:] = 3
    middle, foot = width * rng.uniform(0.4, 0.6), width * rng.uniform(0.3, 0.5)
    cv2.fillPoly(labels, [np.array([[middle - 20, horizon], [middle + 20, horizon], [middle + foot, height],
                                    [middle - foot, height]], np.int32)], 2)
    for _ in range(int(rng.integers(1, 5))):
        x, y = rng.uniform(0, width), rng.uniform(horizon, height * 0.9)
        half = (y - horizon) * 0.25 + 10
        cv2.rectangle(labels, (int(x - half), int(y - half)), (int(x + half), int(y + half * 0.4)), 4, -1)
    for _ in range(int(rng.integers(2, 7))):
        x, foot = int(rng.uniform(0, width)), int(rng.uniform(horizon + 10, height))
        top, thick = int(rng.uniform(0.1, 0.5) * horizon), int(rng.integers(2, 6))
        cv2.line(labels, (x, foot), (x, top), 5, thick)
        if rng.random() < 0.4:
            cv2.rectangle(labels, (x - 6, top), (x + 6, top + 12), 6, -1)
    colours = np.array([[230, 200, 170], [80, 100, 130], [90, 90, 90], [130, 120, 140], [60, 40, 120], [70, 75, 70],
                        [40, 190, 220]], float)
    colours = colours + rng.normal(scale=18, size=colours.shape)
    coarse = cv2.resize(rng.normal(size=(height // 16, width // 16)).astype(np.float32), (width, height),
                        interpolation=cv2.INTER_CUBIC)
    picture = cv2.GaussianBlur(colours[labels] + coarse[..., None] * 18, (3, 3), 0)
    picture += rng.normal(scale=8, size=picture.shape)
    for _ in range(3):  # areas without a label
        x, y = rng.integers(0, [width - 30, height - 20])
        labels[y:y + 20, x:x + 30] = VOID
    return np.clip(picture, 0, 255).astype(np.uint8), labels
