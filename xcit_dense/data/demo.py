"""A generated data set: textured scenes with overlapping objects, and images of one object each."""
import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as mask_api

from .._utils.files import OwnFiles
from ..errors import ConfigError, OutputError

#: By split: the folders of COCO's layout, of ADE20k's layout and of its label maps, with the suffix of their files.
_FOLDERS = {split: {f'{split}2017': '.jpg', f'images/{split_ade}': '.jpg', f'annotations/{split_ade}': '.png'}
            for split, split_ade in (('train', 'training'), ('val', 'validation'))}
#: Share of an object that must be visible for it to be annotated.
_MIN_VISIBLE = 0.35
#: The names of the shapes in the order of their numbers.
CLASSES = ('disc', 'square', 'triangle', 'star', 'cross')
#: The texture of each shape.
_TEXTURES = ('rings', 'stripes', 'plain', 'checks', 'noise')


def make_demo_data(root, num_train: int = 480, num_val: int = 80, size: int = 192, seed: int = 0, classes=CLASSES,
                   grey: bool = False):
    """Write a data set in two layouts, and one for classification; the same arguments write the same files.

    Files of a larger data set that this function wrote there before are deleted; all other files stay as they are.

    Args:
        root: Folder to write into: new, empty, or written by this function. The layout of COCO:
            ``annotations/instances_{train,val}2017.json``, ``train2017/``, ``val2017/``. The layout of ADE20k, with
            the same images: ``images/{training,validation}/*.jpg``, ``annotations/{training,validation}/*.png`` (0
            is the background, then the classes) and their names in ``classes.txt``. Class folders:
            ``classes/{train,val}/NAME/*.jpg``, with half as many images of each class as there are scenes, half as
            large.
        size: Longer side of an image in pixels; the shorter side is at least 3/4 of it.
        classes: Names from `CLASSES`, in the order of the labels; no other object is drawn.
        grey: Whether the images are grey, with equal histograms, and those in class folders have nothing behind the
            object. What is random and not of the class, such as colours, is what learning without labels finds first.

    Raises:
        ConfigError: A number is too small, or a class is unknown or repeated; nothing is written then.
        OutputError: The folder has other data, or a file that was changed since it was written; nothing is written.
    """
    for name, value, least in (('train', num_train, 1), ('val', num_val, 1), ('size', size, 4), ('seed', seed, 0)):
        if value < least:
            raise ConfigError(f'--{name} must be {least} or more, not {value}')
    unknown = [name for name in classes if name not in CLASSES]
    if unknown or not classes or len(set(classes)) < len(classes):
        raise ConfigError(f'--classes accepts {", ".join(CLASSES)}, each at most once; got {" ".join(classes)}')
    kinds = tuple(map(CLASSES.index, classes))
    root, splits = Path(root).expanduser(), dict(train=num_train, val=num_val)
    with OwnFiles(root, 'make_demo_data', overwrite=None) as own:
        before = own.names()
        if root.is_dir() and not before and (others := sorted(os.listdir(root))):
            raise OutputError(f'{root} has files that make_demo_data did not write or did not finish, such as '
                              f'{others[0]}. Use a new or empty folder')
        names = ['classes.txt']
        for split, count in splits.items():
            names.append(f'annotations/instances_{split}2017.json')
            names += [f'{folder}/{number:012d}{suffix}' for folder, suffix in _FOLDERS[split].items()
                      for number in range(1, count + 1)]
            names += [name for *_, name in _pictures(split, count, kinds)]
        own.claim(*names)
        for name in before.difference(names):
            (root / name).unlink()
        for stream, (split, count) in enumerate(splits.items()):
            _write_split(root, split, count, size, seed, stream, kinds, grey)
            for kind, number, name in _pictures(split, count, kinds):
                rng = np.random.default_rng((seed, len(splits) + stream, kind, number))
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                _write_image(root / name, _draw_picture(rng, kind, max(size // 2, 4), alone=grey), grey)
        (root / 'classes.txt').write_text('\n'.join(('background', *classes)) + '\n')


def _write_split(root, split, count, size, seed, stream, kinds, grey):
    folder, copies, label_maps = (root / name for name in _FOLDERS[split])
    for path in (folder, copies, label_maps):
        path.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for index in range(count):
        rng = np.random.default_rng((seed, stream, index))
        picture, objects, labels = _draw_scene(rng, size, kinds)
        image = dict(id=index + 1, file_name=f'{index + 1:012d}.jpg', height=picture.shape[0], width=picture.shape[1])
        file = folder / image['file_name']
        _write_image(file, picture, grey)
        shutil.copyfile(file, copies / file.name)
        cv2.imwrite(str(label_maps / f'{file.stem}.png'), labels)
        images.append(image)
        for label, mask, is_crowd in objects:
            annotations.append(dict(id=len(annotations) + 1, image_id=image['id'], category_id=label + 1,
                                    **_describe(mask, is_crowd)))
    content = dict(
        info=dict(description='generated scenes of xcit_dense', version=f'size {size}, seed {seed}'),
        licenses=[], images=images, annotations=annotations,
        categories=[dict(id=i + 1, name=CLASSES[kind], supercategory='shape') for i, kind in enumerate(kinds)])
    (root / 'annotations' / f'instances_{split}2017.json').write_text(json.dumps(content))


def _pictures(split, count, kinds):
    """Return the index in `CLASSES`, the number and the file of each image of one object."""
    return [(kind, number, f'classes/{split}/{CLASSES[kind]}/{CLASSES[kind]}_{number:04d}.jpg') for kind in kinds
            for number in range(1, max(count // 2, 1) + 1)]


def _write_image(file, picture, grey):
    if grey:
        picture = cv2.equalizeHist(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY))
    cv2.imwrite(str(file), picture, [cv2.IMWRITE_JPEG_QUALITY, 92])


def _draw_picture(rng, kind, size, alone):
    """Draw an image (size, size, 3) uint8 of one object, before a patch with a random texture, or larger and alone."""
    picture, radius = texture(rng, size, size, 'noise', contrast=35).astype(np.uint8), (0.25, 0.45)
    if not alone:
        radius = 0.2, 0.36
        paint_patch(rng, picture, rng.uniform(0.1, 0.9, 2) * size, size * rng.uniform(0.25, 0.45))
    paint(rng, picture, kind, rng.uniform(0.35, 0.65, 2) * size, size * rng.uniform(*radius))
    return picture


def _draw_scene(rng, size, kinds):
    """Return a scene with objects of some indices in `CLASSES`: the image (H, W, 3) uint8; the objects that are visible
    enough as (label, mask (H, W) bool, is_crowd); the label map (H, W) uint8 of what is visible, 0 for the background.
    """
    sides = [size, int(rng.integers(size * 3 // 4, size + 1))]
    height, width = sides if rng.random() < 0.5 else sides[::-1]
    picture = texture(rng, height, width, 'noise', contrast=35).astype(np.uint8)
    objects = []  # (label, visible mask, is_crowd, whole area), back to front
    if rng.random() < 0.15:
        label = int(rng.integers(len(kinds)))
        corner = rng.integers(0, [width - size // 4, height - size // 4])
        mask = np.zeros((height, width), bool)
        for _ in range(12):
            mask |= paint(rng, picture, kinds[label], corner + rng.integers(0, size // 4, 2), size * 0.035)
        objects.append((label, mask, True, mask.sum()))
    for _ in range(int(rng.integers(2, 6))):
        label = int(rng.integers(len(kinds)))
        centre = rng.uniform(0.05, 0.95, 2) * (width, height)
        mask = paint(rng, picture, kinds[label], centre, size * rng.uniform(0.10, 0.24))
        objects = [(k, m & ~mask, crowd, area) for k, m, crowd, area in objects]
        objects.append((label, mask, False, mask.sum()))
    labels = np.zeros((height, width), np.uint8)
    for label, mask, _, _ in objects:
        labels[mask] = label + 1
    return picture, [(k, m, crowd) for k, m, crowd, area in objects if m.sum() > _MIN_VISIBLE * area], labels


def _describe(mask, is_crowd):
    """Return the fields of a COCO annotation: polygons for an object, RLE for a crowd."""
    rle = mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    if is_crowd:
        segmentation = dict(size=list(mask.shape), counts=rle['counts'].decode())
    else:
        contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        segmentation = [c.flatten().astype(float).tolist() for c in contours if len(c) >= 3]
    return dict(segmentation=segmentation, area=float(mask_api.area(rle)), bbox=mask_api.toBbox(rle).tolist(),
                iscrowd=int(is_crowd))


def paint(rng, picture, label, centre, radius):
    """Paint a shape, by its number, over an image (H, W, 3) uint8; return the pixels that it covers (H, W) bool.

    Its centre is x and y in pixels, and its radius about so many pixels.
    """
    outline = _outline(CLASSES[label], rng.uniform(-0.35, 0.35)) * radius + np.asarray(centre)
    return _fill(rng, picture, outline, _TEXTURES[label])


def paint_patch(rng, picture, centre, radius):
    """Paint a patch without a shape, with the texture of any; otherwise as `paint`."""
    turn = np.linspace(0, 2 * np.pi, 9, endpoint=False) + rng.uniform(-0.3, 0.3, 9)
    outline = np.stack([np.cos(turn), np.sin(turn)], 1) * rng.uniform(0.6, 1.3, (9, 1)) * radius + np.asarray(centre)
    return _fill(rng, picture, outline, _TEXTURES[rng.integers(len(_TEXTURES))])


def _fill(rng, picture, outline, kind):
    mask = np.zeros(picture.shape[:2], np.uint8)
    corners = [np.round(outline).astype(np.int32)]
    cv2.fillPoly(mask, corners, 1)
    covered = mask.astype(bool)
    colours = texture(rng, *mask.shape, kind, contrast=70)
    shade = np.linspace(0.8, 1.15, mask.shape[0])[:, None, None]
    picture[covered] = np.clip(colours * shade, 0, 255).astype(np.uint8)[covered]
    cv2.polylines(picture, corners, True, [int(c) for c in rng.integers(0, 60, 3)], 1, cv2.LINE_AA)
    return covered


def _outline(name, angle):
    """Return the corners (n, 2) of a shape of radius 1."""
    if name == 'disc':
        turn, radius = np.linspace(0, 2 * np.pi, 40, endpoint=False), 1
    elif name == 'square':
        turn, radius = np.arange(4) * np.pi / 2 + np.pi / 4, 1.15
    elif name == 'triangle':
        turn, radius = np.arange(3) * 2 * np.pi / 3 - np.pi / 2, 1.2
    elif name == 'star':
        turn, radius = np.arange(10) * np.pi / 5 - np.pi / 2, np.where(np.arange(10) % 2, 0.5, 1.2)
    else:
        arm = 0.36
        corners = np.array([[-arm, -1], [arm, -1], [arm, -arm], [1, -arm], [1, arm], [arm, arm], [arm, 1], [-arm, 1],
                            [-arm, arm], [-1, arm], [-1, -arm], [-arm, -arm]])
        turn, radius = np.arctan2(corners[:, 1], corners[:, 0]), np.hypot(*corners.T)
    return np.stack([np.cos(turn + angle), np.sin(turn + angle)], axis=1) * np.reshape(radius, (-1, 1))


def texture(rng, height, width, kind, contrast):
    """Return a texture (H, W, 3) float of two random colours."""
    y, x = np.mgrid[:height, :width]
    period = rng.uniform(6, 12)
    if kind == 'rings':
        pattern = np.sin(np.hypot(x - width / 2, y - height / 2) * 2 * np.pi / period)
    elif kind == 'stripes':
        turn = rng.uniform(0, np.pi)
        pattern = np.sin((x * np.cos(turn) + y * np.sin(turn)) * 2 * np.pi / period)
    elif kind == 'checks':
        pattern = np.sign(np.sin(x * 2 * np.pi / period) * np.sin(y * 2 * np.pi / period))
    elif kind == 'noise':
        coarse = rng.normal(size=(height // 8 + 2, width // 8 + 2)).astype(np.float32)
        pattern = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    else:
        pattern = np.zeros((height, width))
    base, tint = rng.uniform(70, 200, 3), rng.uniform(0.3, 1, 3)
    grain = rng.normal(scale=6, size=(height, width, 1))
    return np.clip(base + pattern[..., None] * tint * contrast + grain, 0, 255)
