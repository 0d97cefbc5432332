"""The hook for `DINO`: the teacher that follows the student, and the schedules."""
import math

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop
from torch.nn.utils import clip_grad_norm_

from ..data.batches import unwrapped
from .dino import cosine, linear


@HOOKS.register_module()
class DINOHook(Hook):
    """Moves the teacher of a `DINO` after each optimizer step and runs its schedules. Each value is in the log.

    Lengths are in epochs, or in iterations if the training counts iterations. ``clip_grad`` of the optimizer wrapper
    limits the norm of each parameter's gradient by itself, as in the authors' code.

    Args:
        momentum: Momentum of the teacher at the start and the end; it follows a cosine over the whole training.
        teacher_temperature: At the start and after the warm-up, which is linear.
        warmup: Length of that warm-up.
        freeze_last_layer: How long the prototypes do not change.

    Raises:
        ValueError: A momentum is not from 0 to 1.
    """

    def __init__(self, momentum=(0.996, 1.), teacher_temperature=(0.04, 0.07), warmup: int = 30,
                 freeze_last_layer: int = 1):
        if not all(0 <= value <= 1 for value in momentum):
            raise ValueError(f'momentum must be two numbers from 0 to 1, got {momentum!r}')
        self.momentum, self.teacher_temperature = tuple(momentum), tuple(teacher_temperature)
        self.warmup, self.freeze_last_layer = warmup, freeze_last_layer

    def before_train(self, runner):
        """Follow the optimizer's steps."""
        model, wrapper = unwrapped(runner.model), runner.optim_wrapper
        if getattr(wrapper, 'clip_func', None) is clip_grad_norm_:  # not that of values
            wrapper.clip_func = clip_each_norm

        def freeze(*_):
            if progress(runner) < self.freeze_last_layer:
                model.student.head.last_layer.zero_grad(set_to_none=True)

        def follow(*_):
            model.teacher.follow(model.student, self._momentum)

        # hooks of the optimizer, not of the iteration: gradients of several iterations may be summed up, and in mixed
        # precision a step with infinite gradients is skipped
        wrapper.optimizer.register_step_pre_hook(freeze)
        wrapper.optimizer.register_step_post_hook(follow)

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        """Set the values of this iteration and log them."""
        model = unwrapped(runner.model)
        self._momentum = cosine(*self.momentum, runner.iter, runner.max_iters)
        model.teacher_temperature = linear(*self.teacher_temperature, progress(runner), self.warmup)
        decay = max(group['weight_decay'] for group in runner.optim_wrapper.optimizer.param_groups)
        bound = math.log(len(model.teacher.centre))  # the largest entropy, in nats: that of equal prototypes
        for name, value in dict(teacher_momentum=self._momentum, teacher_temperature=model.teacher_temperature,
                                weight_decay=decay, entropy_bound=bound).items():
            runner.message_hub.update_scalar(f'train/{name}', value)


def progress(runner) -> int:
    """Return how many epochs are over, or iterations if the training counts iterations."""
    return runner.epoch if isinstance(runner.train_loop, EpochBasedTrainLoop) else runner.iter


def clip_each_norm(parameters, **options):
    """Limit the norm of each parameter's gradient by itself; return the norm of all before, for the log."""
    return torch.linalg.vector_norm(torch.stack([clip_grad_norm_(parameter, **options) for parameter in parameters]))
