"""Label Studio's masks, a picture for each task, annotation and tag, as label maps."""
import os
import re
from pathlib import Path

import numpy as np
from PIL import Image

from .._utils.text import counted, listed
from ..data.files import FORMATS, read_json
from ..data.folders import IMAGE_SUFFIXES, files_below, names_below
from ..errors import DataError
from .conversion import as_png
from .derived import Made

_NAMES = re.compile(r'task-(\d+)-annotation-(\d+)-by-.*-tag-(.+)-(\d+)\.png')


def label_studio_masks(root) -> dict:
    """Return Label Studio's masks below a folder: by task the tag, number and path of those of its last annotation."""
    found = {}
    for name in names_below(root):
        if parts := _NAMES.fullmatch(os.path.basename(name)):
            task, annotation, tag, number = parts.groups()
            found.setdefault(int(task), {}).setdefault(int(annotation), []).append((tag, int(number), name))
    return {task: sorted(annotations[max(annotations)]) for task, annotations in found.items()}


def combine_masks(root: Path, masks: dict, made: Made) -> tuple:
    """Write a label map for each task of Label Studio: 0 for no tag, then the tags in the order of their names.

    The folder has the images and the export of the tasks (JSON); ``masks`` is from `label_studio_masks`. Returns the
    folder of the images, the names of images with a label map, the class names, and notes. `DataError`: the image of a
    task is unknown, or masks cannot be read.
    """
    tags = sorted({tag for parts in masks.values() for tag, *_ in parts})
    images = {path.name: path for path in files_below(root) if path.suffix.lower() in IMAGE_SUFFIXES
              and not _NAMES.fullmatch(path.name)}
    owners = _images_of_tasks(root, images)
    if missing := [task for task in masks if task not in owners]:
        raise DataError(f'{root} has Label Studio masks, but no known images for {counted(len(missing), "tasks")} '
                        f'({listed(map(str, missing), 3)}). Put the JSON export of the same project into {root}, and '
                        'the images with the names in that export')
    top, names = Path(os.path.commonpath([path.parent for path in images.values()])), []
    for task, parts in masks.items():
        labels = np.uint8(0)
        for tag, _, path in parts:  # where masks overlap, the last tag by name is used
            try:
                with Image.open(path, formats=FORMATS) as image:
                    labels = np.where(np.asarray(image.convert('L')) > 127, tags.index(tag) + 1, labels)
            except (OSError, ValueError) as error:  # ValueError: of another size than those before
                raise DataError(f'{path} cannot be used: {error}') from error
        names.append(owners[task].relative_to(top).as_posix())
        made.write(Path('maps', names[-1]).with_suffix('.png').as_posix(), as_png(labels))
    unused = len(images) - len(masks)
    notes = [f'ignored {counted(unused, "images without masks")}'] if unused else []
    return top, sorted(names), ('background', *tags), notes


def _images_of_tasks(root, images):
    """Return the image of each task that an export of the tasks names, of the images by their names."""
    owners = {}
    for path in files_below(root):
        try:
            content = read_json(path) if path.suffix == '.json' else ()
        except (OSError, ValueError):
            continue
        for task in [task for task in content if isinstance(task, dict)] if isinstance(content, list) else ():
            data = task['data'] if isinstance(task.get('data'), dict) else task
            names = [re.split(r'[/\\=]', word)[-1] for word in (task.get('file_upload'), *data.values())
                     if isinstance(word, str)]
            # an upload has a random prefix before its name
            names += [name.partition('-')[2] for name in names]
            if image := next((images[name] for name in names if name in images), None):
                owners[task.get('id')] = image
    return owners
