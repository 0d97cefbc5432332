"""From the folder that a user names to the data sets and metrics of a config."""
from pathlib import Path

from mmengine.config import Config

from .options import DataOptions


def place_data(cfg: Config, root, options: DataOptions, folder: Path):
    """Point the data sets and metrics of a config to what lies in a folder, where it lies elsewhere than they say.

    Args:
        cfg: The config, whose data root is ``root`` already; it is changed.
        root: The folder.
        options: What the user says beside it.
        folder: Gets what has to be written: converted annotations, and which images are held out for validation.
            Nothing is written into the data.

    Raises:
        DataError: What lies there is not recognised, or may be meant in several ways; it lists what was seen, and the
            options that say what is meant.
    """
