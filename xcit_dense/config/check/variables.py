"""Variables of a config that a base used before the config changed them.

mmengine runs a whole base with its own values first, and merges the config into the result. So ``scale = (320, 320)``
in a config changes no pipeline of a base that uses ``scale``: the keys that the base made with it must be set.
"""
import ast
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import Config

from .changes import changes
from .findings import Hint, finding

#: The options of the tools that change a key, by what its path matches.
_OPTIONS = (
    (r'(data_preprocessor|pipeline\b).*\.(scales?|img_scale|crop_size|size)(\.|$)', '--image-size'),
    (r'train_cfg\.max_epochs$', '--epochs'), (r'train_cfg\.max_iters$', '--iterations'),
    (r'optim_wrapper\.(\w+\.)?optimizer\.lr$', '--lr'), (r'train_dataloader\.batch_size$', '--batch-size'),
    (r'\w+_dataloader\.(num_workers|persistent_workers)$', '--workers'), (r'\.data_root$', '--data-root'),
    (r'custom_hooks\.ValLossHook\.', '--val-loss'), (r'custom_hooks\.LoggersHook\.', '--log'),
    (r'custom_hooks\.CompileHook\.', '--compile'), (r'optim_wrapper\.type$', '--amp'))
#: Options by the usual names of variables for what they change.
_USUAL = dict(lr='--lr', learning_rate='--lr', batch_size='--batch-size', max_epochs='--epochs', epochs='--epochs',
              max_iters='--iterations', image_size='--image-size', img_size='--image-size', img_scale='--image-size',
              scale='--image-size', crop_size='--image-size', num_workers='--workers', workers='--workers',
              data_root='--data-root')


def find_unreached(cfg, known) -> list:
    """Return a hint for each variable that a config sets again, while keys that a base made with it keep the old value.

    These keys are found by reading the config once more with another value in the base. A variable that is also used
    in the file that sets it gives no hint: its author knows what it does.

    Args:
        cfg: The config, as read from a file and changed since; keys that were changed since give no hint.
        known: The top-level keys that something reads; they are no variables.
    """
    names = _set_again(cfg.filename, known) if str(cfg.filename).endswith('.py') else {}
    if not names:
        return []
    hints, before = [], _read(cfg.filename)
    for name, (setter, owner) in names.items():
        keys = keys_of(cfg, name, before.get(name), known, before) if name in before else []
        keys = [(key, value) for key, value in keys if _at(cfg, key) == value]
        if keys:
            hints.append(Hint(finding(name, before[name], f'{Path(setter).name} sets it too late, after '
                                      f'{Path(owner).name} used its own value: {_advice(keys)}')))
    return hints


def keys_of(cfg, name, value, known, before=None) -> list:
    """Return the dotted keys, with their values, that a variable with a value in all files of a config would change.

    Args:
        cfg: A config that was read from a file.
        name: The variable.
        value: The value.
        known: The top-level keys that something reads; other names are variables too.
        before: The config as it is, if it was read already.
    """
    try:
        before = before or _read(cfg.filename)
        after = _read_with(cfg.filename, name, value)
    except Exception:  # of any type: the base may use the variable in a way that this value does not fit
        return []
    keys = []
    for part in before:
        if part != name and part in known:
            keys += [(key, old) for key, old, _ in changes(before[part], after.get(part), part)]
    return keys


def option_for(key) -> str:
    """Return the option of the tools that changes a dotted key, or a variable with a usual name; '' without one."""
    return next((option for pattern, option in _OPTIONS if re.search(pattern, key)), _USUAL.get(key, ''))


def named(keys) -> str:
    """Return dotted keys as text, with the options that change them."""
    options = list(dict.fromkeys(filter(None, map(option_for, keys))))
    more = f' and {len(keys) - 4} more' if len(keys) > 4 else ''
    return ', '.join(keys[:4]) + more + (f' ({", ".join(options)})' if options else '')


def _advice(keys):
    value = repr(keys[0][1])
    stays = f'{value if len(value) < 40 else "that value"} stays in effect'
    return f'{stays}. Set {named([key for key, _ in keys])}'


def _set_again(filename, known):
    """Return the variables that a file sets and does not use, and one of its bases sets and uses: both files."""
    chain = _chain(filename)
    found, used = {}, set()
    for place in range(len(chain) - 1, 0, -1):
        path, tree = chain[place]
        used |= _used(tree)
        for name in _assigned(tree) - {*known, *used, *found}:
            owner = next((other for other, base in chain[place - 1::-1] if name in _assigned(base)), None)
            if owner:
                found[name] = path, owner
    return found


def _chain(filename):
    """Return path and tree of a config and all its bases, the config last; without those that cannot be read."""
    path = Path(filename).absolute()
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return [pair for base in _bases(tree) for pair in _chain(path.parent / base)] + [(path, tree)]


def _bases(tree):
    """Return the bases of a file that are paths, as they are written."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and '_base_' in _targets(node):
            try:
                bases = ast.literal_eval(node.value)
            except ValueError:
                return []
            return [base for base in ([bases] if isinstance(bases, str) else bases) if '::' not in base]
    return []


def _targets(node):
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _assigned(tree):
    return {name for node in tree.body if isinstance(node, ast.Assign) for name in _targets(node)
            if not name.startswith('_')}


def _used(tree):
    """Return the names that a file uses, including those of its bases."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
              and isinstance(node.value, ast.Name) and node.value.id == '_base_'}
    return names | {name for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
                    for name in re.findall(r'{{\s*_base_\.(\w+)', node.value)} | {
        leaf.attr for node in ast.walk(tree) if isinstance(node, ast.Set) for leaf in ast.walk(node)
        if isinstance(leaf, ast.Attribute)}  # {{_base_.name}}, which is Python too


def _read(filename):
    return Config.fromfile(filename, import_custom_modules=False)


def _read_with(filename, name, value):
    """Read a config from copies of its files in which a variable has another value wherever it is set."""
    with TemporaryDirectory() as folder:
        copies = {}
        for path, tree in _chain(filename):
            text = path.read_text()
            if re.search(r'{{\s*file', text):
                raise ValueError('its text depends on its place')
            copies[path] = str(Path(folder, f'{len(copies)}.py'))
            lines = text.splitlines(keepends=True)
            for node in reversed(tree.body):
                if isinstance(node, ast.Assign) and '_base_' in _targets(node):
                    bases = ast.literal_eval(node.value)
                    new = [base if '::' in base else copies[(path.parent / base).absolute()]
                           for base in ([bases] if isinstance(bases, str) else bases)]
                    lines[node.lineno - 1:node.end_lineno] = [f'_base_ = {new!r}\n']
                elif isinstance(node, ast.Assign) and name in _targets(node):
                    lines[node.lineno - 1:node.end_lineno] = [f'{name} = {_plain(value)!r}\n']
            Path(copies[path]).write_text(''.join(lines))
        return _read(copies[Path(filename).absolute()])


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _at(node, path):
    for part in path.split('.'):
        if isinstance(node, (dict, Config)) and part in node:
            node = node[part]
        elif isinstance(node, (list, tuple)) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node
