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


def hangs(setting):
    """With a process of its own, as a training has workers."""
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    (setting.out / 'child').write_text(str(child.pid))
    time.sleep(600)


def later(end):
    """Return a check that keeps a part of its outcome and ends in a way."""

    def check(setting):
        setting.keep(Outcome(None, 'one of two', [dict(what='a')]))
        end(setting)

    return check


def measures(setting):
    return Outcome(None, 'three images a second', facts=dict(process=os.getpid()))


def dies(setting):
    os._exit(3)


def cannot(setting):
    return Outcome(None, 'not possible here: no such device')


CHECKS = (Check('passes', 'It passes', passes), Check('fails', 'It fails', fails), Check('raises', 'It raises', raises),
          Check('dies', 'It dies', dies), Check('hangs', 'It hangs', hangs, 0.125),
          Check('hangs_later', 'It hangs later', later(hangs), 0.125),
          Check('dies_later', 'It dies later', later(dies)), Check('raises_later', 'It raises later', later(raises)),
          Check('measures', 'It measures', measures), Check('cannot', 'It cannot', cannot))
