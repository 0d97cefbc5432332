"""Which keys a class takes from a config, read from its code; nothing is built."""
import ast
import functools
import inspect
import sys
import textwrap

from mmengine.hooks import CheckpointHook
from mmengine.utils import ManagerMixin
from torch import nn

#: Classes whose ``**kwargs`` take nothing: modules refuse them, the hook keeps them for the runner's `save_checkpoint`,
#: of which it gives all arguments itself, so that any other key ends the run at its first checkpoint.
_TAKE_NO_MORE = (nn.Module, CheckpointHook)
#: Packages of bases that read nothing of a config.
_NO_READERS = ('builtins', 'torch', 'abc', 'typing')


def accepted_keys(kind, node=None, resolve=lambda name: None):
    """Return the keys that a config of a class or function may have.

    ``**kwargs`` are followed through ``super().__init__(**kwargs)``, ``kwargs.pop('name')`` and
    ``dict(type=..., **kwargs)``. Where nothing reads them, they add no key: see `ignores_others`.

    Args:
        kind: The class or function.
        node: Its config, for the types that it names.
        resolve: Callable that turns a type's name into a class, or None.

    Returns:
        A set of names; None where it cannot be known surely.
    """
    if not inspect.isclass(kind):
        return _of_function(kind)
    if type(kind).__call__ is not type.__call__ or kind.__new__ is not object.__new__:
        return None
    keys = _of_init(kind.__mro__, node or {}, resolve)
    return keys | {'name'} if keys is not None and issubclass(kind, ManagerMixin) else keys


def ignores_others(kind):
    """Whether a class, or a base, takes ``**kwargs`` and reads none of them: it takes any key in silence."""
    for owner in inspect.getmro(kind) if inspect.isclass(kind) else ():
        function = vars(owner).get('__init__')
        if inspect.isfunction(function) and owner not in _TAKE_NO_MORE:
            rest = next((p.name for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD),
                        None)
            if rest is not None and not any(isinstance(part, ast.Name) and part.id == rest
                                            for part in ast.walk(_tree(function) or ast.Module([], []))):
                return True
    return False


def default_of(kind, name):
    """Return the default of an argument of a class, from the nearest base that has it; None without one."""
    for owner in kind.__mro__:
        parameter = inspect.signature(vars(owner)['__init__']).parameters.get(name) \
            if inspect.isfunction(vars(owner).get('__init__')) else None
        if parameter is not None:
            return None if parameter.default is parameter.empty else parameter.default
    return None


def mentioned_names(kinds):
    """Return every name and every short text in the code of some classes, their bases, and what their files import.

    A key that is not among them is read by none of these classes, whichever way they take it out of a dict.

    Returns:
        A set of names; None where the code of a class cannot be read.
    """
    modules = {owner.__module__ for kind in kinds for owner in getattr(kind, '__mro__', (kind, ))}
    modules = {name for name in modules if _package(name) not in _NO_READERS}
    for name in list(modules):
        for value in vars(sys.modules[name]).values():
            other = getattr(value, '__module__', None)
            if isinstance(other, str) and other in sys.modules and _package(other) == _package(name):
                modules.add(other)
    names = [_names_of_module(name) for name in modules]
    return None if None in names else set().union(*(found for _, found in names))


def mentioned_texts(kind):
    """Return the short texts in the files of a class and its bases, such as the names of keys; None if unreadable."""
    modules = {owner.__module__ for owner in inspect.getmro(kind)} if inspect.isclass(kind) else {kind.__module__}
    texts = [_names_of_module(name) for name in modules if _package(name) not in _NO_READERS]
    return None if None in texts else set().union(*(found for found, _ in texts))


def _package(module):
    return module.partition('.')[0]


@functools.cache
def _names_of_module(name):
    """Return the texts in a file, and its texts and names; None if it cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, SyntaxError):
        return None
    texts, names = set(), set()
    for node in ast.walk(tree):
        for field in ('id', 'attr', 'arg', 'value'):
            value = getattr(node, field, None)
            if isinstance(value, str):
                names.add(value)
                if field == 'value':
                    texts.add(value)
    return texts, names


def _of_function(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return _keywords(parameters) | _renamed(function)


def _of_init(mro, node, resolve):
    position, owner = next((i, kind) for i, kind in enumerate(mro) if '__init__' in vars(kind))
    if owner is object:
        return set()
    function = vars(owner)['__init__']
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    keys = _keywords(parameters) | _renamed(function)
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    if rest is None or owner in _TAKE_NO_MORE:
        return keys
    more = _followed(owner, rest, parameters, mro[position + 1:], node, resolve)
    return None if more is None else keys | more


@functools.cache
def _tree(function):
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def _keywords(parameters):
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _renamed(function):
    """Return the old names that a decorator still takes; it keeps them in a dict."""
    found = set()
    while hasattr(function, '__wrapped__'):
        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, dict):
                found.update(name for name in cell.cell_contents if isinstance(name, str))
        function = function.__wrapped__
    return found


def _followed(owner, rest, parameters, mro, node, resolve):
    """Return what the ``**rest`` of a constructor takes, or None if a use of it is not understood."""
    tree = _tree(vars(owner)['__init__'])
    if tree is None:
        return None
    keys, understood = set(), set()

    def is_rest(part):
        return isinstance(part, ast.Name) and part.id == rest

    def note(part, name=None):
        understood.add(id(part))
        keys.update(() if name is None else [name])

    for part in ast.walk(tree):
        if isinstance(part, ast.Call):
            for keyword in part.keywords:
                if keyword.arg is None and is_rest(keyword.value):
                    more = _of_call(part, owner, parameters, mro, node, resolve)
                    if more is None:
                        return None
                    keys |= more - {k.arg for k in part.keywords}
                    note(keyword.value)
            if isinstance(part.func, ast.Attribute) and is_rest(part.func.value) and part.args:
                name = part.args[0].value if isinstance(part.args[0], ast.Constant) else None
                if part.func.attr in ('pop', 'get', 'setdefault') and isinstance(name, str):
                    note(part.func.value, None if part.func.attr == 'setdefault' else name)
        elif isinstance(part, ast.Subscript) and is_rest(part.value) and isinstance(part.slice, ast.Constant):
            note(part.value, part.slice.value if isinstance(part.ctx, ast.Load) else None)
        elif isinstance(part, ast.Compare) and isinstance(part.left, ast.Constant) and is_rest(part.comparators[0]):
            note(part.comparators[0], part.left.value)
    uses = (id(part) for part in ast.walk(tree) if is_rest(part))
    return keys if understood.issuperset(uses) else None


def _of_call(call, owner, parameters, mro, node, resolve):
    """Return the keys that a call with ``**kwargs`` inside a constructor takes, or None."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == '__init__' and isinstance(function.value, ast.Call) \
            and getattr(function.value.func, 'id', None) == 'super':
        names = [base.__name__ for base in mro]
        start = function.value.args[0].id if function.value.args else owner.__name__
        # super(Base, self) goes on behind that base, which may have the name of the class itself
        skipped = 0 if start == owner.__name__ else names.index(start) + 1
        return _of_init(mro[skipped:], node, resolve)
    if getattr(function, 'id', None) != 'dict':
        return None
    kind = next((k.value for k in call.keywords if k.arg == 'type'), None)
    if isinstance(kind, ast.Constant):
        name = kind.value
    elif isinstance(kind, ast.Name):
        defaults = {p.name: p.default for p in parameters}
        name = node.get(kind.id, defaults.get(kind.id))
    else:
        return None
    inner = resolve(name) if isinstance(name, str) else name
    return accepted_keys(inner, node, resolve) if callable(inner) else None
