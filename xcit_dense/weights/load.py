"""Load the weights of a checkpoint strictly."""
import re

from mmengine.logging import print_log
from torch import Tensor

from .._utils.text import counted, listed
from ..archs import arch_names
from ..errors import CheckpointError
from .contents import Models
from .layouts import Contents, figures_of, part_of, size_title
from .read import read_checkpoint
from .zoo import fetch

#: What errors say about a file with a class token and without classes, and what it can be used for.
WITHOUT_CLASSES = (
    'has no classes, like the files of DINO: measure its features with `test CONFIG FILE --knn` or `--linear` and '
    'the config of a classifier, show what it attends to with `attention FILE`, or fine-tune from it with '
    "--init-from or init_cfg=dict(type='Pretrained', checkpoint=FILE)")


def load_model(model, checkpoint, source):
    """Load a whole model strictly, from a checkpoint that `xcit_dense.weights.read_checkpoint` returned.

    A model with an `XCiTClassifier` accepts classifiers of every layout of `xcit_dense.weights.layouts`. A `DINO` takes
    both models of a file, student and teacher.

    Raises:
        CheckpointError: A tensor is missing, left over, of another shape, or cannot be a weight (integers, NaN, ...).
            The model is unchanged then.
    """
    state, title, contents = state_for(model, checkpoint, source)
    try:
        load_strictly(model, state, title, contents, f'a whole {type(model).__name__}')
    except CheckpointError as error:
        without_classes = 'classifier' in contents.parts and not contents.num_classes
        if without_classes and _place_of_classifier(model) in ('', 'backbone.'):  # other places are those of `DINO`
            raise CheckpointError(f'{error}. The file {WITHOUT_CLASSES}') from error
        raise


def state_for(model, checkpoint, source):
    """Return the tensors of a checkpoint by the names of a whole model, how messages call them, and `Contents`."""
    models, branches = Models(checkpoint), {name.partition('.')[0] for name in model.state_dict()}
    if branches == {'student', 'teacher'} <= models.states.keys():
        whole = {f'{branch}.{name}': value for branch in branches for name, value in models.states[branch].items()}
        return whole, str(source), Contents.of(models.states['teacher'], source)
    state, title = models.find(source)
    contents = Contents.of(state, title)
    place = _place_of_classifier(model)
    if place is not None and 'classifier' in contents.parts:
        state = {**{f'{place}{name}': value for name, value in contents.tensors.items()}, **contents.heads}
    return state, title, contents


def load_backbone(model, source, prefix: str = None):
    """Load weights of any layout of `xcit_dense.weights.layouts` into an `XCiT`, strictly.

    Every parameter and statistic must be in the file with the same shape, except a stem with another number of
    channels, see `spread_channels`. Allowed differences: the file is a classifier without a pyramid; the model has no
    classifier, or fewer levels or blocks than the file.

    Args:
        model: The `XCiT` to fill.
        source: As for `xcit_dense.weights.read_checkpoint`. In a whole detector or segmentor, the backbone is
            found automatically.
        prefix: Which model, if the file holds several: ``student``, ``teacher`` or ``ema`` (the average of the
            weights), by default as for `find_state_dict`; or what the names of its weights begin with; or both, as
            ``student.backbone``.

    Raises:
        CheckpointError: The file cannot be read, or belongs to another model.
    """
    contents, title, wanted = _read_for(model, source, prefix)
    lacks_pyramid = 'pyramid' not in contents.parts

    def may_leave(name):
        if block := re.match(r'blocks\.(\d+)\.', name):
            return len(model.blocks) <= int(block[1]) < model.arch.depth
        return part_of(name) in ('classifier', 'pyramid')

    _load_part(model, contents.tensors, contents, title, wanted,
               lambda name: lacks_pyramid and part_of(name) == 'pyramid', may_leave)


def load_classifier(model, source, prefix: str = None):
    """Load weights of any layout of `xcit_dense.weights.layouts` into an `XCiTClassifier`, strictly.

    Every parameter and statistic must be in the file with the same shape, except the stem, as in `load_backbone`, and
    the head. The head starts fresh if the file has another number of classes or no head. A model without a head
    ignores that of the file.

    Args:
        model: The `XCiTClassifier` to fill.
        source, prefix: As for `load_backbone`.

    Raises:
        CheckpointError: The file cannot be read, or belongs to another model.
    """
    contents, title, wanted = _read_for(model, source, prefix)
    fits = contents.num_classes == model.num_classes
    tensors = {name: value for name, value in contents.tensors.items() if fits or not name.startswith('head.')}
    _load_part(model, tensors, contents, title, f'{wanted} with classifier',
               may_lack=lambda name: not fits and name.startswith('head.'))


def spread_channels(weight: Tensor, channels: int) -> Tensor:
    """Return the weights (C, old channels, h, w) of a convolution for images with another number of channels.

    The output for a grey image, whose channels are all equal, does not change. With more channels, the kernels repeat
    in the old order, and each old kernel is divided by the number of its copies (five channels: red, green, blue, red,
    green; the reds and greens are halved). With fewer channels, each gets an equal share of the sum of all kernels.
    """
    old = weight.shape[1]
    if channels < old:
        return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels
    copies = [len(range(i % old, channels, old)) for i in range(channels)]
    return weight[:, [i % old for i in range(channels)]] / weight.new_tensor(copies)[:, None, None]


def fit_channels(model, state: dict, source) -> dict:
    """Return tensors by name with the stem spread over the channels of a model; a log line reports it."""
    spread = {}
    for name, value in model.state_dict().items():
        found = state.get(name)
        if name.endswith('patch_embed.proj.0.0.weight') and found is not None and found.dim() == 4 and (
                found.is_floating_point() and found.shape[1] != value.shape[1]
                and found[:, :1].shape == value[:, :1].shape):
            spread[name] = spread_channels(found.float(), value.shape[1])
            print_log(f'{name}: the weights of {source} are for images with '
                      f'{counted(found.shape[1], "channels")}; they are spread over {value.shape[1]}', logger='current')
    return {**state, **spread}


def _load_part(model, tensors, contents, title, wanted, may_lack, may_leave=lambda name: False):
    """Load the XCiT of a file strictly; if its arch is another one, say so instead of listing the tensors."""
    try:
        load_strictly(model, fit_channels(model, tensors, title), title, contents, wanted, may_lack, may_leave)
    except CheckpointError as error:
        arch = size_title(figures_of(model.arch))
        if contents.size == arch or contents.size not in arch_names():
            raise
        raise CheckpointError(f'{title} does not fit the model: it holds {contents}, but the arch of the model is '
                              f'{arch}. For the arch of the file: model.backbone.arch={contents.size}') from error


def _read_for(model, source, prefix):
    """Return the contents of a file that must hold an XCiT, what messages call it, and the XCiT that is expected."""
    path = fetch(str(source), 'To train from random weights instead, use train --no-pretrained, or init_cfg=None in '
                 'the config.')
    models, which = Models(read_checkpoint(path)), None
    first, _, inner = (prefix or '').rstrip('.').partition('.')
    if first.lower() in models.names:
        which, prefix = first, inner
    state, title = models.find(source, which)
    if prefix:
        start = f'{prefix.rstrip(".")}.'
        state = {n.removeprefix(start): v for n, v in state.items() if n.startswith(start)}
    contents = Contents.of(state, title)
    wanted = f'XCiT {size_title(figures_of(model.arch))}' + ' after fuse(): load weights before it' * model.is_fused
    if contents.layout is None:
        others = ', '.join(filter(None, models.titles))
        raise CheckpointError(f'{title} holds {contents}' + (f' under the prefix {prefix}' if prefix else '')
                              + f'; expected {wanted}' + (f'. Models of the file: {others}' if others else ''))
    return contents, title, wanted


def _place_of_classifier(model):
    """Return what the names of the `XCiTClassifier` in a model begin with (found by its parts); None without one."""
    return next((f'{name}.' if name else '' for name, module in model.named_modules()
                 if hasattr(module, 'cls_attn_blocks') and hasattr(module, 'pos_embeder')), None)


def load_strictly(model, state, source, contents, title, may_lack=lambda name: False, may_leave=lambda name: False):
    """Load ``state`` if it fits, except for names that may be missing or unused; otherwise raise and change nothing."""
    wanted = model.state_dict()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    # files of PASSL and old torch have no batch counters; nothing reads them
    lacking = [n for n in wanted if n not in state and not n.endswith('num_batches_tracked')]
    matched = {name: state[name] for name in wanted if name in state}
    problems = {
        'missing in the file': [n for n in lacking if not may_lack(n)],
        'unknown to the model': [n for n in state if n not in wanted and not may_leave(n)],
        'of another shape': [f'{n} {tuple(value.shape)} in the file, {tuple(wanted[n].shape)} in the model'
                             for n, value in matched.items() if value.shape != wanted[n].shape],
        'with values that cannot be weights': [
            f'{n}: {problem}' for n, value in matched.items()
            if (problem := _value_problem(n, value, wanted[n], n in parameters))]}
    if words := [f'{len(names)} {what} ({listed(names)})' for what, names in problems.items() if names]:
        raise CheckpointError(f'{source} does not fit the model: it holds {contents}; expected {title}. Tensors: '
                              f'{"; ".join(words)}')
    wanted.update(matched)  # it also has the versions of its tensors, which some modules ask for
    model.load_state_dict(wanted, strict=False)
    # 'neck', or 'backbone.head' of a whole classifier
    parts = sorted({'.'.join(name.split('.')[:2 if name.startswith('backbone.') else 1]) for name in lacking})
    fresh = f'; {len(lacking)} start fresh: {", ".join(parts)}' if lacking else ''
    left = f'; {len(state) - len(matched)} of the file are not used' if len(state) > len(matched) else ''
    # reported again at the start of a training
    model.weights_from = f'{len(matched)} of {len(wanted)} tensors from {source} ({contents}){fresh}{left}'
    print_log(f'loaded {model.weights_from}', logger='current')


def _value_problem(name, value, wanted, is_parameter):
    """Return why a tensor of a file cannot be the model's tensor ``wanted``, or None."""
    is_float = wanted.is_floating_point()  # counters are not; some tools save them as floating types
    if value.is_complex() or is_float and not value.is_floating_point():
        return str(value.dtype).removeprefix('torch.')
    value = value.float()
    if name.endswith('running_var') and (value < 0).any():
        return 'negative'
    if value.sum().isfinite():  # one pass over the usual tensor
        return None
    if value.isnan().any():  # one NaN is enough to spoil a model
        return 'NaN'
    # an infinity may be intended in other buffers, such as a mask
    must_be_finite = is_parameter or not is_float or name.endswith(('running_mean', 'running_var'))
    return 'infinite' if must_be_finite and value.isinf().any() else None
