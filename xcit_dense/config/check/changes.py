"""The differences between two configs, or parts of them, by key."""


def changes(before, after, path: str, by_type: bool = False) -> list:
    """Compare two values of a config.

    Args:
        before: The old value, of numbers, texts, lists and dicts.
        after: The new value.
        path: Their key.
        by_type: Dicts of different types differ as a whole.

    Returns:
        Dotted key, old and new value of everything that differs; None for a missing value. Lists of different lengths,
        and lists of numbers, texts or tuples, differ as a whole.
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
