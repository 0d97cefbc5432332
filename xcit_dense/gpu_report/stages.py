"""Run the checks of stages in processes of their own and keep what they find."""
import json
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from traceback import format_exc

from ..errors import ConfigError
from ..files import atomic_write
from ..machine import describe_machine
from ..text import did_you_mean
from .checks import Check, Outcome, Setting

#: The stages in the order in which they run, what each is about, and the module that holds its `CHECKS`.
STAGES = dict(
    right=('Right: the same results as on a CPU', f'{__package__}.right'),
    trains=('Trains: mixed precision, several processes, the full configs', f'{__package__}.trains'),
    fast=('Fast: throughput and memory beside other backbones', f'{__package__}.fast'),
    kernels=('Where the time goes: kernels of a block', f'{__package__}.kernels'),
    compiled=('Compiled: throughput and memory under torch.compile', f'{__package__}.compiled'))
FILE = 'gpu_report.json'
#: How the result of a check that ran out of time begins.
_STOPPED = 'stopped after'


def checks_of(stage: str) -> tuple[Check, ...]:
    """Return the checks of a stage."""
    return import_module(STAGES[stage][1]).CHECKS


def choose(stages, names) -> dict:
    """Return the checks to run by stage.

    Args:
        stages: Keys of `STAGES`.
        names: Names of checks; all checks of the stages if there are none.

    Raises:
        ConfigError: A stage has no such check.
    """
    checks = {stage: checks_of(stage) for stage in stages}
    known = [check.name for found in checks.values() for check in found]
    for name in names:
        if name not in known:
            raise ConfigError(f'--checks: there is no {name!r} in the chosen stages'
                              + did_you_mean(name, known, otherwise=f'; there are {", ".join(known)}'))
    return {stage: [check for check in found if not names or check.name in names] for stage, found in checks.items()}


def read(out) -> dict:
    """Return what earlier runs found in a folder, by stage and check; {} without any."""
    file = Path(out, FILE)
    return json.loads(file.read_text()) if file.exists() else {}


def check_same(found: dict, setting: Setting):
    """Check that results to merge with are of the same device and sizes.

    Raises:
        ConfigError: They are not.
    """
    for result in (result for results in found.values() for result in results.values()):
        if (result['device'], result['tiny']) != (setting.device, setting.tiny):
            words = f'--device {result["device"]}{" --tiny" if result["tiny"] else ""}'
            raise ConfigError(f'{setting.out} holds results of another kind ({words}): give another --out')


def run_stages(setting: Setting, chosen: dict, minutes: float, command: str, say) -> dict:
    """Run checks and save each result at once, next to those of earlier runs.

    Args:
        setting: What the checks get.
        chosen: What `choose` returned.
        minutes: A stage ends after this time; checks that did not begin are reported as not run.
        command: The command line, for the report.
        say: Function that is called with each line of progress.

    Returns:
        Everything that is known of the folder, as `read` returns it.
    """
    results = read(setting.out)
    for stage, checks in chosen.items():
        end = time.monotonic() + 60 * minutes
        with _Worker(setting, stage) as worker:
            for number, check in enumerate(checks, 1):
                left, limit = end - time.monotonic(), setting.seconds(check.minutes)
                say(f'{stage} {number}/{len(checks)}: {check.title} (at most {min(left, limit) / 60:.1f} '
                    f'minutes, {max(left, 0) / 60:.1f} left for the stage)')
                start = time.monotonic()
                result = worker.run(check, min(left, limit)) if left > 0 else None
                is_over = result is None or result['text'].startswith(_STOPPED) and left < limit  # not its own limit
                if is_over and check.name in results.get(stage, {}):
                    say('    not run again: the time of the stage is over; the earlier result stays')
                    continue
                if is_over and not (result and result['rows']):
                    result = dict(Outcome(None, f'the {minutes:g} minutes of the stage were over').as_dict(),
                                  machine=None)
                seconds = round(time.monotonic() - start, 1)
                result.update(seconds=seconds, title=check.title, device=setting.device, tiny=setting.tiny,
                              date=datetime.now().isoformat(' ', 'minutes'), command=command)
                results.setdefault(stage, {})[check.name] = result
                with atomic_write(Path(setting.out, FILE)) as part:
                    part.write_text(json.dumps(results, indent=1))
                say(f'    {word_of(result)} ({seconds:.0f} s): {result["text"]}')
    return results


def word_of(result: dict) -> str:
    """Return the state of a result as a word."""
    if result['machine'] is None and result['passed'] is None:
        return 'not run'
    none = 'not possible' if result['text'].startswith('not possible here') else 'measured'
    return {True: 'passed', False: 'FAILED', None: none}[result['passed']]


class _Worker:
    """A process that runs the checks of a stage; a new one if it dies, or after an error that a GPU does not survive.

    This process never uses the GPU itself.
    """

    def __init__(self, setting, stage):
        self._setting, self._stage, self._process, self._pipe = setting, stage, None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()

    def run(self, check, seconds):
        if self._process is None:
            self._start()
        kept = dict(Outcome(False, '').as_dict(), machine=None)
        try:
            end = time.monotonic() + seconds  # this clock is the same in all processes
            self._pipe.send((check.name, end))
            while self._pipe.poll(max(end - time.monotonic(), 0)):
                result = self._pipe.recv()
                if 'ends_process' not in result:  # what it found so far
                    kept = result
                    continue
                if result.pop('ends_process'):
                    self._stop()
                    result.update(rows=kept['rows'], facts=kept['facts'])
                return result
        except (EOFError, OSError):
            self._process.join(5)  # the pipe closes before there is an exit code
            kept.update(passed=False, text=f'its process died (exit code {self._process.exitcode}); its output is '
                        f'above; {kept["text"]}'.removesuffix('; '))
        else:
            kept.update(text=f'{_STOPPED} {seconds:.0f} s; {kept["text"]}'.removesuffix('; '))
        self._stop()
        return kept

    def _start(self):
        context = multiprocessing.get_context('spawn')
        self._pipe, theirs = context.Pipe()
        module = STAGES[self._stage][1]
        self._process = context.Process(target=_serve, args=(theirs, self._setting, self._stage, module), daemon=False)
        self._process.start()
        theirs.close()

    def _stop(self):
        if self._process is None:
            return
        # the trainings that it started end too, also those in a session of their own, as torch's launcher starts them
        for pid in (*descendants(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._process = None


def descendants(pid: int) -> list:
    """Return the numbers of the processes that a process started, and that these started. Linux only."""
    found = []
    for file in Path('/proc', str(pid), 'task').glob('*/children'):
        with suppress(OSError):  # it has ended
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _serve(pipe, setting, stage, module):
    """Run the checks of a module that the pipe names and send what they find."""
    if not setting.is_cuda:
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    # for deterministic mode; cuBLAS reads it only once, at its first use in a process
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    checks = {check.name: check for check in import_module(module).CHECKS}

    def keep(outcome):
        pipe.send(dict(outcome.as_dict(), machine=describe_machine()))

    with suppress(EOFError):
        while True:
            (name, end), fatal = pipe.recv(), False
            check = checks[name]
            try:
                outcome = check.run(replace(setting, end=end, keep=keep))
            except Exception as error:  # of any check: it is a result
                text = f'{type(error).__name__}: {error}'.strip()
                outcome, fatal = Outcome(False, text.splitlines()[0][:400]), True
                _write_traceback(setting, stage, check)
            pipe.send(dict(outcome.as_dict(), machine=describe_machine(), ends_process=fatal))


def _write_traceback(setting, stage, check):
    folder = Path(setting.out, 'errors')
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'{stage}_{check.name}.txt').write_text(format_exc())
