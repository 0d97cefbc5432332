"""Data sets for detection as annotation tools export them: shapes on noise, drawn from a seed."""
import json
import shutil

import cv2
import numpy as np
import yaml

from helpers.exports_segmentation import save
from xcit_dense.data.demo import CLASSES, paint, texture

#: Folder and annotation file of each part of a Roboflow export.
ROBOFLOW = {part: f'{part}/_annotations.coco.json' for part in ('train', 'valid', 'test')}


def scenes(count, size=96, objects=3, radius=(0.1, 0.2), seed=0):
    """Yield images (size, size, 3) uint8 with objects apart, as shares of the side; each has a label and a mask."""
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        picture = texture(rng, size, size, 'noise', contrast=35).astype(np.uint8)
        found, taken = [], np.zeros((size, size), bool)
        for _ in range(20 * objects):
            if len(found) == objects:
                break
            reach = size * rng.uniform(*radius)
            centre = rng.uniform(1.3 * reach, size - 1.3 * reach, 2)
            x, y, far = *centre.astype(int), int(1.4 * reach) + 1
            if taken[max(y - far, 0):y + far, max(x - far, 0):x + far].any():
                continue
            label = int(rng.integers(3))
            mask = paint(rng, picture, label, centre, reach)
            taken |= mask
            found.append((label, mask))
        yield picture, found


def _outline(mask):
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return max(contours, key=len).reshape(-1, 2)


def _box(mask):
    x, y, width, height = cv2.boundingRect(mask.astype(np.uint8))
    return [float(x), float(y), float(width), float(height)]


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def coco(folder, pictures, name='{:03d}.jpg', named=None, first=1, category=lambda label: label + 1,
         categories=None, **more):
    """Save images below a folder and return their annotations in COCO's format.

    ``name`` is that of a file by its number, ``named`` what the annotations call it; ``first`` the lowest id of images
    and annotations.
    """
    images, annotations = [], []
    for number, (picture, objects) in enumerate(pictures):
        save(folder / name.format(number), picture)
        images.append(dict(id=first + 2 * number, file_name=(named or name).format(number), height=picture.shape[0],
                           width=picture.shape[1]))
        for label, mask in objects:
            outline = [_outline(mask).ravel().astype(float).tolist()]
            annotations.append(dict(id=first + len(annotations), image_id=images[-1]['id'], category_id=category(label),
                                    bbox=_box(mask), area=float(mask.sum()), segmentation=outline, iscrowd=0))
    categories = categories or [dict(id=label + 1, name=name) for label, name in enumerate(CLASSES[:3])]
    return dict(more, images=images, annotations=annotations, categories=categories)


def roboflow(root, train=8, valid=4, test=2, parent='shapes', **options):
    """A folder for each part with images next to annotations; ids from 0; a parent category without objects."""
    categories = [dict(id=0, name=parent, supercategory='none')] if parent else []
    categories += [dict(id=label + bool(parent), name=name, supercategory=parent or 'none')
                   for label, name in enumerate(CLASSES[:3])]
    for stream, (part, count) in enumerate(dict(train=train, valid=valid, test=test).items()):
        if count:
            _write(root / ROBOFLOW[part], coco(
                root / part, scenes(count, seed=stream, **options), '{:03d}_jpg.rf.0123456789abcdef.jpg', first=0,
                categories=categories, category=lambda label: label + bool(parent)))
    return root


def one_file(root, count=12, file='annotations.json', folder='images', seed=0):
    """One annotation file for all images, which are in a folder next to it."""
    _write(root / file, coco(root / folder, scenes(count, seed=seed)))
    return root


def cvat(root, parts=('default', ), folders=True):
    """CVAT's export in COCO's format: a file for each subset, images in folders of the subsets, or in one."""
    for stream, part in enumerate(parts):
        folder = root / 'images' / part if folders else root / 'images'
        name = '{:03d}.jpg' if folders else part + '_{:03d}.jpg'
        content = coco(folder, scenes(6, seed=stream), name, licenses=[dict(name='', id=0, url='')])
        for category in content['categories']:
            category['supercategory'] = ''
        _write(root / f'annotations/instances_{part}.json', content)
    return root


def label_studio(root, count=6, named='images/{:03d}.jpg'):
    """Label Studio's export in COCO's format: ``result.json`` with ids from 0 and a folder in the file names."""
    categories = [dict(id=label, name=name) for label, name in enumerate(CLASSES[:3])]
    content = coco(root / 'images', scenes(count), named=named, first=0, categories=categories,
                   category=lambda label: label)
    for annotation in content['annotations']:
        annotation['ignore'] = 0
    _write(root / 'result.json', content)
    return root


def fiftyone(root, parts=()):
    """FiftyOne's export: ``data/`` and ``labels.json``, for all images or in a folder for each part."""
    for stream, part in enumerate(parts or ('', )):
        one_file(root / part, 6, 'labels.json', 'data', stream)
    return root


def yolo(root, parts=('train', 'val'), counts=(8, 4), polygons=False, form='ultralytics'):
    """YOLO labels as of Ultralytics (``images/train``, ``labels/train``), of ``roboflow`` (``train/images``, called
    ``../train/images``), with ``lists`` of images in text files, or ``bare``, without ``data.yaml``."""
    entries = {}
    for stream, (part, count) in enumerate(zip(parts, counts, strict=True)):
        folder = 'valid' if form == 'roboflow' and part == 'val' else part
        images, labels = ((root / folder / 'images', root / folder / 'labels') if form == 'roboflow' else
                          (root / 'images' / folder, root / 'labels' / folder))
        labels.mkdir(parents=True, exist_ok=True)
        for number, (picture, objects) in enumerate(scenes(count, seed=stream)):
            save(images / f'{number:03d}.jpg', picture)
            lines = [_label(label, mask, polygons) for label, mask in objects]
            (labels / f'{number:03d}.txt').write_text('\n'.join(lines) + '\n')
        entries[part] = f'../{folder}/images' if form == 'roboflow' else f'images/{folder}'
        if form == 'lists':
            entries[part] = f'{part}.txt'
            (root / entries[part]).write_text(''.join(f'./images/{folder}/{n:03d}.jpg\n' for n in range(count)))
    names = list(CLASSES[:3])
    if form == 'bare':
        (root / 'classes.txt').write_text('\n'.join(names) + '\n')
    else:
        above = dict(path='.') if form == 'ultralytics' else {}
        numbered = names if form == 'roboflow' else dict(enumerate(names))
        (root / 'data.yaml').write_text(yaml.safe_dump(dict(above, **entries, nc=len(names), names=numbered)))
    return root


def yolo_of_cvat(root, count=4):
    """CVAT's "YOLO 1.1": ``obj.data``, names, and lists with paths in a missing folder ``data``."""
    yolo(root / 'made', ('train', ), (count, ), form='bare')
    (root / 'obj_train_data').mkdir()
    for path in sorted(root.glob('made/*/train/*')):
        path.rename(root / 'obj_train_data' / path.name)
    shutil.rmtree(root / 'made')
    (root / 'obj.names').write_text('\n'.join(CLASSES[:3]) + '\n')
    (root / 'obj.data').write_text('classes = 3\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n')
    (root / 'train.txt').write_text(''.join(f'data/obj_train_data/{number:03d}.jpg\n' for number in range(count)))
    return root


def _label(label, mask, polygons):
    height, width = mask.shape
    if polygons:
        numbers = (_outline(mask) / (width, height)).ravel()
    else:
        x, y, w, h = _box(mask)
        numbers = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
    return ' '.join([str(label), *(f'{number:.6f}' for number in numbers)])
