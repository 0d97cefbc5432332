"""Plant small mistakes in the package, one at a time, and see which the tests catch.

Each mistake (mutant) is planted in a copy of the tree. The tests that reach its line run there, the quickest first,
until one fails. `make mutants` draws 200 at random. A mutant that survives shows a missing assertion, or code that is
not needed. Mutants that change nothing that matters are in equivalent.txt, with the reason, and do not count.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from planting import ROOMS, ROOT, draw, mutants_of_room, planted

EQUIVALENT = Path(__file__).with_name('equivalent.txt')
CAUGHT = 'caught', 'crashed', 'not in time'


# Which tests reach a line


class Recorder:
    """Records which lines each test reaches and how long it takes; a shared fixture is recorded once."""

    def __init__(self, file):
        self.file, self.seconds, self.fixtures = str(file), Counter(), {}

    def found(self, copy):
        """Return the names of the tests and fixtures by line, and seconds and fixtures by test."""
        data = self.coverage.get_data()
        lines = {f'{Path(file).relative_to(copy)}:{line}': [context for context in contexts if context]
                 for file in data.measured_files() for line, contexts in data.contexts_by_lineno(file).items()}
        return dict(lines=lines, seconds=self.seconds, fixtures=self.fixtures)

    def pytest_sessionstart(self):
        import coverage
        self.coverage = coverage.Coverage(data_file=self.file, config_file=False,
                                          source=[str(Path('xcit_dense').absolute())])
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
    """Runs only the named tests, in the order of the names, and writes into a file which of them fail."""

    def __init__(self, names, file):
        self.rank, self.file, self.failed = {name: i for i, name in enumerate(names)}, file, {}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = None
            self.file.write_text(json.dumps([*self.failed]))


def make_map(folder, jobs, keep=False):
    """Run all quick tests once, some files in each process, and write which tests reach which line.

    Args:
        keep: Whether to run only the files that changed since the last map, and to keep the rest of it.
    """
    target, whole = folder / 'map.json', dict(lines=defaultdict(list), seconds={}, fixtures={})
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / 'tests').rglob('test_*.py')
                   if not keep or path.stat().st_mtime > target.stat().st_mtime)
    if not files:
        return
    if keep:
        before = json.loads(target.read_text())
        whole['lines'].update(before['lines'])
        whole.update({name: {test: value for test, value in before[name].items()
                             if test.partition('::')[0] not in files} for name in ('seconds', 'fixtures')})
    print(f'running {len(files)} files of tests once, to record which lines each reaches: 10 minutes for all. '
          f'Progress: {folder}/map0.log ...', flush=True)
    jobs = min(jobs, len(files))
    context, parts = get_context('fork'), [folder / f'map{job}.json' for job in range(jobs)]
    workers = [context.Process(target=_make_part, args=(folder, job, files[job::jobs])) for job in range(jobs)]
    for part, worker in zip(parts, workers, strict=True):
        part.unlink(missing_ok=True)
        worker.start()
    for part, worker in zip(parts, workers, strict=True):
        worker.join()
        if not part.exists():
            sys.exit(f'error: the tests fail without a mutant, see {part.with_suffix(".log")}')
        found = json.loads(part.read_text())
        for line, contexts in found.pop('lines').items():
            whole['lines'][line] += contexts
        for name, values in found.items():
            whole[name] |= values
    target.write_text(json.dumps(whole))


def _make_part(folder, job, files):
    copy, recorder = copy_tree(folder / f'copy{job}'), Recorder(folder / f'coverage{job}')

    def run():
        code = _run_pytest(copy, files, recorder)
        if code in (0, 5):  # 5: there are only slow ones
            (folder / f'map{job}.json').write_text(json.dumps(recorder.found(copy)))
        return code

    in_child(copy, run, folder / f'map{job}.log', 3600)


def _run_pytest(copy, args, plugin, options=('-x', )):
    import pytest
    return pytest.main([*args, '-q', *options, '-p', 'no:cacheprovider', f'--basetemp={copy}.tmp',
                        '--rootdir', str(copy), '-c', str(copy / 'pyproject.toml')], plugins=[plugin])


def tests_of(mutant, reached, limit):
    """Return the tests for a mutant up to a limit, those of its folder and the quickest first, and their seconds."""
    lines, seconds, fixtures = reached['lines'], reached['seconds'], reached['fixtures']
    room = mutant['file'].split('/')[1].removesuffix('.py')
    contexts = {context for line in range(mutant['first'], mutant['last'] + 1)
                for context in lines.get(f'{mutant["file"]}:{line}', ())}
    shared = {context.removeprefix('fixture ') for context in contexts if context.startswith('fixture ')}

    def is_in_two(name):  # maybe reached only in those, which are not recorded
        return 'two_processes' in fixtures.get(name, ())

    def order(name):
        parts = [Path(path).parent.parts[1:] for path in (mutant['file'], name.partition('::')[0])]
        return -len(os.path.commonprefix(parts)), bool(contexts) or not is_in_two(name), seconds[name]

    names = {name for name in seconds if name in contexts or shared & set(fixtures.get(name, ()))
             or is_in_two(name) and room in name}
    if not contexts:  # at import
        names = {name for name in seconds if name.startswith(f'tests/{room}')}
    chosen, total = [], 0.
    for name in sorted(names, key=order):
        if total + seconds[name] < limit:
            chosen.append(name)
            total += seconds[name]
    return chosen, total


# Running


def copy_tree(to):
    """Copy what the tests need into an empty folder."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(
        '.git', '.venv*', '.*cache', 'work_dirs', 'build', '_build', '__pycache__'))
    with suppress(FileExistsError):  # samples next to the checkout, which some tests use
        (to.parent / 'shared').symlink_to(ROOT.parent / 'shared')
    return to


class _Ops(ModuleType):
    """What mmcv keeps in the place of its ops: those of the package that is imported later, maybe with a mutant."""

    def __getattr__(self, name):
        return getattr(sys.modules['mmcv._ext'], name) if sys.modules['mmcv._ext'] is not self else None


def preload():
    """Import what takes long and contains no mutant, so that each run is a fork of this process."""
    sys.modules['__main__'].IS_TOOL_OF_XCIT_DENSE = True  # the package then imports nothing by itself
    sys.path.insert(0, str(ROOT))
    from xcit_dense.compat import mmcv_ops
    mmcv_ops.install_stand_in()
    if not hasattr(sys.modules['mmcv._ext'], '__file__'):  # compiled ops stay
        sys.modules['mmcv._ext'] = _Ops('mmcv._ext')
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
    """Run a function in a fork, in a folder; return its exit code (None: too slow) and the seconds it took."""
    start, child, code = time.monotonic(), os.fork(), None
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
    while code is None and time.monotonic() - start < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else time.sleep(0.05)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code, time.monotonic() - start


def work(job, folder, todo, done, whole):
    """Plant mutants until the queue is empty; whole: run all of their tests, not only until one fails."""
    copy = copy_tree(folder / f'copy{job}')
    log, failed = folder / f'log{job}.txt', folder / f'failed{job}.json'

    def run(tests, seconds):
        files = sorted({name.partition('::')[0] for name in tests})
        failed.write_text('[]')
        code, seconds = in_child(copy, lambda: _run_pytest(copy, files, Chosen(tests, failed), [] if whole else ['-x']),
                                 log, seconds)
        return code, seconds, json.loads(failed.read_text())

    while (task := todo.get()) is not None:
        mutant, tests, expected = task
        target, outcome, seconds, by = copy / mutant['file'], 'survived' if tests else 'no test ran', 0., []
        kept = target.read_text()
        if tests:
            _write(target, planted(target, mutant['number']))
            code, seconds, by = run(tests, 60 + 2 * expected)
            # a test that also fails without the mutant shows nothing
            _write(target, planted(target, None, kept))
            if code == 1 and by:
                code, _, again = run(by, max(300, 60 + 2 * expected))
                by = [name for name in by if name not in again] if code in (0, 1) else []
                outcome = 'caught' if by else 'test fails by itself'
            elif code is None:
                in_time = run(tests, 60 + 2 * expected)[0] is not None
                outcome, by = 'not in time' if in_time else 'test fails by itself', []
            elif code:  # an import failed, or the process died
                outcome = 'crashed' if run(tests[:1], 300)[0] == 0 else 'test fails by itself'
        _write(target, kept)
        done.put(dict(mutant, outcome=outcome, by=by, seconds=round(seconds, 1), tests=len(tests),
                      ran=sorted({name.partition('[')[0] for name in tests}) if whole else []))


def _write(path, text):
    path.write_text(text)
    shutil.rmtree(path.parent / '__pycache__', ignore_errors=True)


def main():
    """Draw mutants, run the tests on each, and report those that survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=200, help='how many mutants to draw (default: 200)')
    parser.add_argument('--seed', type=int, default=0, help='of the draw (default: 0)')
    parser.add_argument('--jobs', type=int, default=2, help='processes (default: 2)')
    parser.add_argument('--limit', type=float, default=120, metavar='SECONDS',
                        help='how long tests run for each mutant, measured without it (default: 120)')
    parser.add_argument('--survivors', action='store_true', help='run only those that survived last time')
    parser.add_argument('--keep-map', action='store_true', help='use the map of tests and lines of the last run; only '
                        'files of tests that changed since then run for it')
    parser.add_argument('--matrix', action='store_true', help='run all tests that reach a mistake, not only until one '
                        'fails, and list those that are never the only one, or one of two, to catch one')
    args = parser.parse_args()
    if args.matrix and args.survivors:
        parser.error('--matrix needs new mistakes: omit --survivors')
    os.environ['OMP_NUM_THREADS'] = '1'
    folder, before = Path('build/mutants').absolute(), {}
    folder.mkdir(parents=True, exist_ok=True)
    if args.survivors and not (folder / 'mutants.json').exists():
        parser.error('--survivors repeats those of an earlier run, and there was none')
    drawn = [] if args.survivors else draw(args.count, args.seed)
    if args.survivors:  # by name, as lines and tests may have changed; mutants that no longer exist are dropped
        every = {mutant['name']: mutant for room in ROOMS for mutant in mutants_of_room(room)}
        before = {result['name']: result for result in json.loads((folder / 'mutants.json').read_text())
                  if result['name'] in every}
        drawn = [every[name] for name, result in before.items() if result['outcome'] not in CAUGHT]
    preload()
    make_map(folder, args.jobs, keep=args.keep_map and (folder / 'map.json').exists())
    reached = json.loads((folder / 'map.json').read_text())
    context = get_context('fork')
    todo, done = context.Queue(), context.Queue()
    for mutant in [*drawn, *[None] * args.jobs]:
        todo.put(mutant and (mutant, *tests_of(mutant, reached, args.limit)))
    for job in range(args.jobs):
        context.Process(target=work, args=(job, folder, todo, done, args.matrix)).start()
    for number in range(1, len(drawn) + 1):
        result = done.get()
        before[result['name']] = result
        print(f'[{number}/{len(drawn)}] {result["outcome"]:<9} {result["seconds"]:5.1f} s {result["tests"]:>3} tests '
              f'{result["file"]}:{result["line"]} {result["before"]!r}: {result["kind"]} {" ".join(result["by"][:3])}',
              flush=True)
    results = sorted(before.values(), key=lambda result: (result['file'], result['line'], result['number']))
    (folder / 'mutants.json').write_text(json.dumps(results, indent=1))
    print(report(results))
    if args.matrix:
        print(needless(results, reached['seconds']))


def report(results):
    """Return a table by folder, and the survivors."""
    equivalent = {line.partition(' | ')[0] for line in EQUIVALENT.read_text().splitlines()}
    rows, left = defaultdict(Counter), []
    for result in results:
        outcome = 'caught' if result['outcome'] in CAUGHT else (
            'changes nothing' if result['name'] in equivalent else 'survived')
        for room in (result['file'].split('/')[1], 'all'):
            rows[room][outcome] += 1
        if outcome == 'survived':
            left.append(f'{result["outcome"]}: {result["name"]}')
    lines = ['', '| folder | planted | change nothing | caught of those that change something |', '|---|---|---|---|']
    rows['all'] = rows.pop('all', Counter())  # last
    for room, row in rows.items():
        rate = row['caught'] / max(row['caught'] + row['survived'], 1)
        lines.append(f'| {room} | {row.total()} | {row["changes nothing"]} | {rate:.1%} |')
    return '\n'.join([*lines, '', *left])


def needless(results, seconds):
    """Return the tests that ran, but caught no mistake alone or with one other, the dearest first."""
    costs, ran, caught, needed = Counter(), Counter(), Counter(), set()
    for name, cost in seconds.items():
        costs[name.partition('[')[0]] += cost
    for result in results:
        by = {name.partition('[')[0] for name in result['by']}  # all cases of a test are one
        ran.update(result['ran'])
        caught.update(by)
        needed |= by if len(by) < 3 else set()
    rows = sorted(((costs[name], caught[name], ran[name], name) for name in ran if name not in needed), reverse=True)
    return '\n'.join(['', 'seconds, mistakes that it caught with two or more others, and that it ran for, test:', *(
        f'{cost:7.2f} {count:4} {most:4} {name}' for cost, count, most, name in rows)])


if __name__ == '__main__':
    main()
