"""Generated data for the tests of the data check: its configs, and errors to plant in it."""
import json

import cv2
import numpy as np
from PIL import Image

import xcit_dense.for_mmseg  # noqa: F401  registers ImageFolderDataset
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.demo import CLASSES

ANNOTATIONS = 'annotations/instances_train2017.json'
NAN, INFINITE = float('nan'), float('inf')


def coco(root, **changes):
    """Return the config of the training set for detection."""
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_mask=True)]
    return dict(dict(type='CocoDataset', data_root=str(root), ann_file=ANNOTATIONS, metainfo=dict(classes=CLASSES),
                     data_prefix=dict(img='train2017/'), pipeline=pipeline), **changes)


def folders(root, **changes):
    """Return the config of the training set for segmentation."""
    return dict(dict(type='ImageFolderDataset', data_root=str(root),
                     metainfo=dict(classes=('background', *CLASSES)),
                     data_prefix=dict(img_path='images/training', seg_map_path='annotations/training')), **changes)


def rewrite(root, change, file=ANNOTATIONS):
    """Change an annotation file, and return what it holds."""
    content = json.loads((root / file).read_text())
    change(content)
    (root / file).write_text(json.dumps(content))
    return content


def kinds_of(report):
    return {finding.kind for finding in report.findings}


def kinds_in(dataset, **how):
    return kinds_of(check_data_set(dataset, **how))


def only(report, kind):
    """Return the findings, which must all be of one kind."""
    assert kinds_of(report) == {kind}, report.summary()
    return report.findings


def fields(part, row, **values):
    return lambda content: content[part][row].update(values)


def append(part, **values):
    return lambda content: content[part].append({**content[part][0], **values})


def polygon(*numbers):
    return fields('annotations', 0, segmentation=[list(numbers)])


def image_and_map(root):
    return root / 'images/training/000000000001.jpg', root / 'annotations/training/000000000001.png'


def save_map(array):
    return lambda image, path: Image.fromarray(array(np.asarray(Image.open(path)))).save(path)


def pictures(root, split='train', **changes):
    """Return the config of the images for classification."""
    return dict(dict(type='CustomDataset', data_root=str(root), data_prefix=f'classes/{split}',
                     pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]), **changes)


def built(dataset):
    """Return mmpretrain's data set of such a config."""
    from mmpretrain import datasets
    return getattr(datasets, dataset['type'])(**{key: value for key, value in dataset.items()
                                                 if key not in ('type', 'pipeline')})


def write_list(root, lines, name='list.txt'):
    """Use a list of images instead of class folders, as text or as pairs of a name and a label."""
    text = lines if isinstance(lines, str) else ''.join(f'{file} {label}\n' for file, label in lines)
    (root / name).write_text(text)
    return name


def to_hdr(folder, root=None):
    """Write images that OpenCV reads and PIL does not; if there is a root, its annotation file names them."""
    for path in sorted(folder.glob('*.jpg')):
        cv2.imwrite(str(path.with_suffix('.hdr')), cv2.imread(str(path)).astype(np.float32))
    if root:
        rewrite(root, lambda content: [image.update(file_name=image['file_name'].replace('jpg', 'hdr'))
                                       for image in content['images']])
