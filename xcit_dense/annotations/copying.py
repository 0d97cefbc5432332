"""A copy of the data that a config reads, in a form that other tools read: COCO files, or images with label maps."""
import json
import os
import shutil
from logging import WARNING
from pathlib import Path

import numpy as np
from mmengine.logging import print_log
from mmengine.registry import DATASETS, init_default_scope
from tqdm import tqdm

from .._utils.files import COPIER, OwnFiles, lies_within, note_inputs
from .._utils.text import counted, listed, type_name
from ..data.classes import take_classes
from ..data.datasets import LOADERS, datasets
from ..data.label_maps import first_label, labels_in_files
from ..data.pipelines import map_loader
from ..errors import ConfigError, DataError
from .coco import read_annotations
from .conversion import as_png


def copy_data(cfg, form: str, out, overwrite: bool = False) -> str:
    """Copy the images, write their annotations as the config reads them, and return a sentence on what was written.

    ``form`` is one of `FORMATS`; `ConfigError`: there is none, or the data is of another kind. Images that do not exist
    are only left out.
    """
    readers, add, folders, test = FORMATS.get(form, ((), None, LOADERS, ''))
    parts, files, missing = {}, {}, []
    for loader, folder in zip(LOADERS, folders, strict=True):
        for dataset in (members := datasets(cfg, [loader])):
            if dataset.reader not in readers or dataset.is_elsewhere or len(members) > 1:
                raise ConfigError(f'--to {form} does not fit {loader} ('
                                  f'{" + ".join(type_name(part["type"]) for part in members)}). coco is for detection '
                                  'and maps for segmentation, each with one data set for a part, on a disk; class '
                                  'folders need no other format')
            if dataset.get('data_root') and Path(out).expanduser().resolve().is_relative_to(dataset.root.resolve()):
                raise DataError(f'--to {form} {out}: this is the data itself, or in it. Choose another folder')
            if loader != LOADERS[2] or dataset.files not in [part.files for part in parts.values()]:
                parts[folder] = dataset
    if form == 'maps':
        take_classes(cfg)
    for folder, dataset in parts.items():
        add(dataset, folder, files, missing)
    note_inputs(*(source for source in files.values() if isinstance(source, Path)))
    with OwnFiles(out, COPIER, overwrite) as own:
        old = own.names()
        own.claim(*files)
        for name in old - files.keys():  # a label map of an earlier copy would be used
            (own.folder / name).unlink()
        for name, source in tqdm(files.items(), 'copy', unit=' files', leave=False, disable=None):
            (own.folder / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, Path):
                shutil.copyfile(source, own.folder / name)
            else:
                (own.folder / name).write_bytes(source())
    if missing:
        print_log(f'left out {counted(len(missing), "images")}: there is no {listed(missing)}', 'current', WARNING)
    options = f'--data-root {out}' + f' {test}' * (folders[2] in parts)
    return f'{out}: {", ".join(parts)}, {counted(len(files), "files")}; to use them: {options}'


def _add_image(above, name, folder, files, missing):
    """Add an image to the files, where each comes from by its name in the copy; return that name if it exists."""
    path, name = above / name, name if lies_within(name) else os.path.basename(name)
    if not path.is_file():
        missing.append(str(path))
        return None
    if (other := files.setdefault(f'{folder}/{name}', path.absolute())) != path.absolute():
        raise DataError(f'{other} and {path} would have one name in the copy, {folder}/{name}: rename one of them')
    return name


def _add_coco(dataset, folder, files, missing):
    content, images = read_annotations(dataset.ann_file), []
    if content is None:
        raise DataError(f'{dataset.ann_file} is not a COCO annotation file, so it cannot be copied')
    for image in content['images']:
        name = _add_image(dataset.folder('img'), image['file_name'], folder, files, missing)
        images += [dict(image, file_name=name)] if name else []
    gone = {repr(image['id']) for image in content['images']} - {repr(image['id']) for image in images}
    content.update(images=images, annotations=[record for record in content['annotations']
                                               if repr(record.get('image_id')) not in gone])
    for record in (*images, *content['annotations']):  # what `to_part` adds to name the user's files
        for key in ('label_file', 'label_problem', 'label_place'):
            record.pop(key, None)
    files[f'annotations/instances_{folder}.json'] = lambda: json.dumps(content).encode()


def _add_maps(dataset, folder, files, missing):
    """Add images and label maps, in the numbers that the data set reads from files: ADE20k's first class is 1."""
    init_default_scope('mmseg')
    built = DATASETS.build(dict(dataset, pipeline=[map_loader(dataset)[1]], test_mode=True))
    names, first, above = built.metainfo.get('classes') or (), first_label(dataset), dataset.folder('img_path')
    table = np.minimum(np.arange(256) + first, 255)
    table[:len(names)] = labels_in_files(first, built.label_map if dataset.own_classes else None, len(names))
    for place in range(len(built)):
        name = os.path.relpath(built.get_data_info(place)['img_path'], above)
        if name := _add_image(above, name, f'images/{folder}', files, missing):
            files[f'annotations/{folder}/{os.path.splitext(name)[0]}.png'] = lambda place=place: as_png(
                table[built[place]['gt_seg_map']])
    if lines := dataset.own_classes or names:
        files['classes.txt'] = lambda: ''.join(f'{line}\n' for line in lines).encode()


#: By format the readers of its data sets, what adds the files of one, the folders of the parts, and the options that
#: name a test part, which a config that tests on the validation data does not look for.
FORMATS = dict(
    coco=(('CocoDataset', ), _add_coco, ('train2017', 'val2017', 'test2017'),
          '--test-annotations annotations/instances_test2017.json'),
    maps=(('BaseSegDataset', 'ImageFolderDataset'), _add_maps, ('training', 'validation', 'test'),
          '--test-images images/test --test-annotations annotations/test'))
