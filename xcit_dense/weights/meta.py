"""What a checkpoint records in addition to its tensors."""
import ast

from ..errors import CheckpointError

#: Maximum characters of a config that is read: enough for all classes of ImageNet, and parsed within seconds.
_LONGEST = 2**22


def get_meta(checkpoint) -> dict:
    """Return what a training run of mmengine or mmcv wrote into its checkpoint; an empty dict if nothing."""
    meta = checkpoint.get('meta') if isinstance(checkpoint, dict) else None
    return meta if isinstance(meta, dict) else {}


def get_dataset_meta(checkpoint) -> dict:
    """Return class names and palette under mmengine's keys, also from files of mmdet 2 and mmseg 0."""
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
                              'config takes them from the data. Use the checkpoint of a training run with '
                              'labels; one without labels (DINO) can be measured with test --knn or --linear.')
    return (classes, ) if isinstance(classes, str) else tuple(classes)  # mmdet 2 allowed a string for one class


def config_of_checkpoint(checkpoint) -> dict:
    """Return the training config that mmengine's runner wrote into a checkpoint, without running its text.

    Returns:
        Its variables by name, but only those made completely of literals, lists, tuples, dicts and calls of ``dict``.
        Empty if there is no such text, or it cannot be read.
    """
    text = get_meta(checkpoint).get('cfg')
    if not isinstance(text, str) or len(text) > _LONGEST:
        return {}
    found = {}
    try:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign) and all(isinstance(name, ast.Name) for name in statement.targets):
                names = [name.id for name in statement.targets]
                try:
                    found.update(dict.fromkeys(names, _value_of(statement.value)))
                except (TypeError, ValueError):
                    for name in names:  # its earlier value no longer holds
                        found.pop(name, None)
    except (MemoryError, RecursionError, SyntaxError, ValueError):  # from ast: not a config, or made to break it
        return {}
    return found


def _value_of(node):
    """Return the value of an expression without names.

    Raises:
        TypeError: A key of a dict is not hashable.
        ValueError: The expression has names or anything else that is not a literal.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return (list if isinstance(node, ast.List) else tuple)(map(_value_of, node.elts))
    if isinstance(node, ast.Dict):
        return dict(zip(map(_value_of, node.keys), map(_value_of, node.values), strict=True))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        if not node.args and all(keyword.arg for keyword in node.keywords):
            return {keyword.arg: _value_of(keyword.value) for keyword in node.keywords}
        if not node.keywords and isinstance(node.args[0], ast.Dict) and len(node.args) == 1:
            return _value_of(node.args[0])  # how mmengine writes keys that are not identifiers
    raise ValueError(f'not a literal: {type(node).__name__}')
