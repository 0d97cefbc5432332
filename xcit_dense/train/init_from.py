"""Weights that a training starts from: ``init_from`` of the config, or ``load_from``.

A model that was trained for other classes may be the start. Only the last layers of heads depend on the classes. Their
rows are copied class by class, by name; the rows of other classes start fresh. Everything else is loaded strictly.
"""
import copy
import logging
from collections import Counter
from dataclasses import dataclass

import torch
from mmengine.logging import print_log
from mmengine.registry import DATASETS, MODELS

from .._utils.text import counted, listed
from ..config.tasks import class_of
from ..data.batches import unwrapped
from ..data.classes import class_count, heads_of_classes, known_classes, set_class_count
from ..errors import CheckpointError
from ..weights import load_model
from ..weights.load import fit_channels, load_strictly, state_for
from ..weights.zoo import PREFIX
from .resuming import isolated_random_state

#: Data sets of the published models, which have no class names, by the first word of their short names.
_PUBLISHED = dict(maskrcnn='CocoDataset', semfpn='ADE20KDataset', upernet='ADE20KDataset')


def load_weights(runner, checkpoint, source, starts: bool):
    """Load what `xcit_dense.weights.read_checkpoint` returned into the whole, unwrapped model of a runner.

    If the training ``starts`` from it, tensors that depend on the classes may differ, see `start_model`; otherwise all
    must fit. `CheckpointError` if it does not fit.
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


@dataclass(frozen=True)
class ClassRows:
    """Which rows of a tensor, along one axis, belong to which class."""
    axis: int
    each: int  # number of rows of each class
    background: bool  # whether the background has rows too, after those of the last class
    #: Whether the rows are sorted by anchor, and within an anchor by class, as in dense heads. Otherwise the rows of a
    #: class are together, as in RoI heads.
    by_anchor: bool

    def count(self, size: int):
        """Return how many classes ``size`` rows are for, None if they do not divide evenly."""
        classes, rest = divmod(size - self.each * self.background, self.each)
        return None if rest or classes < 1 else classes

    def rows(self, label: int, count: int) -> list:
        """Return the rows of class ``label`` out of ``count``; label ``count`` is the background."""
        if self.by_anchor:
            return [anchor * (count + self.background) + label for anchor in range(self.each)]
        return list(range(label * self.each, (label + 1) * self.each))


def find_class_rows(model, wider, count: int) -> dict:
    """Return the `ClassRows` of the tensors of a model that depend on its number of classes, ``count``, by their names;
    None for a tensor whose rows cannot be assigned to classes. ``wider`` is the same model with one more class; its
    tensors need no data."""
    sizes, found = {name: value.shape for name, value in wider.state_dict().items()}, {}
    for name, value in model.state_dict().items():
        if value.shape == sizes.get(name, value.shape):
            continue
        axes = [axis for axis, pair in enumerate(zip(value.shape, sizes[name], strict=False)) if len(set(pair)) > 1]
        found[name] = None
        if len(axes) == 1 and value.dim() == len(sizes[name]):
            axis, size = axes[0], value.shape[axes[0]]
            each = sizes[name][axis] - size
            # rows that belong to no class: none, or as many as one class has, for the background
            background = size - each * count
            if each > 0 and background in (0, each):
                found[name] = ClassRows(axis, each, background > 0, each > 1 and _has_anchors(model, name))
    return found


def match_classes(old, new) -> dict:
    """Return the number of the old class with the same name, by the number of the new class.

    Case matters, unless there is exactly one candidate on each side.
    """
    numbers = {name: number for number, name in enumerate(old)}
    pairs = {i: numbers[name] for i, name in enumerate(new) if name in numbers}
    left = {number: old[number].casefold() for number in set(range(len(old))) - set(pairs.values())}
    waiting = {i: name.casefold() for i, name in enumerate(new) if i not in pairs}
    names, wanted = Counter(left.values()), Counter(waiting.values())
    unique = {name: number for number, name in left.items() if names[name] == 1}
    pairs.update((i, unique[name]) for i, name in waiting.items() if name in unique and wanted[name] == 1)
    return pairs


def start_model(model, checkpoint, source, class_rows, old, new):
    """Load everything that fits from a trained model into one that may have other classes.

    Only tensors that depend on the classes (``class_rows``, of `find_class_rows`) may differ: the rows of classes with
    the same name are copied, and those of the background; the other rows start fresh. Without class names, these
    tensors are copied as they are, or start fresh if their shape differs, as do those of another number of anchors. All
    other tensors are loaded strictly, except a stem with another number of channels (`fit_channels`). If the file holds
    only a backbone, only the backbone is filled. The log names each tensor that was not copied as it is.

    The names of the ``old`` and the ``new`` classes, in the order of a model's outputs, are empty if they are not
    known. `CheckpointError` if a tensor is missing, left over, of another shape, or cannot be a weight. The model is
    unchanged then.
    """
    state, title, contents = state_for(model, checkpoint, source)
    backbone = getattr(model, 'backbone', None)
    is_classifier = hasattr(backbone, 'cls_attn_blocks')
    if hasattr(backbone, 'load_weights') and contents.layout and not contents.heads and not is_classifier:
        print_log(f'{title} holds {contents}: the backbone starts from it, neck and heads start fresh',
                  logger='current')
        backbone.load_weights(source)
        return
    state, fresh, texts = dict(fit_channels(model, state, title)), set(), []
    pairs, values = match_classes(old, new), model.state_dict()
    for name, rows in class_rows.items():
        if name not in state and not is_classifier:
            continue
        value, text = _fitted(values[name], state[name], rows, old, new, pairs) if name in state else (
            None, 'the file has none, so it starts fresh')  # such as DINO's
        if text:
            print_log(f'{name}: {text}', logger='current')
            texts.append(text)
        if value is None:
            fresh.add(name)
            state.pop(name, None)
        else:
            state[name] = value
    for name in [name for name in state if name in values and _has_anchors(model, name)]:
        found, own = state[name].shape, values[name].shape
        if found != own and found[1:] == own[1:] and name not in class_rows:
            print_log(f'{name}: starts fresh, as the file has another number of anchors', logger='current')
            fresh.add(name)
            del state[name]
    try:
        load_strictly(model, state, title, contents, f'a whole {type(model).__name__}', may_lack=fresh.__contains__)
    except CheckpointError as error:
        only_backbone = ('. To load only the backbone, replace --init-from by --cfg-options init_from=None '
                         f'model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint={source}'
                         ) if contents.layout else ''
        raise CheckpointError(f'{error}. Only tensors that depend on the classes or the anchors may differ from those '
                              f"of the config's model{only_backbone}") from error
    if class_rows:
        said = '; '.join(dict.fromkeys(texts)) or 'the same in file and data'
        model.weights_from += f'; {counted(len(class_rows), "tensors")} of the classes: {said}'


def _class_rows(model, cfg):
    """Return the `ClassRows` of a model that was built from a config.

    The random state does not change. Nothing is returned if the model cannot be built for one class more; then all
    tensors must fit.
    """
    cfg = copy.deepcopy(cfg) if isinstance(cfg, dict) else {}
    heads = list(heads_of_classes(cfg))
    own = getattr(getattr(model, 'backbone', None), 'num_classes', None)  # a classifier's, which has a default
    counts = [class_count(head) or own for head in heads]
    if not heads or not all(isinstance(count, int) for count in counts):
        return {}
    for head, count in zip(heads, counts, strict=True):
        set_class_count(head, count + 1)
    preprocessor = cfg.get('data_preprocessor') or {}
    if 'num_classes' in preprocessor:
        preprocessor['num_classes'] += 1
    try:
        with isolated_random_state(0):
            return find_class_rows(model, MODELS.build(cfg), counts[0])
    except Exception as error:  # of any type, as constructors may be users'
        print_log(f'cannot find out which tensors depend on the classes ({type(error).__name__}: {error}), so all '
                  'tensors must fit', logger='current', level=logging.WARNING)
        return {}


def _published_classes(source):
    name = _PUBLISHED.get(source.removeprefix(PREFIX).partition('_')[0]) if source.startswith(PREFIX) else None
    data = class_of(name, DATASETS)
    return tuple(data.METAINFO['classes']) if data else ()


def _fitted(own, found, rows, old, new, pairs):
    """Return the value that a tensor of the model starts with, None for its initial one; and a log text or None.

    A tensor that differs in more than the classes is returned as it is, and the strict load rejects it.
    """
    same, axis = own.shape == found.shape, rows.axis if rows else None
    if not found.is_floating_point() or own.dim() != found.dim() or rows and any(
            a != b for i, (a, b) in enumerate(zip(own.shape, found.shape, strict=True)) if i != axis) or (
            same and old and list(old) == list(new)):
        return found, None
    if rows is None or (rows.count(own.shape[axis]), rows.count(found.shape[axis])) != (len(new), len(old)):
        reason = f'{len(old)} names of classes in the file and {len(new)} in the data do not tell its rows apart'
        # where names differ, rows of unknown classes would be wrong ones
        return (None, f'starts fresh: {reason}') if not same or (old and new and rows is None) else (
            found, f'taken as it is: {reason}')
    labels = {**pairs, **({len(new): len(old)} if rows.background else {})}
    to = [row for label in labels for row in rows.rows(label, len(new))]
    origin = [row for label in labels.values() for row in rows.rows(label, len(old))]
    value = own.detach().cpu().clone()
    value.index_copy_(axis, torch.tensor(to, dtype=torch.long),
                      found.to(value.dtype).index_select(axis, torch.tensor(origin, dtype=torch.long)))
    taken, others = [new[i] for i in sorted(pairs)], [name for i, name in enumerate(new) if i not in pairs]
    return value, ', '.join(f'rows of {listed(names, 20)} {what}' for names, what in (
        (taken, 'are taken by name'), (others, 'start fresh')) if names)


def _has_anchors(model, name):
    """Whether a tensor belongs to a dense head, which predicts for each of its anchors at every position."""
    owners = name.split('.')[:-1]
    return any(hasattr(model.get_submodule('.'.join(owners[:end])), 'prior_generator')
               for end in range(1, len(owners) + 1))
