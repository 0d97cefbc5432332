"""The options of the tools that describe the data of a run."""
import os
from dataclasses import dataclass, fields
from pathlib import Path

from ...errors import ConfigError, DataError


@dataclass(frozen=True)
class DataOptions:
    """The user's options about the data, in addition to its root; None and () leave the choice to the program.

    Paths are below the data root unless they are absolute.

    Args:
        train_images: Folder of the training images.
        train_annotations: Their annotation file, or the folder of their label maps.
        val_images: Folder of the validation images.
        val_annotations: As ``train_annotations``, for validation.
        test_images: Folder of the test images.
        test_annotations: As ``train_annotations``, for the test.
        val_share: Share of the images for validation if there is no validation data; above 0 and below 1.
        palette: A file with the colours of the classes, for coloured label maps.
        ignore_label: Labels in the label map files to ignore.
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
        """The options that the user set, by their names on the command line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f'--{name.replace("_", "-")}': value for name, value in values.items() if value not in (None, ())}

    def refuse(self, *names, why: str):
        """Reject options that have no effect.

        Args:
            *names: Their names on the command line.
            why: The reason in the error, which begins with the first option that is set.

        Raises:
            ConfigError: One of them is set.
        """
        if wrong := [name for name in names if name in self.given]:
            raise ConfigError(f'{wrong[0]} {why}; omit it')

    def path(self, part: str, kind: str, root: Path, is_file: bool = False) -> Path | None:
        """Return the path that an option names, None if it is not set.

        Args:
            part: ``train``, ``val`` or ``test``.
            kind: ``images`` or ``annotations``.
            root: The data root.
            is_file: Whether it must be a file, not a folder.

        Raises:
            DataError: It does not exist.
        """
        name = getattr(self, f'{part}_{kind}')
        if name is None:
            return None
        path = Path(os.path.abspath(root / Path(name).expanduser()))
        if not (path.is_file() if is_file else path.is_dir()):
            raise DataError(f'--{part}-{kind} {name}: there is no {"file" if is_file else "folder"} {path}')
        return path
