"""Check that the channels and strides of a built model's parts fit together."""
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...models import XCiTClassifier
from .keys import finding
from .trial import NoNetwork

_NORMS = (F.batch_norm, F.layer_norm, F.group_norm)
#: A side that the strides of all levels divide.
_SIDE = 256


def check_shapes(node, model) -> list:
    """Compare what each part of a model returns with what the next one accepts.

    Forward passes on the meta device, which compute only shapes, show what backbone and neck return and whether the
    heads accept it. Channels are a finding only if a forward pass fails: each part may use its settings as it likes.

    Args:
        node: The config of the model.
        model: The model, built from its config or from what remained without the findings; it is moved to the meta
            device.

    Returns:
        One line for each finding, with path, value and fix.
    """
    images = torch.empty(1, 3, _SIDE, _SIDE, device='meta')
    maps, source, lines = _forward(getattr(model, 'backbone', None), images), 'the backbone', []
    if isinstance(getattr(model, 'backbone', None), XCiTClassifier):
        return _check_labels(node, _forward(model.backbone, images, levels=False))
    if maps and getattr(model, 'neck', None) is not None:
        given = _forward(model.neck, maps)
        if isinstance(node['neck'], dict):
            lines = _check_neck(node['neck'], maps, failed=given is None)
        maps, source = None if lines else given, 'the neck'
    for name in ('rpn_head', 'bbox_head', 'decode_head', 'auxiliary_head'):
        for part, head, path in _each(node, model, name, 'model') if maps else ():
            check = _check_decode_head if hasattr(head, 'in_index') else _check_dense_head
            lines += check(part, head, path, maps, source)
    if isinstance(node.get('roi_head'), dict) and not node['roi_head'].get('shared_head'):
        lines += _check_roi_head(node['roi_head'], model.roi_head, maps, source)
    return lines


def _check_labels(node, logits):
    """Check that mixed labels, which are vectors, have an entry for each logit."""
    path, wanted = 'model.data_preprocessor.num_classes', (node.get('data_preprocessor') or {}).get('num_classes')
    if logits is None or not node.get('train_cfg'):
        return []
    return _compare(wanted, logits.shape[1], path, 'the backbone')


def _check_neck(node, maps, failed):
    path, wanted, rescales = 'model.neck', node.get('in_channels'), node.get('rescales')
    if failed and rescales is not None and len(rescales) != len(maps):
        return [finding(f'{path}.rescales', rescales, f'the backbone returns {len(maps)} maps, and each needs one')]
    # some use only one of these maps
    lines = _compare(wanted, [m.shape[1] for m in maps], f'{path}.in_channels', 'the backbone') \
        if failed and isinstance(wanted, (list, tuple)) else []
    if str(node.get('type')).endswith('Feature2Pyramid'):  # its transposed convolutions accept all on the meta device
        lines += _compare(node.get('embed_dim'), _channels(maps), f'{path}.embed_dim', 'the backbone')
    return lines


def _check_dense_head(node, head, path, maps, source):
    """Check the head of an RPN or of a detector of one stage, with anchors or points."""
    if not hasattr(head, 'prior_generator'):
        return []
    lines = []
    if isinstance(node.get('in_channels'), int) and _forward(head, maps, levels=False) is None:
        lines = _compare(node['in_channels'], _channels(maps), f'{path}.in_channels', source)
    inner = next((name for name in ('anchor_generator', 'prior_generator') if name in node), None)
    strides, path = (node[inner].get('strides'), f'{path}.{inner}') if inner else (node.get('strides'), path)
    return lines + (_compare_strides(strides, maps, f'{path}.strides', source) if strides else [])


def _check_decode_head(node, head, path, maps, source):
    """Check channels, indices and strides of a head of mmseg."""
    several = isinstance(head.in_index, (list, tuple))
    indices = head.in_index if several else [head.in_index]
    if not all(isinstance(i, int) and -len(maps) <= i < len(maps) for i in indices):
        return [finding(f'{path}.in_index', head.in_index, f'{source} returns {len(maps)} maps, 0 to {len(maps) - 1}')]
    given = [maps[i].shape[1] for i in indices]
    if _forward(head, maps, levels=False) is None:
        return _compare(node.get('in_channels'), given if several else given[0], f'{path}.in_channels', source)
    strides, known = node.get('feature_strides'), [_stride(maps[i]) for i in indices]
    # the head looks at how the strides relate
    if type(head).__name__ == 'FPNHead' and [s / strides[0] for s in strides] != [s / known[0] for s in known]:
        return [finding(f'{path}.feature_strides', strides, f'the maps have the strides {known}')]
    return []


def _check_roi_head(node, roi_head, maps, source):
    """Check RoI extractors against the maps and the heads against their extractors."""
    lines = []
    for part in ('bbox', 'mask'):
        name = f'{part}_roi_extractor' if isinstance(node.get(f'{part}_roi_extractor'), dict) else 'bbox_roi_extractor'
        extractors = [built for _, built, _ in _each(node, roi_head, name, 'model.roi_head')]
        if not extractors or type(extractors[0]).__name__ != 'SingleRoIExtractor':
            continue
        strides, channels = extractors[0].featmap_strides, extractors[0].out_channels
        height, width = extractors[0].roi_layers[0].output_size
        if maps and name.startswith(part):
            path, used = f'model.roi_head.{name}', maps[:len(strides)]
            lines += _compare_strides(strides, used, f'{path}.featmap_strides', source)
            lines += _compare(channels, _channels(used), f'{path}.out_channels', source)
        regions = torch.empty(1, channels, height, width, device='meta')
        for head_node, head, path in _each(node, roi_head, f'{part}_head', 'model.roi_head'):
            if _forward(head, regions, levels=False) is None:
                lines += _compare(head_node.get('in_channels'), channels, f'{path}.in_channels', 'its RoI extractor')
                size = getattr(head, 'roi_feat_size', None)
                if part == 'bbox' and size and tuple(size) != (height, width):
                    lines.append(finding(f'{path}.roi_feat_size', size[0], f'its RoI extractor returns {height} x '
                                         f'{width}; set it to {height}'))
    return lines


class _ShapesAlone(TorchFunctionMode):
    """Skips what is slow on the meta device: norms, which change no shape, and modes of interpolation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _NORMS:
            return args[0]
        if func is F.interpolate:
            args, kwargs = args[:3], {key: kwargs[key] for key in ('size', 'scale_factor') if key in (kwargs or {})}
        return func(*args, **(kwargs or {}))


def _forward(module, maps, levels=True):
    """Return what a module returns on the meta device; None if that fails or, with ``levels``, is no list of maps."""
    try:
        module.to('meta')
        module.eval()
        with torch.no_grad(), _ShapesAlone():
            given = module(maps)
    except (Exception, NoNetwork):  # it may need data, or more than maps
        return None
    given = (given, ) if isinstance(given, torch.Tensor) and levels else given
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
