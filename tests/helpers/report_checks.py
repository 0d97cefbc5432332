"""A stage of checks that end in every way; a process of its own imports it."""
import os
import subprocess
import sys
import time

from xcit_dense.gpu_report.checks import Check, Outcome


def passes(setting):
    return Outcome(True, f'on the {setting.device}', [dict(what='a', error='1e-7'), dict(what='b', limit=3)],
                   dict(process=os.getpid(), gpus=os.environ.get('CUDA_VISIBLE_DEVICES')))


def fails(setting):
    return Outcome(False, 'beyond its limit by 3', facts=dict(process=os.getpid()))


def raises(setting):
    raise ValueError('wrong\nin two lines')


def dies(setting):
    os._exit(3)


def hangs(setting):
    """With a process of its own, as a training has workers."""
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    (setting.out / 'child').write_text(str(child.pid))
    time.sleep(600)


def hangs_later(setting):
    setting.keep(Outcome(None, 'one of two', [dict(what='a')]))
    time.sleep(600)


def dies_later(setting):
    setting.keep(Outcome(None, 'one of two', [dict(what='a')]))
    os._exit(3)


def raises_later(setting):
    setting.keep(Outcome(None, 'one of two', [dict(what='a')]))
    raise ValueError('wrong')


def measures(setting):
    return Outcome(None, 'three images a second', facts=dict(process=os.getpid()))


def cannot(setting):
    return Outcome(None, 'not possible here: no such device')


CHECKS = (Check('passes', 'It passes', passes), Check('fails', 'It fails', fails), Check('raises', 'It raises', raises),
          Check('dies', 'It dies', dies), Check('hangs', 'It hangs', hangs, 0.125),
          Check('hangs_later', 'It hangs later', hangs_later, 0.125),
          Check('dies_later', 'It dies later', dies_later), Check('raises_later', 'It raises later', raises_later),
          Check('measures', 'It measures', measures), Check('cannot', 'It cannot', cannot))
