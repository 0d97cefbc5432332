"""Data similar to stained nuclei: many objects of twelve pixels on images of 300 to 600, in the layout of COCO."""
import json
from pathlib import Path

import cv2
import numpy as np

CLASSES = ('tumour', 'lymphocyte')


def make_nuclei(root, num_train=32, num_val=12, sides=(300, 600), most=150, seed=0) -> Path:
    """Write ``annotations/instances_{train,val}2017.json`` and the folders ``train2017`` and ``val2017``.

    The ``sides`` of images are in pixels. They have ``most`` objects at most, and large ones at least a fifth of them.
    """
    root = Path(root)
    (root / 'annotations').mkdir(parents=True)
    for stream, (split, count) in enumerate(dict(train=num_train, val=num_val).items()):
        (root / f'{split}2017').mkdir()
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
        (root / f'annotations/instances_{split}2017.json').write_text(json.dumps(dict(
            images=images, annotations=annotations,
            categories=[dict(id=label, name=name) for label, name in enumerate(CLASSES, 1)])))
    return root


def _draw(rng, sides, most):
    """Return an image (H, W, 3) uint8, and the objects as label and outline (n, 2) in pixels."""
    height, width = rng.integers(sides[0], sides[1] + 1, 2)
    picture, objects = rng.normal((205, 175, 225), 10, (height, width, 3)), []
    places = [(x, y) for x in range(12, width - 12, 18) for y in range(12, height - 12, 18)]
    for x, y in rng.permutation(places)[:rng.integers(most // 5, most + 1)].tolist():
        label = int(rng.random() < 0.35)
        axes = rng.uniform(4.6, 9, 2) if label == 0 else rng.uniform(3.8, 5.6, 2)
        outline = cv2.ellipse2Poly((x, y), tuple(map(int, axes.round())), int(rng.integers(180)), 0, 360, 20)
        cv2.fillPoly(picture, [outline], rng.normal([(160, 85, 135), (110, 40, 65)][label], 12).tolist())
        objects.append((label, outline))
    return np.clip(cv2.GaussianBlur(picture, (3, 3), 0), 0, 255).astype(np.uint8), objects
