"""The differences between the texts of two configs, by key."""
import ast


def differences(before: str, after: str) -> dict:
    """Compare the texts of two configs, as mmengine's ``Config.pretty_text`` writes them.

    Items of lists have their position as key; custom hooks have their type, as one more hook moves the others.
    A text may come from a checkpoint: it is parsed, and never run.

    Returns:
        Old and new value, as written, by dotted key; ``not set`` for a missing one. Empty if a text is not a config.
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
        if path == 'custom_hooks':
            parts = _by_type(node.elts) or parts
    if not parts:
        values[path] = ast.unparse(node)
    for key, part in parts:
        _visit(f'{path}.{key}', part, values)


def _by_type(nodes):
    """Return nodes of dicts with their types; empty if a type is no text or comes twice."""
    types = [next((part.value.value for part in getattr(node, 'keywords', ())
                   if part.arg == 'type' and isinstance(part.value, ast.Constant)), None) for node in nodes]
    return list(zip(types, nodes, strict=True)) if all(types) and len({*types}) == len(types) else []
