"""What was recognised in a folder: which images, which annotations, for which part of a run."""
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Part:
    """The data of one part of a run: training, validation or test.

    Attributes:
        images: Folder of the images; their annotations name files below it.
        annotations: A COCO file, or the folder of the label maps.
        dataset: What else the config of the data set gets, such as ``img_suffix`` or the list of the images.
        count: Number of images, where it is known.
        origin: What it was made of, where it was converted or divided.
    """
    images: Path
    annotations: Path
    dataset: dict = field(default_factory=dict)
    count: int = None
    origin: str = ''


@dataclass
class Layout:
    """A recognised folder.

    Attributes:
        name: The name of the layout in words, such as ``Roboflow (COCO)``.
        root: The folder.
        parts: `Part` by ``train``, ``val`` and ``test``; those that are there.
        classes: Their names, where the layout itself says them; else the annotations do.
        notes: Sentences on what a user might not expect, such as a category that is left out.
    """
    name: str
    root: Path
    parts: dict
    classes: tuple = ()
    notes: list = field(default_factory=list)
