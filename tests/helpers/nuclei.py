"""Data similar to stained nuclei: many objects of twelve pixels on images of 300 to 600, in the layout of COCO."""
import json
from pathlib import Path

import cv2
import numpy as np

CLASSES = ('tumour', 'lymphocyte')


def make_nuclei(root, num_train=32, num_val=12, sides=(300, 600), most=150, seed=0) -> Path:
    """Write images with ``sides`` in pixels and at most ``most`` objects; large ones have at least a fifth of them."""
    root = Path(root)
    for stream, (split, count) in enumerate(dict(train=num_train, val=num_val).items()):
        (root / f'{split}2017').mkdir(parents=True)
        images, annotations = [], []
        for number in range(1, count + 1):
            picture, objects = _draw(np.random.default_rng((seed, stream, number)), sides, most)
            name = f'{number:04d}.png'
            cv2.imwrite(str(root / f'{split}2017' / name), picture)
            images.append(dict(id=number, file_name=name, height=picture.shape[0], width=picture.shape[1]))
            for label, outline in objects:
                low, high = outline.min(0), outline.max(0)
                annotations.append(dict(
                    id=len(annotations) + 1, image_id=number, category_id=label + 1, iscrowd=0,
                    segmentation=[outline.ravel().tolist()], bbox=[*low.tolist(), *(high - low).tolist()],
                    area=float(cv2.contourArea(outline.astype(np.float32)))))
        (root / 'annotations').mkdir(exist_ok=True)
        (root / f'annotations/instances_{split}2017.json').write_text(json.dumps(dict(
            images=images, annotations=annotations,
            categories=[dict(id=label, name=name) for label, name in enumerate(CLASSES, 1)])))
    return root


def _draw(rng, sides, most):
    """Return an image (H, W, 3) uint8, and the objects as label and outline (n, 2) in pixels."""
    height, width = rng.integers(sides[0], sides[1] + 1, 2)
    coarse = cv2.resize(rng.normal(size=(height // 24 + 2, width // 24 + 2)).astype(np.float32), (width, height),
                        interpolation=cv2.INTER_CUBIC)
    picture = np.array([205, 175, 225]) + coarse[..., None] * [10, 16, 8]
    count, objects, taken = int(rng.integers(most // 5, most + 1)), [], np.zeros((height, width), np.uint8)
    for _ in range(4 * count):
        if len(objects) == count:
            break
        label = int(rng.random() < 0.35)
        axes = rng.uniform(4.6, 9, 2) if label == 0 else np.full(2, rng.uniform(3.8, 5.6)) * rng.uniform(0.92, 1.08, 2)
        centre = rng.uniform(0, 1, 2) * (width, height)
        outline = cv2.ellipse2Poly(tuple(map(int, centre.round())), tuple(map(int, axes.round())),
                                   int(rng.integers(180)), 0, 360, 20)
        outline = np.clip(outline, 0, [width - 1, height - 1])
        low, high = outline.min(0), outline.max(0) + 1
        window = slice(low[1], high[1]), slice(low[0], high[0])
        mask = cv2.fillPoly(np.zeros(high[::-1] - low[::-1], np.uint8), [outline - low], 1) > 0
        if mask.sum() < 30 or taken[window][mask].mean() > 0.1:
            continue
        taken[window] |= mask
        base = np.array([160, 85, 135]) if label == 0 else np.array([110, 40, 65])
        picture[window][mask] = base + rng.normal(scale=12) + rng.normal(scale=14, size=(mask.sum(), 1))
        objects.append((label, outline))
    picture = cv2.GaussianBlur(picture.astype(np.float32), (3, 3), 0) + rng.normal(scale=5, size=picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8), objects
