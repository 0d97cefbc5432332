"""Data as tools save it in a file for each image, or as pictures of masks: the scenes of `exports`."""
import base64
import io
import json

import numpy as np
from annotations.exports import _box, _outline, scenes
from PIL import Image

from helpers.exports_segmentation import save
from xcit_dense.data.demo import CLASSES

PARTS = dict(train=4, val=2)
SIDES = 'xmin', 'ymin', 'xmax', 'ymax'


def xml(name, mask_or_boxes, size=(96, 96), filename=None, **fields):
    """Return the text of a file of Pascal VOC with objects (name, box as x1, y1, x2, y2)."""
    objects = ''.join(
        f'<object><name>{kind}</name><pose>Unspecified</pose><truncated>0</truncated>'
        f'<difficult>{fields.get("difficult", 0)}</difficult><bndbox>'
        + ''.join(f'<{side}>{value}</{side}>' for side, value in zip(SIDES, box, strict=True))
        + '</bndbox><part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>'
        '</part></object>' for kind, box in mask_or_boxes)
    return (f'<annotation><folder>x</folder><filename>{name if filename is None else filename}</filename><path>'
            f'C:\\pictures\\{name}</path><size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>'
            f'<segmented>0</segmented>{objects}</annotation>')


def boxes(objects):
    """Return names and boxes of objects of `scenes`."""
    return [(CLASSES[label], (x, y, x + w, y + h)) for label, mask in objects for x, y, w, h in [_box(mask)]]


def voc(root, form='voc'):
    """Pascal VOC: ``voc``, with lists; ``devkit``, the same below VOCdevkit/VOC2007; ``cvat``, with a list default.txt;
    ``roboflow``, beside the images in a folder for each part; ``flat``, one folder, as LabelImg."""
    base = root / 'VOCdevkit/VOC2007' if form == 'devkit' else root
    for stream, (part, count) in enumerate(PARTS.items()):
        folder = {'roboflow': base / dict(val='valid').get(part, part), 'flat': base}.get(form)
        images, labels = (folder or base / 'JPEGImages'), (folder or base / 'Annotations')
        for number, (picture, objects) in enumerate(scenes(count, seed=stream)):
            name = f'{part}{number}' if form != 'roboflow' else f'{number}_jpg.rf.0123456789abcdef{stream}'
            save(images / f'{name}.jpg', picture)
            labels.mkdir(parents=True, exist_ok=True)
            (labels / f'{name}.xml').write_text(xml(f'{name}.jpg', boxes(objects)))
        if not folder:
            lists = base / 'ImageSets/Main'
            lists.mkdir(parents=True, exist_ok=True)
            with open(lists / ('default.txt' if form == 'cvat' else f'{part}.txt'), 'a') as file:
                file.write(''.join(f'{part}{number}\n' for number in range(count)))
            (lists / 'disc_train.txt').write_text('train0 -1\n')
    if form == 'cvat':
        (base / 'labelmap.txt').write_text('# label:color_rgb:parts:actions\nbackground:0,0,0::\n' + ''.join(
            f'{name}:{number},9,9::\n' for number, name in enumerate(CLASSES[:3])))
    if form in ('voc', 'devkit'):
        (lists / 'trainval.txt').write_text('\n'.join(path.stem for path in labels.glob('*.xml')))
    return root


def shape(label, points, kind='polygon', **more):
    return dict(dict(label=label, points=points, group_id=None, description='', shape_type=kind, flags={}, mask=None),
                **more)


def png(pixels):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, 'PNG')
    return base64.b64encode(data.getvalue()).decode()


def labels(name, shapes, size=(96, 96), **more):
    """Return the content of a file of LabelMe."""
    return dict(dict(version='5.5.0', flags={}, shapes=shapes, imagePath=name, imageData=None, imageHeight=size[1],
                     imageWidth=size[0]), **more)


def labelme(root, parts=None, apart=False, embed=False):
    """LabelMe: a JSON file beside each image, or in ``labels/`` with a path of Windows, or with the image in it."""
    for stream, (part, count) in enumerate((parts or {'': 6}).items()):
        for number, (picture, objects) in enumerate(scenes(count, seed=stream)):
            name = f'{part or "a"}{number}.jpg'
            if not embed:
                save((root / 'images' if apart else root) / part / name, picture)
            shapes = [shape(CLASSES[label], _outline(mask).tolist()) for label, mask in objects]
            file = (root / 'labels' if apart else root) / part / f'{name[:-4]}.json'
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(labels(f'..\\images\\{part}\\{name}' if apart else name, shapes, **(
                dict(imageData=png(picture)) if embed else {}))))
    return root


def folders_of_objects(root):
    """The 2018 Data Science Bowl: a folder for each image, a file for each object; the test has no masks."""
    for number, (picture, objects) in enumerate(scenes(5)):
        base = root / f'stage1_train/{number:04x}beef'
        save(base / f'images/{number:04x}beef.png', picture)
        for place, (_, mask) in enumerate(objects):
            save(base / f'masks/{place:04x}f00d.png', mask.astype(np.uint8) * 255)
    save(root / 'stage1_test/ffff/images/ffff.png', picture)
    return root


def numbered(objects, first=1):
    """Return the picture of instance numbers of objects of `scenes`."""
    numbers = np.zeros((96, 96), np.uint16)
    for number, (_, mask) in enumerate(objects, first):
        numbers[mask] = number
    return numbers


def numbers(root, form='cellpose', count=6):
    """Pictures of instance numbers: ``cellpose``, ``a_img.png`` and ``a_masks.png``; ``pairs`` of 8 bits; ``tiff`` in
    ``train/images`` and so on, ``npy``; the last image has an object less."""
    for number, (picture, objects) in enumerate(scenes(count)):
        found = numbered(objects[:2] if number == count - 1 else objects)
        if form == 'cellpose':
            save(root / f'{number:03}_img.png', picture)
            save(root / f'{number:03}_cp_masks.png', found)
            np.save(root / f'{number:03}_seg.npy', {'masks': found}, allow_pickle=True)
            continue
        base = root / ('test' if number > 3 else 'train') if form == 'tiff' else root
        save(base / f'images/{number:03}.jpg', picture)
        (base / 'masks').mkdir(parents=True, exist_ok=True)
        if form == 'npy':
            np.save(base / f'masks/{number:03}.npy', found.astype(np.int32))
        else:
            save(base / f'masks/{number:03}.{"tif" if form == "tiff" else "png"}',
                 found if form == 'tiff' else found.astype(np.uint8))
    return root
