"""A recognised folder: which images and annotations it has, for which part of a run."""
import os
from dataclasses import dataclass, field
from pathlib import Path

from ...text import counted, listed

#: The names of the parts of a run.
PARTS = dict(train='training', val='validation', test='test')


@dataclass
class Part:
    """The data of one part of a run: training, validation or test.

    Attributes:
        images: Folder of the images; the annotations name files below it.
        annotations: A COCO file, or the folder of the label maps; None if the folders of the images are the classes.
        dataset: Other settings for the config of the data set, such as ``img_suffix`` or the list of the images.
        count: Number of images, if known.
        objects: Number of objects, if known.
        origin: The source, if it was converted or divided.
    """
    images: Path
    annotations: Path
    dataset: dict = field(default_factory=dict)
    count: int = None
    objects: int = None
    origin: str = ''


@dataclass
class Layout:
    """A recognised folder.

    Attributes:
        name: The name of the layout, such as ``Roboflow (COCO)``.
        root: The folder.
        parts: `Part` by ``train``, ``val`` and ``test``, if it exists.
        classes: The class names, if the layout itself has them; otherwise the annotations do.
        notes: Sentences on what a user might not expect, such as a category that is ignored.
    """
    name: str
    root: Path
    parts: dict
    classes: tuple = ()
    notes: list = field(default_factory=list)


def describe(layout: Layout) -> str:
    """Return a block of lines on a folder: its layout, its parts, the classes, and the notes."""
    lines = [('data', f'{layout.name} in {layout.root}')]
    for name, words in PARTS.items():
        part = layout.parts.get(name)
        if part is not None:
            counts = [counted(number, plural) for number, plural in ((part.count, 'images'), (part.objects, 'objects'))
                      if number is not None]
            origin = part.origin or part.annotations and below(part.annotations, layout.root)
            files = (f'{origin}; ' if origin else '') + f'images in {below(part.images, layout.root)}'
            lines.append((words, ', '.join([*counts, files])))
        elif name == 'test' and 'val' in layout.parts:
            lines.append((words, 'none; the validation data is used'))
    if layout.classes:
        lines.append(('classes', f'{len(layout.classes)}: {listed(layout.classes, 10)}'))
    lines += [('note', note) for note in layout.notes]
    width = max(len(name) for name, _ in lines)
    return '\n'.join(f'{name:<{width}}  {text}' for name, text in lines)


def below(path, root) -> str:
    """Return a path relative to a folder, ``.`` for the folder itself; the absolute path if it is elsewhere."""
    path, root = (Path(os.path.abspath(p)) for p in (path, root))
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
