"""What users change in almost every run: image size, length, batch size, learning rate, augmentation."""
from dataclasses import dataclass

from mmengine.config import Config


@dataclass(frozen=True)
class Settings:
    """Values that a user gives; None leaves that of the config.

    Args:
        image_size: The side of the square in pixels that images are resized into, or (width, height).
        epochs: Length of the training, of a config that counts epochs.
        iterations: Likewise, of one that counts iterations.
        batch_size: Images of a batch of each process in training.
        lr: The learning rate; it is not scaled any further.
        workers: Processes that read the data, of each loader.
        augment: ``light`` or ``strong``.
    """
    image_size: int | tuple = None
    epochs: int = None
    iterations: int = None
    batch_size: int = None
    lr: float = None
    workers: int = None
    augment: str = None


def apply_settings(cfg: Config, settings: Settings):
    """Change a config as the settings ask: all that depends on each follows, and the log says what.

    Args:
        cfg: The config.
        settings: Them.

    Raises:
        ConfigError: A value cannot be, or the config has nothing that it could change.
    """
