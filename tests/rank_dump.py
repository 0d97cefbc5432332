"""A hook for the tests: what each process of a run holds at its end."""
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class RankDumpHook(Hook):

    def after_train(self, runner):
        torch.save(dict(runner.model.named_parameters()), Path(runner.work_dir, f'rank{get_rank()}.pt'))
