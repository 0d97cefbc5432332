"""Build the model of a config on trial: do the channels and strides of its parts fit?"""
import copy
import logging
import random
import re
import traceback
import warnings
from contextlib import contextmanager, redirect_stdout

import numpy as np
import torch
from mmengine.logging import MMLogger, print_log
from mmengine.registry import MODELS
from torch.overrides import TorchFunctionMode

from ...models import XCiTClassifier
from ..tasks import class_of
from .keys import Hint, finding, is_known
from .parts import check_settings, visit

#: What constructors raise for wrong arguments. Other errors, such as missing packages and files, come up in the run.
_REJECTIONS = (AssertionError, KeyError, TypeError, ValueError)
#: Words of errors about missing packages, and about processes that have not been joined yet.
_NOT_OF_THE_CONFIG = 'install|process group|is_initialized|world_size|get_rank'
#: A side that the strides of all levels divide.
_SIDE = 256


def check_model(node) -> list:
    """Return the findings of the config of a model; the default scope must be that of the run.

    Keys and types are compared with signatures. Then the model is built once, without memory for its parameters: a
    model that is accepted has no wrong keys, and its forward pass shows whether its parts fit together.
    """
    settings = [line for name in ('train_cfg', 'test_cfg') for line in check_settings(node.get(name), f'model.{name}')]
    kind = class_of(node.get('type'), MODELS)
    known = kind is not None and is_known(kind)  # others may have their own names
    wrong, settings = visit(node, 'model', MODELS), settings if known else []
    try:
        with unnoticed():
            return _on_trial(node, wrong, settings)
    except Exception as error:  # parts may be users' classes; a check stops no run by a fault of its own
        place = traceback.extract_tb(error.__traceback__)[-1]
        warn_of(f'{type(error).__name__}: {error} ({place.filename}, line {place.lineno})')
        return wrong + settings


def warn_of(problem):
    """Warn that the trial failed for a reason of its own, which is no mistake in the config."""
    print_log(f'the config was checked only in part, as building it on trial failed: {problem}', logger='current',
              level=logging.WARNING)


@contextmanager
def unnoticed():
    """Context in which random numbers are not used up, and nothing is said: the run builds the same model again."""
    python, numpy, logger = random.getstate(), np.random.get_state(), MMLogger.get_current_instance()
    silence = logging.Filter('nothing')  # only what a logger of this name says
    logger.addFilter(silence)
    try:
        with torch.random.fork_rng(devices=()), redirect_stdout(None), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.removeFilter(silence)
        random.setstate(python)
        np.random.set_state(numpy)


def _on_trial(node, wrong, settings):
    try:
        with _ParametersOnMeta():
            model = MODELS.build(copy.deepcopy(node))
    except _REJECTIONS as error:
        return wrong + settings or _rejected(error)
    except Exception:
        return wrong + settings
    if not all(is_known(type(part)) or type(part).__module__.startswith('torch') for part in model.modules()):
        settings = map(Hint, settings)  # a part of the user's may read its own settings
    stored = [line for line in wrong if '.init_cfg' in line.partition(' = ')[0]]  # which building does not read
    return [*stored, *settings, *_find_misfits(node, model)]


class _ParametersOnMeta(TorchFunctionMode):
    """Puts parameters, which torch's layers create with `torch.empty`, on the meta device; constants are unchanged."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **dict(kwargs or {}, device='meta') if func is torch.empty else kwargs or {})


def _rejected(error):
    """Return the finding for the error of a constructor; nothing if the trial or a missing file is the reason."""
    text = ' '.join(str(error.args[0] if error.args else '').split())
    text = text or f'its constructor fails at {traceback.extract_tb(error.__traceback__)[-1].line!r}'
    owners = [type(frame.f_locals['self']).__name__ for frame, _ in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_name == '__init__' and 'self' in frame.f_locals]
    # the hub's error about a file is a ValueError as well
    is_of_the_config = not isinstance(error, OSError) and not re.search(_NOT_OF_THE_CONFIG, text)
    return [f'model: {": ".join([*owners[-1:], text])}'] if is_of_the_config else []


def _find_misfits(node, model) -> list:
    """Compare what each part of a model returns with what the next one accepts.

    Forward passes on the meta device, to which the model is moved and which computes only shapes, show what backbone
    and neck return and whether the heads accept it. Channels are a finding only if a forward pass fails: each part may
    use its settings as it likes.
    """
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, XCiTClassifier):  # mixed labels have an entry for each logit
        labels = (node.get('data_preprocessor') or {}).get('num_classes') if node.get('train_cfg') else None
        return _compare(labels, backbone.num_classes, 'model.data_preprocessor.num_classes', 'the backbone')
    maps, source, lines = _forward(backbone, torch.empty(1, 3, _SIDE, _SIDE, device='meta')), 'the backbone', []
    for part, neck, path in _each(node, model, 'neck', 'model') if maps else ():
        given = _forward(neck, maps)
        lines = _check_channels(part, given, maps, path, source)
        maps, source = None if lines else given, 'the neck'
    for name in ('rpn_head', 'bbox_head', 'decode_head', 'auxiliary_head'):
        for part, head, path in _each(node, model, name, 'model') if maps else ():
            lines += _check_head(part, head, path, maps, source)
    if isinstance(node.get('roi_head'), dict) and not node['roi_head'].get('shared_head'):
        lines += _check_roi_head(node['roi_head'], model.roi_head, maps, source)
    return lines


def _check_head(node, head, path, maps, source):
    """Check a head of mmseg, or the head of an RPN or of a detector of one stage, with anchors or points."""
    if hasattr(head, 'in_index'):
        indices = head.in_index if isinstance(head.in_index, (list, tuple)) else [head.in_index]
        if not all(isinstance(i, int) and -len(maps) <= i < len(maps) for i in indices):
            return [finding(f'{path}.in_index', head.in_index,
                            f'{source} returns {len(maps)} maps, 0 to {len(maps) - 1}')]
        used = [maps[i] for i in indices]
        strides, known = node.get('feature_strides'), [_stride(m) for m in used]
        if lines := _check_channels(node, _forward(head, maps, levels=False), used, path, source):
            return lines
        # the head looks at how the strides relate
        if type(head).__name__ == 'FPNHead' and [s / strides[0] for s in strides] != [s / known[0] for s in known]:
            return [finding(f'{path}.feature_strides', strides, f'the maps have the strides {known}')]
    if not hasattr(head, 'prior_generator'):
        return []
    lines = _check_channels(node, _forward(head, maps, levels=False), maps, path, source)
    inner = next((name for name in ('anchor_generator', 'prior_generator') if name in node), None)
    strides, path = (node[inner].get('strides'), f'{path}.{inner}') if inner else (node.get('strides'), path)
    return lines + (_compare_strides(strides, maps, f'{path}.strides', source) if strides else [])


def _check_channels(node, given, maps, path, source):
    """Compare ``in_channels`` with the maps that a part gets, if it does not accept them: some use only a few."""
    wanted, channels = node.get('in_channels'), [m.shape[1] for m in maps]
    if not isinstance(wanted, (list, tuple)):
        channels = _channels(maps)
    return _compare(wanted, channels, f'{path}.in_channels', source) if given is None else []


def _check_roi_head(node, roi_head, maps, source):
    """Check RoI extractors against the maps and the heads against their extractors."""
    lines = []
    for part in ('bbox', 'mask'):
        name = f'{part}_roi_extractor' if isinstance(node.get(f'{part}_roi_extractor'), dict) else 'bbox_roi_extractor'
        extractor = next((built for _, built, _ in _each(node, roi_head, name, 'model.roi_head')), None)
        if type(extractor).__name__ != 'SingleRoIExtractor':
            continue
        strides, channels, size = extractor.featmap_strides, extractor.out_channels, extractor.roi_layers[0].output_size
        if maps and name.startswith(part):
            path, used = f'model.roi_head.{name}', maps[:len(strides)]
            lines += _compare_strides(strides, used, f'{path}.featmap_strides', source)
            lines += _compare(channels, _channels(used), f'{path}.out_channels', source)
        for head_node, head, path in _each(node, roi_head, f'{part}_head', 'model.roi_head'):
            rois = torch.empty(1, channels, *size, device='meta')
            lines += _check_channels(head_node, _forward(head, rois, levels=False), [rois], path, 'its RoI extractor')
    return lines


def _forward(module, maps, levels=True):
    """Return what a module returns on the meta device; None if that fails or, with ``levels``, is no list of maps."""
    try:
        module.to('meta')
        module.eval()
        with torch.no_grad():
            given = module(maps)
    except Exception:  # it may need data, or more than maps
        return None
    given = [given] if isinstance(given, torch.Tensor) else given
    are_maps = isinstance(given, (list, tuple)) and all(isinstance(m, torch.Tensor) and m.ndim == 4 for m in given)
    return given if are_maps or not levels else None


def _each(node, model, name, path):
    """Yield config, module and path of a part, or of each part of a list."""
    parts, built = node.get(name), getattr(model, name, None)
    modules = list(built) if isinstance(built, torch.nn.ModuleList) else [built]
    if isinstance(parts, dict) and modules and built is not None:
        yield parts, modules[0], f'{path}.{name}'  # one config may be for several stages
    elif isinstance(parts, (list, tuple)):
        yield from ((part, module, f'{path}.{name}.{i}')
                    for i, (part, module) in enumerate(zip(parts, modules, strict=False)))


def _compare(wanted, given, path, source):
    wanted = list(wanted) if isinstance(wanted, (list, tuple)) else wanted
    return [] if None in (wanted, given) or wanted == given else [
        finding(path, wanted, f'{source} returns {given}; set it to {given}')]


def _compare_strides(strides, maps, path, source):
    plain = [s[0] if isinstance(s, (list, tuple)) and len(set(s)) == 1 else s for s in strides]
    # a map of one pixel has any stride; small images that it does not divide nearly halve or double one
    if len(plain) == len(maps) and all(m.shape[3] == 1 or isinstance(s, (int, float)) and 0.5 < s / _stride(m) < 2
                                       for s, m in zip(plain, maps, strict=True)):
        return []
    return [finding(path, plain, f'the maps of {source} have the strides {[_stride(m) for m in maps]}')]


def _channels(maps):
    """Return the channels that all maps have, or None."""
    channels = {m.shape[1] for m in maps}
    return channels.pop() if len(channels) == 1 else None


def _stride(feature_map):
    stride = _SIDE / feature_map.shape[3]
    return int(stride) if stride == int(stride) else stride
