"""Options of the command line: does each one name something?"""
from .findings import Hint, finding, slip
from .top_level import is_used, known_names
from .variables import keys_of, named, option_for


def find_new_keys(cfg, options) -> dict:
    """Compare dotted options with the config that they will be merged into.

    A top-level key is a finding unless something reads it: a variable of the file was used up when the file was read.
    It is a hint where it is neither that nor nearly a name that is read: a hook of the user's own may read it. A
    finding, too, is a new key beside one of nearly the same name, in a dict without a ``type``, of which the others are
    `check_config`'s; and a key below what is no dict or list, or beyond the end of a list.

    Args:
        cfg: The config, before the options.
        options: Values by dotted key, as mmengine's ``DictAction`` gives them, or None.

    Returns:
        Findings by dotted key.
    """
    findings = {}
    for path, value in (options or {}).items():
        name = path.partition('.')[0]
        if name not in known_names(cfg):
            if name in cfg and is_used(cfg, name):
                keys = [key for key, _ in keys_of(cfg, path, value, known_names(cfg))]
                findings[path] = finding(path, value, 'a variable of the config file, which was used up when the file '
                                         f'was read; set {named(keys) if keys else "the keys that it was used for"}')
            elif name not in cfg and slip(name, known_names(cfg)):
                findings[path] = finding(path, value, 'nothing reads it', name, known_names(cfg))
            else:
                option = option_for(path)
                findings[path] = Hint(finding(path, value, 'no framework reads it' + (
                    f'; {option} sets what is meant' if option else '')))
            continue
        node, done = dict(cfg.items()), []
        for part in path.split('.'):
            parent = '.'.join(done)
            done.append(part)
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, dict):
                if 'type' not in node and 'custom_keys' not in done and slip(part, node):
                    findings[path] = finding('.'.join(done), value, 'there is no such key', part, node)
                break
            elif isinstance(node, list) and part.isdigit() and int(part) < len(node) and len(done) <= path.count('.'):
                node = node[int(part)]
            elif f'{parent}._delete_' not in options:
                findings[path] = finding(path, value, (
                    f'{parent} is a list of {len(node)}, counted from 0: set a key of one, or the whole list'
                    if isinstance(node, list) else f'{parent} is {node!r} and has no keys'))
                break
    return findings
