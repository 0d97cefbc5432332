"""Data for segmentation as annotation tools export it: tiny seeded images whose colours show their classes."""
import csv
import json
from pathlib import Path

import numpy as np
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

CAMVID = ('sky', 'road', 'pole', 'car', 'void')
COLOURS = dict(sky=(128, 128, 128), road=(128, 64, 128), pole=(192, 192, 128), car=(64, 0, 128), void=(0, 0, 0))
#: Colour of the pixels of each label.
_LOOKS = np.array([(90, 160, 230), (90, 90, 90), (230, 200, 40), (200, 30, 30), (20, 20, 20)], np.uint8)
VOID = CAMVID.index('void')


def scene(seed: int, size=(48, 40)):
    """Return an image (H, W, 3) and its labels (H, W): sky over road, a car, a pole of two pixels, a void border."""
    width, height = size
    random = np.random.default_rng(seed)
    labels = np.zeros((height, width), np.uint8)
    labels[random.integers(height // 3, height // 2):] = 1
    x, y = random.integers(4, width - 18), random.integers(height // 2, height - 10)
    labels[y:y + 8, x:x + 12] = 3
    x = random.integers(4, width - 6)
    labels[4:height - 4, x:x + 2] = 2
    labels[-3:] = VOID
    image = _LOOKS[labels].astype(int) + random.integers(-20, 21, (height, width, 1))
    return np.clip(image, 0, 255).astype(np.uint8), labels


def pairs(root, images, maps, names, first=0, image='.jpg', label='.png', change=lambda labels: labels):
    """Write scenes into two folders; ``change`` converts their labels to the content of a file."""
    for number, name in enumerate(names, first):
        picture, labels = scene(number)
        save(Path(root, images, f'{name}{image}'), picture)
        save(Path(root, maps, f'{name}{label}'), change(labels))
    return Path(root)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def coloured(labels):
    return np.array(list(COLOURS.values()), np.uint8)[labels]


def names(count, prefix='s'):
    return [f'{prefix}{number:03}' for number in range(count)]


def camvid(root, train=4, val=2, listed=CAMVID):
    """``train``, ``trainannot`` and so on, as SegNet's CamVid; the last label is void."""
    for first, (part, count) in zip((0, 100, 200), (('train', train), ('val', val), ('test', 2)), strict=True):
        pairs(root, part, f'{part}annot', names(count, part), first, '.png')
    if listed:
        (root / 'classes.txt').write_text('\n'.join(listed))
    return root


def camvid_colours(root):
    """``train``, ``train_labels`` and so on in colour with ``class_dict.csv``, as on Kaggle."""
    for first, part in ((0, 'train'), (100, 'val')):
        pairs(root, part, f'{part}_labels', names(3, part), first, '.png', '_L.png', coloured)
    with open(root / 'class_dict.csv', 'w', newline='') as file:
        csv.writer(file).writerows([('name', 'r', 'g', 'b'), *((name, *rgb) for name, rgb in COLOURS.items())])
    return root


def voc(root, below=''):
    """VOC: palette PNGs, lists, and an image without a label map."""
    base = root / below
    pairs(base, 'JPEGImages', 'SegmentationClass', names(5))
    for path in (base / 'SegmentationClass').iterdir():
        labels = Image.open(path)
        labels.putpalette(np.array(list(COLOURS.values()), np.uint8).tobytes())
        labels.save(path)
    save(base / 'JPEGImages/boxes_alone.jpg', scene(9)[0])
    lists = base / 'ImageSets/Segmentation'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_text('\n'.join(names(3)))
    (lists / 'val.txt').write_text('\n'.join(names(5)[3:]))
    return root


def cvat(root):
    """CVAT's "Segmentation mask 1.1": VOC's folders, colours, ``labelmap.txt``, one list."""
    pairs(root, 'JPEGImages', 'SegmentationClass', names(5), change=coloured)
    (root / 'ImageSets/Segmentation').mkdir(parents=True)
    (root / 'ImageSets/Segmentation/default.txt').write_text('\n'.join(names(5)))
    lines = ['# label:color_rgb:parts:actions', *(f'{name}:{r},{g},{b}::' for name, (r, g, b) in COLOURS.items())]
    (root / 'labelmap.txt').write_text('\n'.join(lines))
    return root


def label_studio(root):
    """Images, and a PNG for each task and tag, with the JSON export of the tasks; one task has an older annotation."""
    tasks = []
    for number, name in enumerate(names(4)):
        picture, labels = scene(number)
        save(root / 'images' / f'{name}.jpg', picture)
        forms = (dict(data=dict(image=f'/data/upload/1/ab12cd-{name}.jpg')), dict(image=f'images\\{name}.jpg'),
                 dict(file_upload=f'ab12cd-{name}.jpg', data=dict(text='no image')))
        tasks.append(dict(id=10 + number, **forms[number % 3]))
        for label in (2, 3):
            mask = np.where(labels == label, 255, 0).astype(np.uint8)
            save(root / f'masks/task-{10 + number}-annotation-{20 + number}-by-1-tag-{CAMVID[label]}-0.png', mask)
    save(root / 'masks/task-10-annotation-3-by-1-tag-car-0.png', np.full((40, 48), 255, np.uint8))
    save(root / 'images/not_annotated.jpg', scene(99)[0])
    (root / 'tasks.json').write_text(json.dumps(tasks))
    return root


def roboflow(root):
    """Images and ``_mask.png`` in one folder for each part, with ``_classes.csv``."""
    for part, count in (('train', 3), ('valid', 2)):
        pairs(root, part, part, names(count, part), label='_mask.png')
        rows = ''.join(f'{label}, {name}\n' for label, name in enumerate(CAMVID))
        (root / part / '_classes.csv').write_text(f'Pixel Value, Class\n{rows}')
    return root


def found(cfg, part='train'):
    """Return the labels that the pipeline of a segmentor loads, for each image of a part by its name."""
    init_default_scope('mmseg')
    dataset = cfg[f'{part}_dataloader'].dataset
    steps = [step for step in dataset.pipeline if step['type'] in ('LoadImageFromFile', 'LoadAnnotations')]
    built = DATASETS.build(dict(dataset, pipeline=steps))
    records = [built[place] for place in range(len(built))]
    return {Path(record['img_path']).name: record['gt_seg_map'] for record in records}
