"""Weights that a training starts from: ``init_from`` of the config, or ``load_from``."""
import copy
import logging

import torch
from mmengine.logging import print_log
from mmengine.registry import DATASETS, MODELS

from ..config.check.keys import class_of
from ..data.classes import heads_of_classes, known_classes
from ..weights import load_model
from ..weights.new_classes import find_class_rows, start_model
from ..weights.zoo import PREFIX
from .randomness import isolated_random_state
from .sharding import unwrapped

#: Data sets of the published models, which have no class names, by the first word of their short names.
_PUBLISHED = dict(maskrcnn='CocoDataset', semfpn='ADE20KDataset', upernet='ADE20KDataset')


def load_weights(runner, checkpoint, source, starts: bool):
    """Load a checkpoint into the whole, unwrapped model of a runner.

    Args:
        runner: The runner.
        checkpoint: What `xcit_dense.weights.read_checkpoint` returned.
        source: Its file.
        starts: Whether tensors that depend on the classes may differ, see `start_model`; otherwise all must fit.

    Raises:
        CheckpointError: It does not fit.
    """
    model = unwrapped(runner.model)
    if not starts:
        load_model(model, checkpoint, source)
        return
    data = getattr(runner.train_dataloader.dataset, 'metainfo', None) or {}
    old = known_classes(checkpoint, source) or _published_classes(str(runner.loads_from))
    # in COCO files, names may be numbers
    old, new = (tuple(map(str, names or ())) for names in (old, data.get('classes')))
    start_model(model, checkpoint, source, _class_rows(model, runner.cfg.get('model')), old, new)


def _class_rows(model, cfg):
    """Return the `xcit_dense.weights.new_classes.ClassRows` of a model that was built from a config.

    The random state does not change. Nothing is returned if the model cannot be built for one class more; then all
    tensors must fit.
    """
    cfg = copy.deepcopy(cfg) if isinstance(cfg, dict) else {}
    heads = list(heads_of_classes(cfg))
    own = getattr(getattr(model, 'backbone', None), 'num_classes', None)  # a classifier's, which has a default
    counts = [head.get('num_classes') or own for head in heads]
    if not heads or not all(isinstance(count, int) for count in counts):
        return {}
    for head, count in zip(heads, counts, strict=True):
        head['num_classes'] = count + 1
    preprocessor = cfg.get('data_preprocessor') or {}
    if 'num_classes' in preprocessor:
        preprocessor['num_classes'] += 1
    for device in ('meta', 'cpu'):  # without memory, unless a constructor reads its parameters
        try:
            with isolated_random_state(0), torch.device(device):
                return find_class_rows(model, MODELS.build(copy.deepcopy(cfg)), counts[0])
        except Exception as error:  # of any type, as constructors may be users'
            problem = error
    print_log(f'cannot find out which tensors depend on the classes ({type(problem).__name__}: {problem}), so all '
              'tensors must fit', logger='current', level=logging.WARNING)
    return {}


def _published_classes(source):
    family = source.removeprefix(PREFIX).partition('_')[0]
    name = _PUBLISHED.get(family) if source.startswith(PREFIX) else None
    data = class_of(name, DATASETS)
    return tuple(data.METAINFO['classes']) if data else ()
