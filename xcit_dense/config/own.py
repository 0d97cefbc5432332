"""What the files of a user write in a config that is based on one of this package."""
import ast
import re
from contextlib import suppress
from pathlib import Path

from mmengine.config import Config

from .._utils.files import folder_of
from ..data.datasets import LOADERS
from .check.keys import changes
from .check.top_level import files_of

#: The top-level keys of a config that settings change; other names are variables of its files.
PARTS = (*LOADERS, 'model', 'data_preprocessor', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr',
         'default_hooks', 'custom_hooks')
#: Over how many batches the gradients of a step are summed.
ACCUMULATED = 'optim_wrapper.accumulative_counts'


def own_files(cfg) -> tuple:
    """Return the last file of this package that a config consists of, or None, and the texts of the files after it."""
    files = files_of(cfg)
    ours = [number for number, (path, _) in enumerate(files)
            if path and Path(path).resolve().parent == folder_of('configs').resolve()]
    return (files[ours[-1]][0], [text for _, text in files[ours[-1] + 1:]]) if ours else (None, [])


def own_keys(cfg) -> list:
    """Return the dotted keys that a user's files write, and those in which they change the config of this package."""
    base, texts = own_files(cfg)
    if not texts:
        return []
    base, own = (Config.fromfile(path, import_custom_modules=False) for path in (base, cfg.filename))
    keys = [key for name in PARTS for key, *_ in changes(base.get(name), own.get(name), name, by_type=True)]
    for text in texts:
        with suppress(SyntaxError):  # of another format
            values = dict(_assigned(ast.parse(text).body))
            values = {re.sub(r'\[-.*', '', name): value for name, value in values.items()}  # x[-1] is all of x
            values = {re.sub(r'''\[['"]?(\w+)['"]?\]''', r'.\1', name).removeprefix('_base_.'): value
                      for name, value in values.items()}  # of _base_.model['neck'].x[0]
            keys += [key for name in values if name.partition('.')[0] in PARTS for key in _written(name, name, values)]
    return keys


def _assigned(nodes):
    """Yield the name and the expression of each assignment outside of functions; of several at once, the pairs."""
    for node in nodes:
        for target in getattr(node, 'targets', None) or [getattr(node, 'target', None)]:
            value = getattr(node, 'value', None)
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=False) if several else [(target, value)]
            yield from ((ast.unparse(name), one) for name, one in pairs if target and value)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _assigned([*getattr(node, 'body', ()), *getattr(node, 'orelse', ())])


def _written(value, key, values):
    """Yield the dotted keys that an expression, or the name of one of some others, sets: those of a dict one by one."""
    name = value if isinstance(value, str) else ast.unparse(value)
    if name in values:
        yield from _written(values[name], key, {other: values[other] for other in values if other != name})
        return
    pairs = [(part.arg, part.value) for part in value.keywords] if name.startswith('dict(') else [
        (getattr(part, 'value', None), value.values[place]) for place, part in enumerate(value.keys)
    ] if isinstance(value, ast.Dict) else []
    if not pairs or any(part is None for part, _ in pairs):
        yield key
        return
    for part, inner in pairs:
        yield from _written(inner, f'{key}.{part}', values)
