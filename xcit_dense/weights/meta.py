"""What a checkpoint says of itself beside its tensors."""
from ..errors import CheckpointError


def get_meta(checkpoint) -> dict:
    """Return what a training run of mmengine or mmcv wrote into its checkpoint; else nothing."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    return meta if isinstance(meta, dict) else {}


def get_dataset_meta(checkpoint) -> dict:
    """Return class names and palette by the names of mmengine, also out of files of mmdet 2 and mmseg 0."""
    meta = get_meta(checkpoint)
    if isinstance(meta.get('dataset_meta'), dict):
        return meta['dataset_meta']
    return {key.lower(): meta[key] for key in ('CLASSES', 'PALETTE') if meta.get(key) is not None}


def classes_of_checkpoint(checkpoint, source) -> tuple:
    """Return the class names that a training run wrote into its checkpoint.

    Raises:
        CheckpointError: There are none.
    """
    classes = get_dataset_meta(checkpoint).get('classes')
    if not classes:
        raise CheckpointError(f'{source} holds no class names (meta.dataset_meta.classes or meta.CLASSES), and its '
                              'config takes them from the data; give the checkpoint of a training run')
    return (classes, ) if isinstance(classes, str) else tuple(classes)  # mmdet 2 allowed the bare name of one
