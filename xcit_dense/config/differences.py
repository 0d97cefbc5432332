"""What differs between two configs, by key."""
import ast


def changes(before, after, path: str, by_type: bool = False) -> list:
    """Compare two values of a config.

    Args:
        before: Of numbers, texts, lists and dicts.
        after: Likewise.
        path: Their key.
        by_type: Dicts of different types differ as a whole.

    Returns:
        Dotted key, old and new value of all that differs; None where there is none. Lists of different lengths, and
        of numbers, texts or tuples, differ as a whole.
    """
    if isinstance(before, dict) and isinstance(after, dict) and not (
            by_type and before.get('type') != after.get('type')):
        pairs = [(key, before.get(key), after.get(key)) for key in {**before, **after}]
    elif (isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after)
          and any(isinstance(part, (dict, list)) for part in before)):
        pairs = list(zip(range(len(before)), before, after, strict=True))
    else:
        return [] if before == after else [(path, before, after)]
    return [change for key, old, new in pairs for change in changes(old, new, f'{path}.{key}', by_type)]


def differences(before: str, after: str) -> dict:
    """Compare the texts of two configs, as mmengine's ``Config.pretty_text`` writes them.

    A text may come out of a checkpoint: it is parsed, and never run.

    Returns:
        Old and new value, as written, by dotted key; ``not set`` where there is none. Empty where a text is no config.
    """
    try:
        before, after = _flatten(before), _flatten(after)
    except Exception:  # of any type: the text may be anything
        return {}
    keys = {**before, **after} if before else {}
    return {key: (before.get(key, 'not set'), after.get(key, 'not set')) for key in keys
            if before.get(key) != after.get(key)}


def _flatten(text):
    values = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign):
            _visit(line.targets[0].id, line.value, values)
    return values


def _visit(path, node, values):
    parts = []
    if isinstance(node, ast.Call):  # dict(key=value)
        parts = [(part.arg, part.value) for part in node.keywords]
    elif isinstance(node, ast.Dict):
        parts = [(ast.literal_eval(key), value) for key, value in zip(node.keys, node.values, strict=True)]
    elif isinstance(node, (ast.List, ast.Tuple)) and any(isinstance(part, (ast.Call, ast.Dict)) for part in node.elts):
        parts = list(enumerate(node.elts))
    if not parts:
        values[path] = ast.unparse(node)
    for key, part in parts:
        _visit(f'{path}.{key}', part, values)
