"""Plant small mistakes in the package, one at a time, and see which the tests catch.

Each mistake (mutant) is planted in a copy of the tree; the tests that reach its line run there, the quickest first,
until one fails. `make mutants` draws 200 at random; what survives names a missing assertion, or code that nobody needs.
Mutants that change nothing that matters stand in tests/mutants_equivalent.txt, with the reason, and do not count.
"""
import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ('models', 'weights', 'train', 'data', 'predict', 'config', 'cli')
EQUIVALENT = Path(__file__).with_name('mutants_equivalent.txt')
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}
NAMES = dict(min='max', max='min', any='all', all='any', sorted='list')


# What can be planted


def mutations(tree):
    """Yield what can be changed in a file: the node, a function that changes the tree, and what it does."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    yield from _of_node(parent, field, index, node)


def _of_node(parent, field, index, node):
    def put(new):
        def change():
            if index is None:
                setattr(parent, field, new)
            elif new is None:
                getattr(parent, field)[index] = ast.Pass()
            else:
                getattr(parent, field)[index] = new
        return change

    def swap(owner, name, new):
        return lambda: setattr(owner, name, new)

    if isinstance(node, ast.BoolOp):
        yield node, swap(node, 'op', SWAPS[type(node.op)]()), 'and/or'
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _is_text(node):
        yield node, swap(node, 'op', SWAPS[type(node.op)]()), 'operator'
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield node, (lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())), 'comparison'
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, put(node.operand), 'sign'
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)) and field != 'returns':
        new = (not node.value) if isinstance(node.value, bool) else node.value + 1 if isinstance(
            node.value, int) else node.value * 2 or 1.
        yield node, swap(node, 'value', new), f'{node.value} is {new}'
    elif isinstance(node, ast.IfExp):
        yield node, put(ast.IfExp(node.test, node.orelse, node.body)), 'the other of if and else'
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(parent, ast.Call) and field == 'func':
        yield node, swap(node, 'id', NAMES[node.id]), f'{node.id} is {NAMES[node.id]}'
    elif isinstance(node, (ast.If, ast.While)):
        yield node.test, swap(node, 'test', ast.UnaryOp(ast.Not(), node.test)), 'not'
    elif isinstance(getattr(node, 'value', None), ast.Call) and isinstance(node, ast.Expr) or isinstance(
            node, (ast.AugAssign, ast.Raise)):
        yield node, put(None), 'left out'
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, swap(node, 'value', ast.Constant(None)), 'None returned'
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield node, put(ast.Continue() if isinstance(node, ast.Break) else ast.Break()), 'break/continue'
    elif isinstance(node, ast.With) and not any(item.optional_vars for item in node.items):
        yield node.items[0].context_expr, put(ast.If(ast.Constant(True), node.body, [])), 'without with'
    elif isinstance(node, ast.keyword) and node.arg not in (None, 'strict', 'help', 'metavar', 'description'):
        yield node.value, (lambda: parent.keywords.remove(node)), f'without {node.arg}='


def _is_text(node):
    return any(isinstance(side, (ast.JoinedStr, ast.Constant)) and not isinstance(
        getattr(side, 'value', ''), (int, float)) for side in ast.walk(node))


def _is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def _is_sensible(node, parents):
    """Not in an error's words, an annotation, or what only tells people something."""
    while node is not None:
        if isinstance(node, ast.Raise) or isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[-1] in (
                'print_log', 'warning', 'info', 'print', 'TypeVar', 'ArgumentParser'):
            return False
        parent = parents.get(node)
        if isinstance(parent, (ast.arg, ast.AnnAssign)) and getattr(parent, 'annotation', None) is node:
            return False
        node = parent
    return True


def mutants_of(path):
    """Return all mutants of a file: number, lines, kind, and the statement before."""
    text = path.read_text()
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for number, (node, _, kind) in enumerate(mutations(tree)):
        if kind != 'left out' and not _is_sensible(node, parents):
            continue
        if isinstance(node, ast.Expr) and not _is_sensible(node.value, parents):
            continue
        place = node
        while not isinstance(place, ast.stmt):
            place = parents[place]
        function = place
        while function is not None and not isinstance(function, (ast.FunctionDef, ast.Module)):
            function = parents.get(function)
        last = place.end_lineno if not hasattr(place, 'body') else place.body[0].lineno
        found.append(dict(file=str(path.relative_to(ROOT)), number=number, line=node.lineno, first=place.lineno,
                          last=max(last, node.lineno), kind=kind, before=ast.unparse(node)[:100],
                          function=getattr(function, 'name', '')))
    return found


def planted(path, number):
    """Return the source of a file with one of its mutants."""
    tree = ast.parse(path.read_text())
    for i, (_, change, _) in enumerate(mutations(tree)):
        if i == number:
            change()
            return ast.unparse(ast.fix_missing_locations(tree))
    raise IndexError(number)


def name_of(mutant):
    return f'{mutant["file"]} {mutant["function"]}: {mutant["before"]}: {mutant["kind"]}'


# Which tests reach a line


class Recorder:
    """Notes for each test what it runs through and how long it takes, for a fixture that many share once."""

    def __init__(self, folder):
        import coverage
        self.coverage = coverage.Coverage(data_file=str(folder / 'coverage'), config_file=False,
                                          source=[str(Path('xcit_dense').absolute())])
        self.seconds, self.fixtures = Counter(), {}

    def pytest_sessionstart(self):
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope != 'function':
            self.coverage.switch_context(f'fixture {fixturedef.argname}')

    def pytest_runtest_call(self, item):
        self.fixtures[item.nodeid] = list(item.fixturenames)
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        self.coverage.stop()
        self.coverage.save()


class Chosen:
    """Runs some tests alone, in the order in which they stand."""

    def __init__(self, names):
        self.rank = {name: i for i, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])


def make_map(folder):
    """Run all quick tests once, and write which reach which line."""
    copy = copy_tree(folder / 'copy')
    print('running all tests once, to see which lines each reaches ...', flush=True)
    code, _ = in_child(copy, lambda: _run_pytest(copy, ['tests'], Recorder(folder), folder), folder / 'map.log', 3600)
    if code:
        sys.exit(f'error: the tests fail without any mutant, see {folder / "map.log"}')


def _run_pytest(copy, args, plugin, folder=None):
    import pytest
    code = pytest.main([*args, '-q', '-x', '-p', 'no:cacheprovider', f'--basetemp={copy}.tmp',
                        '--rootdir', str(copy), '-c', str(copy / 'pyproject.toml')], plugins=[plugin])
    if folder and not code:
        lines = defaultdict(list)
        data = plugin.coverage.get_data()
        for file in data.measured_files():
            name = str(Path(file).relative_to(copy))
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[f'{name}:{line}'] = [context for context in contexts if context]
        (folder / 'map.json').write_text(json.dumps(dict(lines=lines, seconds=plugin.seconds,
                                                         fixtures=plugin.fixtures)))
    return code


def tests_of(mutant, reached, limit):
    """Return the tests for a mutant, those of its room and the quickest first, up to a limit, and their seconds."""
    lines, seconds, fixtures = reached['lines'], reached['seconds'], reached['fixtures']
    room = mutant['file'].split('/')[1].removesuffix('.py')
    contexts = {context for line in range(mutant['first'], mutant['last'] + 1)
                for context in lines.get(f'{mutant["file"]}:{line}', ())}
    shared = {context.removeprefix('fixture ') for context in contexts if context.startswith('fixture ')}
    names = {name for name in seconds if name in contexts or shared & set(fixtures.get(name, ()))}
    names |= {name for name in seconds if 'two_processes' in fixtures.get(name, ()) and room in name}
    if not contexts:  # at import
        names = {name for name in seconds if name.startswith(f'tests/{room}')}
    chosen, total = [], 0.
    for name in sorted(names, key=lambda name: (not name.startswith(f'tests/{room}'), seconds[name])):
        if total + seconds[name] < limit:
            chosen.append(name)
            total += seconds[name]
    return chosen, total


# Running


def copy_tree(to):
    """Copy what the tests need into an empty folder."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns('.*', 'work_dirs', 'build', '__pycache__'))
    return to


def preload():
    """Import what takes long and holds no mutant, so that each run is a fork of this process."""
    sys.modules['__main__'].IS_TOOL_OF_XCIT_DENSE = True  # the package loads nothing by itself
    sys.path.insert(0, str(ROOT))
    from xcit_dense.compat import mmcv_ops
    mmcv_ops.install_stand_in()
    for name in ('cv2', 'matplotlib.pyplot', 'mmdet.apis', 'mmdet.datasets', 'mmdet.models', 'mmdet.evaluation',
                 'mmseg.apis', 'mmseg.datasets', 'mmseg.models', 'mmpretrain', 'timm', 'peft', 'pytest', 'torch',
                 'torchvision'):
        with suppress(ImportError):
            __import__(name)
    sys.path.remove(str(ROOT))
    del sys.modules['__main__'].IS_TOOL_OF_XCIT_DENSE
    for name in [name for name in sys.modules if name.split('.')[0] == 'xcit_dense' or name == 'mmcv._ext']:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith('xcit_dense')]


def in_child(copy, run, log, seconds):
    """Run a function in a fork, in a folder; return its exit code (None: not in time) and the seconds it took."""
    start, child = time.monotonic(), os.fork()
    if not child:
        os.setsid()
        with open(log, 'w') as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(copy)
        sys.path[:0] = [str(copy), str(copy / 'tests')]
        code = 3
        try:
            code = int(run())
        finally:
            os._exit(code)
    while time.monotonic() - start < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _kill(child)
            return os.waitstatus_to_exitcode(status), time.monotonic() - start
        time.sleep(0.05)
    _kill(child)
    os.waitpid(child, 0)
    return None, time.monotonic() - start


def _kill(group):
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def work(job, folder, todo, done):
    """Plant mutants until there are no more."""
    copy = copy_tree(folder / f'copy{job}')
    while (task := todo.get()) is not None:
        mutant, tests, expected = task
        target = copy / mutant['file']
        kept = target.read_text()
        target.write_text(planted(ROOT / mutant['file'], mutant['number']))
        shutil.rmtree(target.parent / '__pycache__', ignore_errors=True)
        log = folder / f'log{job}.txt'
        code, seconds = (0, 0.) if not tests else in_child(copy, lambda tests=tests: _run_pytest(
            copy, sorted({name.partition('::')[0] for name in tests}), Chosen(tests)), log, 60 + 4 * expected)
        target.write_text(kept)
        shutil.rmtree(target.parent / '__pycache__', ignore_errors=True)
        if code in (4, 5):  # pytest could not be called, or found none of the tests
            code, tests = 0, []
        caught = code != 0
        by = next((line for line in log.read_text(errors='replace').splitlines()
                   if line.startswith(('FAILED', 'ERROR'))), f'exit code {code}') if caught else ''
        done.put(dict(mutant, caught=caught, by=by[:160], seconds=round(seconds, 1), tests=len(tests)))


def main():
    """Draw mutants, run the tests on each, and write what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=200, help='how many mutants to draw (default: 200)')
    parser.add_argument('--seed', type=int, default=0, help='of the draw (default: 0)')
    parser.add_argument('--jobs', type=int, default=2, help='processes (default: 2)')
    parser.add_argument('--limit', type=float, default=60, metavar='SECONDS',
                        help='of tests for each mutant, as long as they took without it (default: 60)')
    parser.add_argument('--survivors', action='store_true', help='run those that survived last time alone')
    parser.add_argument('--keep-map', action='store_true', help='use the map of tests and lines of the last time')
    parser.add_argument('--out', default='build/mutants', metavar='DIR', help='default: build/mutants')
    args = parser.parse_args()
    os.environ['OMP_NUM_THREADS'] = '1'
    folder = Path(args.out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = [mutant for room in ROOMS for path in sorted((ROOT / 'xcit_dense' / room).rglob('*.py'))
             for mutant in mutants_of(path)]
    drawn = sorted(random.Random(args.seed).sample(every, min(args.count, len(every))),
                   key=lambda mutant: (mutant['file'], mutant['line']))
    if args.survivors:
        before = json.loads((folder / 'mutants.json').read_text())
        names = {name_of(mutant) for mutant in before if not mutant['caught']}
        drawn = [mutant for mutant in drawn if name_of(mutant) in names]
    preload()
    if not (args.keep_map and (folder / 'map.json').exists()):
        make_map(folder)
    reached = json.loads((folder / 'map.json').read_text())
    context = get_context('fork')
    todo, done = context.Queue(), context.Queue()
    for mutant in [*drawn, *[None] * args.jobs]:
        todo.put(mutant and (mutant, *tests_of(mutant, reached, args.limit)))
    workers = [context.Process(target=work, args=(job, folder, todo, done)) for job in range(args.jobs)]
    for worker in workers:
        worker.start()
    results = []
    for number in range(1, len(drawn) + 1):
        result = done.get()
        results.append(result)
        print(f'[{number}/{len(drawn)}] {"caught  " if result["caught"] else "SURVIVED"} {result["seconds"]:5.1f} s '
              f'{result["tests"]:>3} tests {result["file"]}:{result["line"]} {result["before"]!r}: {result["kind"]} '
              f'{result["by"]}', flush=True)
    results.sort(key=lambda result: (result['file'], result['line']))
    (folder / 'mutants.json').write_text(json.dumps(results, indent=1))
    print(report(results))


def report(results):
    """Return a table by room, and the survivors."""
    known = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    equivalent = {line.partition(' | ')[0] for line in known}
    rows = defaultdict(Counter)
    for result in results:
        for room in (result['file'].split('/')[1], 'all'):
            rows[room]['drawn'] += 1
            rows[room]['caught'] += result['caught']
            rows[room]['equivalent'] += not result['caught'] and name_of(result) in equivalent
    lines = ['', 'room      drawn  caught  equivalent  caught of the others']
    for room, row in rows.items():
        share = row['caught'] / max(row['drawn'] - row['equivalent'], 1)
        lines.append(f'{room:<9} {row["drawn"]:>5} {row["caught"]:>7} {row["equivalent"]:>11} {share:>21.1%}')
    left = [name_of(result) for result in results if not result['caught'] and name_of(result) not in equivalent]
    return '\n'.join([*lines, '', *left])


if __name__ == '__main__':
    main()
