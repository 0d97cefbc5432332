"""What is recognised in a folder, and what the user says about it: a layout, its parts, and the options."""
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

from .._utils.text import counted, listed
from ..errors import ConfigError, DataError

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
        origin: The source, if it was converted or divided; empty if the annotations can be read as they are.
        content: The annotations in COCO format, possibly converted.
        notes: Sentences on what a user might not expect.
    """
    images: Path
    annotations: Path
    dataset: dict = field(default_factory=dict)
    count: int = None
    objects: int = None
    origin: str = ''
    content: dict = None
    notes: list = field(default_factory=list)


@dataclass
class Layout:
    """A recognised folder.

    Attributes:
        name: The name of the layout, such as ``COCO``.
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
        if (part := layout.parts.get(name)) is not None:
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


@dataclass(frozen=True)
class DataOptions:
    """The user's options about the data, in addition to its root; None and () leave the choice to the program.

    Paths are below the data root unless they are absolute.

    Args:
        train_images: Folder of the training images.
        train_annotations: Their annotation file, several to be joined, or the folder of their label maps.
        val_images: Folder of the validation images.
        val_annotations: As ``train_annotations``, for validation.
        test_images: Folder of the test images.
        test_annotations: As ``train_annotations``, for the test.
        val_share: Share of the images for validation if there is no validation data; above 0 and below 1.
        instances: What the numbers in pictures of masks mean: ``number`` of an object, or ``class*1000+number``.
        class_name: The name of the only class of masks.
        palette: A file with the colours of the classes, for coloured label maps.
        ignore_label: Labels in the label map files to ignore.
    """
    train_images: str = None
    train_annotations: str | tuple = None
    val_images: str = None
    val_annotations: str | tuple = None
    test_images: str = None
    test_annotations: str | tuple = None
    val_share: float = None
    instances: str = None
    class_name: str = None
    palette: str = None
    ignore_label: tuple = ()

    @property
    def given(self) -> dict:
        """The options that the user set, by their names on the command line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f'--{name.replace("_", "-")}': value for name, value in values.items() if value not in (None, ())}

    def choose_val(self, parts: dict, root):
        """Drop the validation data if a share of named training data replaces it; otherwise reject ``--val-share``."""
        if self.val_share and {'train'} == {name[2:].split('-')[0] for name in self.given if name != '--val-share'} & {
                *PARTS}:
            parts.pop('val', None)
        if 'train' not in parts or 'val' in parts:
            self.refuse('--val-share', why=f'has no effect: {root} has validation data (to divide the training data '
                        'all the same, name it too: --train-images DIR or --train-annotations FILE)')

    def refuse(self, *names, why: str):
        """Raise `ConfigError`, with the reason, if an option that has no effect is set; names are those to type."""
        if wrong := [name for name in names if name in self.given]:
            raise ConfigError(f'{wrong[0]} {why}; omit it')

    def path(self, part: str, kind: str, root: Path) -> Path | None:
        """Return the folder that the option ``--PART-KIND`` names, None if it is not set; it must exist."""
        paths = self.paths(part, kind, root)
        if files := [path for path in paths if not path.is_dir()]:
            raise DataError(f'--{part}-{kind}: there is no folder {files[0]}')
        if len(paths) > 1:
            raise ConfigError(f'--{part}-{kind} takes one folder here; several are only for annotations of objects')
        return paths[0] if paths else None

    def paths(self, part: str, kind: str, root: Path) -> list:
        """Return the paths, of files or folders, that an option names, see `path`."""
        names, paths = getattr(self, f'{part}_{kind}') or (), []
        for name in names if isinstance(names, (list, tuple)) else [names]:
            paths.append(Path(os.path.abspath(root / Path(name).expanduser())))
            if not paths[-1].exists():
                here = f'; did you mean {os.path.abspath(name)}?' if os.path.exists(name) else ''
                raise DataError(f'--{part}-{kind} {name}: there is no {"file or " * (kind == "annotations")}folder '
                                f'{paths[-1]}{here}')
        return paths


NO_OPTIONS = DataOptions()
