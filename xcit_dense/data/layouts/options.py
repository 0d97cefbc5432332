"""What the options of the tools say about the data of a run."""
import os
from dataclasses import dataclass, fields
from pathlib import Path

from ...errors import ConfigError, DataError


@dataclass(frozen=True)
class DataOptions:
    """What a user says about the data beside its root; None and () leave it to what lies there.

    Paths are taken below the data root unless they are absolute.

    Args:
        train_images: Folder of the training images.
        train_annotations: Their annotation file, or the folder of their label maps.
        val_images: Of the validation images.
        val_annotations: Likewise.
        test_images: Of the test images.
        test_annotations: Likewise.
        val_share: Share of the images that becomes the validation data, where there is none; above 0 and below 1.
        palette: A file with the colours of the classes, for label maps in colour.
        ignore_label: Labels in the files of label maps that stand for no class.
    """
    train_images: str = None
    train_annotations: str = None
    val_images: str = None
    val_annotations: str = None
    test_images: str = None
    test_annotations: str = None
    val_share: float = None
    palette: str = None
    ignore_label: tuple = ()

    @property
    def given(self) -> dict:
        """The options that a user gave, by their names on the command line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f'--{name.replace("_", "-")}': value for name, value in values.items() if value not in (None, ())}

    def refuse(self, *names, why: str):
        """Refuse options that have no effect.

        Args:
            *names: Theirs, on the command line.
            why: What is said of the first that is given.

        Raises:
            ConfigError: One of them is given.
        """
        if wrong := [name for name in names if name in self.given]:
            raise ConfigError(f'{wrong[0]} {why}; leave it out')

    def path(self, part: str, kind: str, root: Path, is_file: bool = False) -> Path | None:
        """Return the path that an option names, None where it is not given.

        Args:
            part: ``train``, ``val`` or ``test``.
            kind: ``images`` or ``annotations``.
            root: The data root.
            is_file: Whether it is a file, and not a folder.

        Raises:
            DataError: It is not there.
        """
        name = getattr(self, f'{part}_{kind}')
        if name is None:
            return None
        path = Path(os.path.abspath(root / Path(name).expanduser()))
        if not (path.is_file() if is_file else path.is_dir()):
            raise DataError(f'--{part}-{kind} {name}: there is no {"file" if is_file else "folder"} {path}')
        return path
