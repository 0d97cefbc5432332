"""The classes of a data set: those that its config wants, those that it has, and those that the heads are for."""
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from ..engine.data import LOADERS, datasets, walk
from .findings import Finding


def type_of(dataset):
    """Return the class of a data set's config, or None where no framework has it."""
    kind = dataset['type']
    if not isinstance(kind, str):
        return kind
    scopes = ('mmseg', 'mmdet') if 'seg_map_path' in dataset.get('data_prefix', {}) else ('mmdet', 'mmseg')
    for scope in scopes:
        try:
            found = import_module(f'{scope}.registry').DATASETS.get(kind)
        except ImportError:  # a stack with one of them alone
            continue
        if found is not None:
            return found
    return None


def wanted_classes(dataset, from_data: bool):
    """Return the class names that a config gives its data set, or the data set's own; None where any will do.

    Args:
        dataset: The config.
        from_data: Whether the names are those that are found in the data, unless the config has some already.
    """
    names = dataset.get('metainfo', {}).get('classes')
    if isinstance(names, str):
        names = Path(names).read_text().splitlines()
    if names is None and not from_data:
        names = getattr(type_of(dataset), 'METAINFO', {}).get('classes')
    return None if names is None else tuple(names)


def check_names(source, wanted, found) -> list:
    """Compare the class names of a config and of a file, by name.

    Args:
        source: The file.
        wanted: The names of the config, or None where any will do.
        found: Those of the file, in its order.

    Returns:
        Findings.
    """
    if wanted is None:
        return []
    findings = []
    unused = [name for name in found if name not in wanted]
    lowered = {name.lower(): name for name in unused}
    for name in wanted:
        if name not in found:
            near = get_close_matches(name.lower(), lowered, 1)
            findings.append(Finding('class-missing', str(source), value=repr(name) + (
                f'; the nearest that it has is {lowered[near[0]]!r}' if near else '')))
    findings += [Finding('class-unused', str(source), value=repr(name)) for name in unused]
    if not any(finding.kind == 'class-missing' for finding in findings):
        order = [name for name in found if name in wanted]
        if order != list(wanted) and len(order) == len(set(order)):
            place = next(i for i, (a, b) in enumerate(zip(order, wanted, strict=True)) if a != b)
            findings.append(Finding('class-order', str(source),
                                    value=f'class {place} is {order[place]!r}, the config says {wanted[place]!r}'))
    return findings


def listed_names(path):
    """Return the names of a ``classes.txt``, None where there is no such file, and findings."""
    if not path.is_file():
        return None, []
    try:
        names = tuple(line.strip() for line in path.read_text().strip().splitlines())
    except (OSError, ValueError) as error:
        return None, [Finding('class-list', str(path), value=str(error))]
    if not names or not all(names) or len(set(names)) < len(names):
        return None, [Finding('class-list', str(path), value=repr(list(names)))]
    return names, []


def check_classes(cfg) -> list:
    """Compare the number of classes of the heads, and the classes of the other data, with those of the training data.

    With ``classes_from_data`` there is nothing to compare before `xcit_dense.engine.data.take_classes`.

    Args:
        cfg: The config.

    Returns:
        Findings.
    """
    sets = {name: datasets(cfg, [name]) for name in LOADERS}
    from_data = bool(cfg.get('classes_from_data'))
    wanted = wanted_classes(sets[LOADERS[0]][0], from_data) if sets[LOADERS[0]] else None
    if wanted is None:
        return []
    findings = []

    def visit(node):
        if node.get('num_classes', len(wanted)) != len(wanted):
            findings.append(Finding('class-count', f'model.{node.get("type")}', value=(
                f'has num_classes = {node["num_classes"]}, and the training data has {len(wanted)} classes')))

    walk(cfg.model, visit)
    for loader, members in sets.items():
        for dataset in members:
            names = wanted_classes(dataset, from_data)
            if names is not None and names != wanted:
                findings.append(Finding('class-count', loader, value=(
                    f'has other classes than the training data, or another order: {list(names)}, not {list(wanted)}')))
    return findings
