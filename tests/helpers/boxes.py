"""Annotations without images, for code that reads only sizes."""
import json

import numpy as np
from PIL import Image

from helpers.paths import ROOT, SMALL_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes

SEG = ROOT / 'configs/semfpn_xcit_n12_p16_small.py'
RETINA = ROOT / 'configs/retinanet_xcit_s12_p16_coco.py'


def write_boxes(root, *images, classes=('a', 'b')):
    """Write annotations of images ``(width, height, objects)``, objects ``(class, width, height)``; ids have gaps."""
    content = dict(images=[], annotations=[], categories=[
        dict(id=7 + 5 * place, name=name) for place, name in enumerate(classes)])
    for number, (width, height, objects) in enumerate(images):
        number = 3 + 2 * number
        content['images'].append(dict(id=number, file_name=f'{number}.jpg', width=width, height=height))
        for name, *box in objects:
            content['annotations'].append(dict(
                id=len(content['annotations']) + 1, image_id=number, category_id=7 + 5 * classes.index(name), iscrowd=0,
                bbox=[0, 0, *box], area=box[0] * box[1], segmentation=[[0, 0, box[0], 0, box[0], box[1]]]))
    (root / 'annotations').mkdir(exist_ok=True, parents=True)
    for split in ('train', 'val'):
        (root / f'annotations/instances_{split}2017.json').write_text(json.dumps(content))
    return root


def write_maps(root, *maps, names=('a', 'b')):
    """Write label maps, arrays (H, W), as the training data, without images."""
    for split in ('training', 'validation'):
        (root / 'annotations' / split).mkdir(parents=True, exist_ok=True)
        for number, labels in enumerate(maps):
            Image.fromarray(np.asarray(labels, np.uint8)).save(root / f'annotations/{split}/{number}.png')
    (root / 'classes.txt').write_text('\n'.join(names))
    return root


def band(width, label=1, size=(40, 60), void=0):
    """Return a label map of class 0 with a band of a width, and some columns without a class."""
    labels = np.zeros(size, np.uint8)
    labels[:, 20:20 + width], labels[:, :void] = label, 255
    return labels


def config_for(root, name=SMALL_CONFIG, **options):
    """Load a config for data; options are dotted keys with ``__`` instead of dots."""
    cfg = load_config(name, data_root=str(root), pretrained=False,
                      cfg_options={key.replace('__', '.'): value for key, value in options.items()})
    take_classes(cfg)
    return cfg
