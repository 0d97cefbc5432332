"""Losses on the validation data, beside the metrics."""
import copy
import math
from contextlib import contextmanager

import torch
from mmengine.dist import all_gather_object, get_dist_info
from mmengine.hooks import Hook, LoggerHook
from mmengine.registry import HOOKS
from mmengine.runner import autocast

from .._utils.processes import is_first_process
from .._utils.text import counted, first_line
from ..compat.internals import built_train_loop
from ..config.options import loss_dataloader
from ..data.batches import split_by_size, unwrapped
from .loaders import explained, file_of
from .resuming import isolated_random_state


@HOOKS.register_module()
class ValLossHook(Hook):
    """Adds ``val/loss`` and its terms to the metrics of every validation: ``custom_hooks=[dict(type='ValLossHook')]``.

    They are means over all validation images, each of which counts once, also in several processes. The model is in
    eval mode and has the weights that are evaluated, nothing is augmented, and random numbers depend only on the image.
    The losses leave no trace in the training: neither in its random numbers, nor in buffers or other states of the
    model. An image without losses is left out, with a warning.
    """

    priority = 'HIGHEST'  # before hooks that log the metrics, or put other weights back
    _loader = None

    def before_val_epoch(self, runner):
        """Drop the losses of the last validation: mmengine would log the mean over several validations."""
        scalars = runner.message_hub.log_scalars
        for name in [name for name in scalars if name.startswith('val/val/')]:
            del scalars[name]

    def after_val_epoch(self, runner, metrics=None):
        """Add the losses to the metrics."""
        if metrics is None:
            return
        if self._loader is None:
            config = dict(loss_dataloader(runner.cfg), sampler=dict(type='DefaultSampler', shuffle=False),
                          batch_sampler=dict(type=_batches))
            self._loader = runner.build_dataloader(config, seed=0)
            self._count = math.ceil(len(self._loader.dataset) / config['batch_size'])  # of batches, of all processes
        metrics.update({f'val/{name}': value for name, value in self._measure(runner).items()})

    def _measure(self, runner):
        """Return the means of the losses by name."""
        rank, world_size = get_dist_info()
        check = getattr(built_train_loop(runner), 'check_signals', lambda: None)
        interval = next((hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)), 50)
        found, failed = [], []
        with _apart(runner.model) as model, explained('val_dataloader'):
            for done, (places, batch) in enumerate(zip(self._loader.batch_sampler, self._loader, strict=True), 1):
                number = rank + (done - 1) * world_size
                try:
                    # all processes compute together, also what does not count
                    terms = self._terms(runner, model, batch, number)
                    if number < self._count:
                        found.append((len(places), terms))
                except Exception as error:  # of any type, and the training goes on
                    file = file_of(self._loader.dataset, places[0])
                    failed.append(f'{file}: {type(error).__name__}: {first_line(error)}')
                if done % interval == 0 and is_first_process():
                    runner.logger.info(f'Loss(val)  [{done}/{len(self._loader)}]')
                check()
        found, failed = (sum(parts, []) for parts in zip(*all_gather_object((found, failed)), strict=True))
        if failed:
            runner.logger.warning(f'{counted(len(failed), "batches")} without a validation loss, such as {failed[0]}')
        return _means(found) or dict(loss=math.nan)

    def _terms(self, runner, model, batch, number):
        """Return the losses of a batch by name, as means over its images, which may differ in size."""
        module = unwrapped(model)
        parts = split_by_size(model, batch)
        # some heads wait for the other processes: all compute equally often
        repeated = parts[-1:] * (max(all_gather_object(len(parts))) - len(parts))
        with torch.no_grad(), isolated_random_state(0, number), autocast(
                enabled=getattr(runner.val_loop, 'fp16', False)):
            torch.cuda.manual_seed(number)  # waits until there is a GPU
            losses = [_losses(model, module, part) for _, part in (*parts, *repeated)]
        return _means([(len(places), terms) for (places, _), terms in zip(parts, losses, strict=False)])


def _batches(sampler, batch_size):
    """Return the batches of this process, of consecutive images; some come twice, so that each process has as many."""
    rank, world_size = get_dist_info()
    places = range(len(sampler.dataset))
    batches = [places[start:start + batch_size] for start in places[::batch_size]]
    return [batches[number % len(batches)] for number in range(rank, len(batches) + rank, world_size)]


@contextmanager
def _apart(model):
    """Context with a model in eval mode whose losses change neither the model nor any random numbers: a copy that
    shares the parameters, as a few losses keep statistics."""
    module = unwrapped(model)
    model = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []), \
            isolated_random_state(0):
        yield model.eval()  # the loops set it to train before the next batch


def _losses(model, module, batch):
    inputs = _preprocessor(module)(batch, True)
    losses = model(**inputs, mode='loss') if isinstance(inputs, dict) else model(*inputs, mode='loss')
    _, terms = type(module).parse_losses(module, losses)  # the object's own stops at NaN
    terms = {name: torch.as_tensor(value).float() for name, value in terms.items() if 'loss' in name}
    if not terms.keys() - {'loss'} and 'loss' not in losses:
        raise ValueError(f'{type(module).__name__} returns no losses in eval mode')
    return dict(zip(terms, torch.stack([value.cpu() for value in terms.values()]).tolist(), strict=True))


def _means(found):
    """Return the means of losses by name; ``found`` has numbers of images and their losses."""
    images, names = sum(count for count, _ in found), dict.fromkeys(name for _, terms in found for name in terms)
    # exact sums do not depend on the order
    return {name: math.fsum(count * terms.get(name, 0.) for count, terms in found) / images for name in names}


def _preprocessor(module):
    """Return a data preprocessor that makes targets as in training, and images as in validation."""
    made = copy.deepcopy(module.data_preprocessor)
    made.batch_augments = None
    if hasattr(made, 'seg_pad_val'):  # mmseg's: in training it pads to the size of a crop
        padding = made.test_cfg or dict(size_divisor=1)
        made.size, made.size_divisor = padding.get('size'), padding.get('size_divisor')
    return made
