"""Check that every key of ``--cfg-options`` names something in the config."""
from ...text import counted
from .findings import Hint, finding, meant_by
from .top_level import is_used, known_names
from .variables import keys_of, named, option_for


def find_new_keys(cfg, options) -> dict:
    """Compare dotted options with the config that they will be merged into.

    Findings are:

    - A top-level key that nothing reads: a misspelt one, or a variable that the config file used when it was read. Any
      other unknown key is a hint, as a hook of your own may read it.
    - A new key next to one of nearly the same name, in a dict without a ``type``; `check_config` checks the others.
    - A key below a value that is neither a dict nor a list, or beyond the end of a list.

    Args:
        cfg: The config, before the options.
        options: Values by dotted key, as mmengine's ``DictAction`` returns them, or None.

    Returns:
        Findings by dotted key.
    """
    findings = {}
    for path, value in (options or {}).items():
        name = path.partition('.')[0]
        if name not in known_names(cfg):
            if name in cfg and is_used(cfg, name):
                keys = [key for key, _ in keys_of(cfg, path, value, known_names(cfg))]
                findings[path] = finding(path, value, 'no effect, as the config file has already used this variable; '
                                         f'set {named(keys) if keys else "what it was used for"}')
            elif name not in cfg and meant_by(name, known_names(cfg)):
                findings[path] = finding(path, value, 'nothing reads it', name, known_names(cfg))
            else:
                option = option_for(path)
                findings[path] = Hint(finding(path, value, 'no framework reads it' + (
                    f'; use {option}' if option else '')))
            continue
        node, done = dict(cfg.items()), []
        for part in path.split('.'):
            parent = '.'.join(done)
            done.append(part)
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, dict):
                if 'type' not in node and 'custom_keys' not in done and meant_by(part, node):
                    findings[path] = finding('.'.join(done), value, 'there is no such key', part, node)
                break
            elif isinstance(node, list) and part.isdigit() and int(part) < len(node) and len(done) <= path.count('.'):
                node = node[int(part)]
            elif f'{parent}._delete_' not in options:
                findings[path] = finding(path, value, (
                    f'{parent} is a list of {counted(len(node), "items")}, numbered from 0: set a key of one, or the '
                    'whole list'
                    if isinstance(node, list) else f'{parent} is {node!r} and has no keys'))
                break
    return findings
