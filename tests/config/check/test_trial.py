"""What happens in the copy of the process: it has no lasting effects, and a check that fails is only a warning."""
import gc
import logging
import os
import time

import torch
from mmengine.logging import MMLogger

from helpers.paths import TINY_CONFIG
from xcit_dense.config import check
from xcit_dense.config.check import check_config, trial
from xcit_dense.config.check.trial import warn_of
from xcit_dense.config.loading import load_config


def fails():
    raise ZeroDivisionError('so it is')


def asks_the_network():
    trial.socket.getaddrinfo('localhost', 80)


def test_a_check_that_stops_is_told_and_has_no_findings(mistakes, monkeypatch):
    """Findings of the other checks stay."""
    warned = []
    monkeypatch.setattr(trial, 'warn_of', warned.append)  # which would otherwise fail the test
    for function, patience, *words in (
            (fails, 60, 'ZeroDivisionError: so it is', __file__), (lambda: [lambda: None], 60, 'pickle'),
            (asks_the_network, 60, 'NoNetwork'), (lambda: os._exit(3), 60, 'died'),
            (lambda: time.sleep(60), 0.5, '0.5 s')):
        monkeypatch.setattr(trial, '_PATIENCE', patience)
        assert trial.in_child(function) == []
        problem = warned.pop()
        assert not warned and all(word in problem for word in words)
    monkeypatch.setattr(check, '_check_by_building', lambda cfg: fails())
    cfg = load_config(TINY_CONFIG)
    check_config(cfg)
    cfg.train_dataloader.batch_size = 0
    line, = mistakes(cfg)
    assert 'batch_size' in line and len(warned) == 2


def test_the_copy_keeps_its_effects_to_itself(capfd):

    def look():
        torch.manual_seed(3)
        os.environ['OF_THE_COPY'] = '1'
        logging.getLogger('of the copy').addHandler(logging.NullHandler())
        os.write(1, b'said by the copy')
        os.write(2, b'said by the copy')
        try:
            trial.socket.getaddrinfo('localhost', 80)
        except trial.NoNetwork:
            return [os.getpid(), torch.get_num_threads(), gc.isenabled(), logging.root.manager.disable]
        return []

    before = torch.initial_seed(), torch.get_num_threads()
    pid, *rest = trial.in_child(look)
    assert pid != os.getpid() and rest == [1, False, logging.CRITICAL]
    assert (torch.initial_seed(), torch.get_num_threads()) == before and 'OF_THE_COPY' not in os.environ
    assert not logging.getLogger('of the copy').handlers and gc.isenabled()
    assert trial.socket.getaddrinfo is not trial._no_network and 'said by the copy' not in ''.join(capfd.readouterr())


def test_the_warning_names_the_problem(monkeypatch):
    said = []
    monkeypatch.setattr(MMLogger.get_current_instance(), 'handle', said.append)
    warn_of('so it is')
    record, = said
    assert record.levelno == logging.WARNING and 'so it is' in record.getMessage()
