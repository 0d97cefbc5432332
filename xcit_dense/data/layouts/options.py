"""What the options of the tools say about the data of a run."""
from dataclasses import dataclass, fields


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
        ignore_labels: Labels in the files of label maps that stand for no class.
    """
    train_images: str = None
    train_annotations: str = None
    val_images: str = None
    val_annotations: str = None
    test_images: str = None
    test_annotations: str = None
    val_share: float = None
    palette: str = None
    ignore_labels: tuple = ()

    @property
    def given(self) -> dict:
        """The options that a user gave, by their names on the command line."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f'--{name.replace("_", "-").removesuffix("s") if name == "ignore_labels" else name.replace("_", "-")}':
                value for name, value in values.items() if value not in (None, ())}
