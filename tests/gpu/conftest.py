"""Checks of a GPU: each in a process of its own; what it finds is kept at once, and a page is written from it."""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gpu.checking import Check
from gpu.page import NOT_RUN, Results
from gpu.tools import end_all

#: The modules of checks, each a stage, in the order in which they run.
STAGES = 'graphs', 'right', 'steps', 'trains', 'fast', 'kernels', 'compiled'


def pytest_addoption(parser):
    group = parser.getgroup('gpu', 'checks of a GPU, with -m gpu tests/gpu')
    group.addoption('--gpu-out', type=Path, default=Path('work_dirs/gpu'), metavar='DIR', help='folder for '
                    'gpu_report.json, which keeps the results of all runs with this folder, gpu_report.md and the '
                    'plots (default: work_dirs/gpu)')
    group.addoption('--gpu-data', type=Path, metavar='DIR', help='folder with coco and ade20k, samples of both data '
                    'sets in their layouts, for the full configs (default: generated images)')
    group.addoption('--gpu-device', choices=('cuda', 'cpu'), default='cuda', help='cpu: see that the checks run, '
                    'without a GPU; needs --tiny or much time (default: cuda)')
    group.addoption('--tiny', action='store_true', help='smallest models, images and lengths')
    group.addoption('--minutes', type=float, default=90., metavar='N', help='end after this time; checks that did not '
                    'begin are reported as not run (default: 90)')
    # these two are set in the process of a check
    group.addoption('--gpu-file', type=Path, help=argparse.SUPPRESS)
    group.addoption('--gpu-end', type=float, help=argparse.SUPPRESS)


def pytest_configure(config):
    config.gpu_results = None


def _place(item):
    """Return the stage and the name of a check."""
    return item.path.stem.removeprefix('test_'), item.name.removeprefix('test_')


@pytest.hookimpl(trylast=True)  # after other orders
def pytest_collection_modifyitems(items):
    """Run the checks stage by stage and each stage as it is written: the most important ones first."""
    def rank(item):
        stage, _ = _place(item)
        return (STAGES.index(stage) if stage in STAGES else 0, item.location[1])

    checks = sorted((item for item in items if item.get_closest_marker('gpu')), key=rank)
    items[:] = [item for item in items if item not in checks] + checks


def pytest_collection_finish(session):
    """Note every check as not run, so that the page of a run that is cut off names it."""
    option, checks = session.config.option, [item for item in session.items if item.get_closest_marker('gpu')]
    if not checks or option.collectonly or getattr(option, 'gpu_file', True) or not _has_device(option):
        return
    if option.gpu_data and not option.gpu_data.is_dir():
        raise pytest.UsageError(f'--gpu-data: there is no folder {option.gpu_data}')
    results = session.config.gpu_results = Results(option.gpu_out.resolve(), option.gpu_device, option.tiny,
                                                   session.config.invocation_params.args, option.minutes)
    for item in checks:
        results.expect(*_place(item), *(thing.__doc__.partition('\n')[0].rstrip('.')
                                        for thing in (item.module, item.function)))


def _has_device(option):
    return option.gpu_device == 'cpu' or torch.cuda.is_available()


@pytest.fixture
def check(request):
    """The `Check`: device, size and folders of a check, and what it records."""
    option = request.config.option
    if not hasattr(option, 'gpu_out'):
        pytest.skip('the options of the checks are known only if their folder is named: pytest -m gpu tests/gpu')
    if not _has_device(option):
        pytest.skip('there is no GPU that torch can use; to see that the checks run: --gpu-device cpu --tiny')
    return Check(option.gpu_device, option.tiny, option.gpu_out.resolve(), option.gpu_file,
                 option.gpu_data and option.gpu_data.resolve(), option.gpu_end)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a check in a process of its own, so that whatever it does to the GPU or to its process ends there."""
    results = pyfuncitem.config.gpu_results
    if results is None or not pyfuncitem.get_closest_marker('gpu'):
        return None
    marker = pyfuncitem.get_closest_marker('minutes')
    # a CPU, which others may use too, gets ten times as long
    minutes = (marker.args[0] if marker else 2.) * (1 if pyfuncitem.config.option.gpu_device == 'cuda' else 10)
    found = _run(pyfuncitem, min(minutes, results.minutes_left()), is_own=minutes <= results.minutes_left())
    results.add(*_place(pyfuncitem), found)
    with pyfuncitem.config.pluginmanager.getplugin('capturemanager').global_and_fixture_disabled():
        print(f'\n{"/".join(_place(pyfuncitem))}: {found["outcome"]} ({found["seconds"]:.0f} s): {found["text"]}',
              flush=True)
    if found['outcome'] == 'failed':
        pytest.fail(found['text'], pytrace=False)
    if found['outcome'] in ('skipped', NOT_RUN):
        pytest.skip(found['text'])
    return True


def _run(item, minutes, is_own):
    """Run a check in its process for some minutes, its own limit or what is left for all; return what it recorded."""
    option, start, over = item.config.option, time.monotonic(), None
    if minutes <= 0:
        return dict(outcome=NOT_RUN, text=f'the {option.minutes:g} minutes were over', rows=[], facts={}, seconds=0)
    out = option.gpu_out.resolve()
    file, log = out / f'check_{os.getpid()}.json', out / 'logs' / f'{"_".join(_place(item))}.txt'
    log.parent.mkdir(exist_ok=True)
    # with =, as pytest looks for its settings above all that could be a path
    words = [f'--gpu-file={file}', f'--gpu-out={out}', f'--gpu-device={option.gpu_device}',
             f'--gpu-end={start + 60 * minutes}', *(['--tiny'] if option.tiny else []),
             *([f'--gpu-data={option.gpu_data.resolve()}'] if option.gpu_data else [])]
    command = [sys.executable, '-m', 'pytest', item.nodeid, '-m', 'gpu', '--rootdir', item.config.rootpath,
               '--confcutdir', Path(__file__).parent, '-p', 'no:cacheprovider', '-s', '--tb=short',
               '-o', f'faulthandler_timeout={30 * minutes}', *words]  # after half its time the log says where it is
    # cuBLAS needs it in deterministic mode, and reads it only once in a process
    environment = {'CUBLAS_WORKSPACE_CONFIG': ':4096:8', **os.environ}
    if option.gpu_device == 'cpu':
        environment['CUDA_VISIBLE_DEVICES'] = ''
    with log.open('w') as output:
        process = subprocess.Popen([*map(str, command)], cwd=item.config.rootpath, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT)
        try:
            process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            over = f'stopped after {60 * minutes:.0f} s'
        finally:
            end_all(process)
    found = dict(text='', rows=[], facts={}) | (json.loads(file.read_text()) if file.exists() else {})
    file.unlink(missing_ok=True)
    if over or 'outcome' not in found:
        reason = over or f'its process died (exit code {process.returncode}), see {log}'
        found.update(outcome='failed' if is_own or not over else NOT_RUN, text=_joined(reason, found['text']))
    return dict(found, seconds=round(time.monotonic() - start, 1))


def _joined(reason, text):
    return reason if text in ('', reason) else f'{reason}; {text}'


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In the process of a check: add its outcome to what it recorded."""
    report = yield
    file = getattr(item.config.option, 'gpu_file', None)
    if file and (report.when == 'call' or not report.passed):
        found = json.loads(file.read_text()) if file.exists() else {}
        reason, error = '', call.excinfo and call.excinfo.value
        if error is not None:
            kind = '' if isinstance(error, (pytest.fail.Exception, pytest.skip.Exception)) else type(error).__name__
            reason = ': '.join(filter(None, (kind, (str(error).strip().splitlines() or [''])[0][:400])))
        found.update(outcome=report.outcome, text=_joined(reason, found.get('text', '')) if reason else found['text'])
        file.write_text(json.dumps(found))
    return report


def pytest_terminal_summary(terminalreporter, config):
    if config.gpu_results:
        for file in config.gpu_results.write_page(with_plots=True):
            terminalreporter.write_line(f'wrote {file}')
