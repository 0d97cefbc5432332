"""The rooms of the package: what may import what, and how large each is."""
import ast
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.util import resolve_name

import pytest

from helpers.paths import ROOT
from xcit_dense import models

PACKAGE = ROOT / 'xcit_dense'
#: From the ground up: a room may import those before it.
FLOORS = ('runtime', 'errors', 'archs', '_utils', 'compat', 'weights', 'models.fast', 'models', 'draw', 'data',
          'data.check', 'annotations', 'config.tasks', 'config.check', 'config', 'config.fit', 'train', 'ssl',
          'predict', 'export', 'report', 'for_mmdet', 'for_mmseg', 'for_mmpretrain', 'cli')
#: Files that are no part of a room: they lead into it.
DOORS = ('__init__', '__main__')


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__') or '__init__'


def room_of(module):
    return max((room for room in FLOORS if f'{module}.'.startswith(f'{room}.')), key=len, default=None)


def floor_of(module):
    return FLOORS.index(room_of(module).replace('models.fast', 'models'))  # a folder of it, which knows its layers


def imports():
    """Pairs of a module and a full name that it imports, at its top or inside a function."""
    for path in MODULES.values():
        package = '.'.join(path.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                base = resolve_name('.' * node.level + (node.module or ''), package) if node.level else node.module
                names = [f'{base}.{alias.name}' for alias in node.names]
            yield from ((module_of(path), name.partition('.')[2]) for name in names
                        if name.partition('.')[0] == 'xcit_dense')


def imported(name):
    """The module that a name is, or is in."""
    return next((module for module in (name, name.rpartition('.')[0]) if module in MODULES), '__init__')


MODULES = {module_of(path): path for path in PACKAGE.rglob('*.py')}
NAMES = sorted(set(imports()))
IMPORTS = sorted({(module, imported(name)) for module, name in NAMES if imported(name) != module})
#: What modules outside of models/fast/ import of it.
FAST = [(module, name.split('.')[2]) for module, name in NAMES
        if name.startswith('models.fast.') and not module.startswith('models.fast')]


def test_every_module_has_a_room_and_rooms_import_downward_only():
    assert not {module for module in MODULES if room_of(module) is None} - set(DOORS)
    assert len(IMPORTS) > 150 and FAST  # they are found
    assert not [f'{a} imports {b}' for a, b in IMPORTS if {a, b}.isdisjoint(DOORS) and floor_of(b) > floor_of(a)]
    # for the version, and to register what configs name
    assert [a for a, b in IMPORTS if b == '__init__'] == ['cli.common', 'train.startup']
    # only models/ imports from models/fast/, and only what it gives out
    assert not [f'{a} imports {b}' for a, b in FAST if a.partition('.')[0] != 'models' or b not in models.fast.__all__]


def test_no_modules_import_each_other_in_a_circle():
    after = {a: {b for c, b in IMPORTS if c == a and b not in DOORS} for a, _ in IMPORTS}
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        pytest.fail(f'circle: {" -> ".join(error.args[1])}')


def lines_of(paths):
    return {path: len(path.read_text().splitlines()) for path in paths}


def test_files_and_rooms_stay_small():
    lines = lines_of(MODULES.values())
    longer = {path.name: count for path, count in lines.items() if count > 300}
    assert not longer, 'no file may have more than 300 lines: move an independent part into another file'
    rooms = Counter()
    for path, count in lines.items():
        rooms[path.relative_to(PACKAGE).parts[0]] += count
    larger = {room: count for room, count in rooms.items() if count > 0.15 * sum(lines.values())}
    assert not larger, 'no folder holds more than 15 percent of the package'
    budget = re.search(r'a budget of ([\d,]+) lines', (ROOT / 'docs/design.md').read_text())[1]
    assert sum(lines.values()) <= int(budget.replace(',', '')), f'{budget} lines at most: docs/design.md#size'


def test_tests_mirror_the_rooms_and_stay_small():
    tests = ROOT / 'tests'
    rooms = {room.partition('.')[0] for room in FLOORS if (PACKAGE / room.partition('.')[0]).is_dir()}
    folders = {path.relative_to(tests).parts[0] for path in tests.rglob('test_*.py') if path.parent != tests}
    assert folders == rooms | {'benchmark', 'docs', 'gpu'}
    longer = {path.name: count for path, count in lines_of(tests.rglob('*.py')).items() if count > 400}
    assert not longer, 'no file of tests has more than 400 lines'
    whole = sum(lines_of(tests.rglob('*.py')).values())
    budget = re.search(r'at most ([\d,]+) lines', (tests / 'README.md').read_text())[1]
    assert whole <= 1.15 * int(budget.replace(',', '')), (
        f'{whole:,} lines of tests, more than 15 percent above {budget}: `make mutants ARGS=--matrix` lists tests that '
        'may not be needed, as they caught no planted mistake that others missed')


def test_private_names_of_mmengine_stand_in_one_file():
    """A name with an underscore that a file of this package does not define is one of a framework."""
    allowed = {'_BatchNorm', '_InstanceNorm', '_dynamo', '_shutdown_workers', '_workers', '_get_iterator', '_check',
               '_exit', '_actions',  # of torch, os, and argparse: the only way to a parser's arguments
               '_asdict', '_replace'}  # of named tuples
    found = []
    for path in MODULES.values():
        if 'compat' in path.parts or 'models' in path.parts:
            continue  # the latter read private names of torch and torchvision
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        own = {getattr(node, name) for node in nodes for name in ('name', 'attr', 'id') if hasattr(node, name)
               and isinstance(getattr(node, 'ctx', ast.Store()), ast.Store)}
        own |= {node.slice.value for node in nodes if isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)}
        found += [f'{path.name}: {ast.unparse(node)}' for node in nodes if isinstance(node, ast.Attribute)
                  and re.match('_[^_]', node.attr) and node.attr not in own | allowed]
    assert not found, 'names that an update may change belong in compat'


def test_no_private_method_of_mmengine_is_replaced_elsewhere():
    for room in ('runner', 'loops', 'saving', 'loaders'):
        module = import_module(f'xcit_dense.train.{room}')
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                theirs = {name for base in kind.__mro__ if base.__module__.startswith('mmengine')
                          for name in vars(base) if re.match('_[^_]', name)}
                assert not {*vars(kind)} & theirs - {'_abc_impl'}, kind
