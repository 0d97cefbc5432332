"""Do the channels and strides of a model's parts fit each other? Told from its config; nothing is built."""
import inspect
from dataclasses import replace
from typing import NamedTuple

from mmengine.registry import MODELS

from ...archs import check_out_indices, get_arch
from ...models import PYRAMID_STRIDES, XCiT
from .signatures import default_of


class Level(NamedTuple):
    """One feature map: its channels, and its stride in pixels; None where it is not known."""
    channels: int | None
    stride: float | None


def check_shapes(cfg, resolve) -> list:
    """Compare what each part of a model gives with what the next one takes.

    Looked at are XCiT, the necks FPN, PAFPN and Feature2Pyramid, dense heads with anchors or points, RoI extractors
    and the heads behind them, and mmseg's decode heads; what is behind anything else is left alone.

    Args:
        cfg: The config of a run.
        resolve: Callable from a type and a registry to the class, or None.

    Returns:
        One line for each finding, with path, value and mend.
    """
    model = cfg.get('model')
    if not isinstance(model, dict) or not isinstance(model.get('backbone'), dict):
        return []
    shapes = _Shapes(lambda node: resolve(node.get('type'), MODELS, model.get('_scope_')))
    try:
        levels = shapes.of_backbone(model['backbone'])
    except (TypeError, ValueError) as error:
        return [f'model.backbone: {error}']
    neck = model.get('neck')
    if neck is not None:
        levels, giver = shapes.of_neck(neck, levels), 'the neck'
    else:
        giver = 'the backbone'
    for name in ('rpn_head', 'bbox_head'):
        shapes.check_dense_head(model.get(name), f'model.{name}', levels, giver)
    shapes.check_roi_head(model.get('roi_head'), levels, giver)
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name)
        several = isinstance(heads, (list, tuple))
        for i, head in enumerate(heads if several else [heads]):
            shapes.check_decode_head(head, f'model.{name}.{i}' if several else f'model.{name}', levels, giver)
    return shapes.findings


class _Shapes:
    """The findings of `check_shapes`.

    Args:
        class_of: Callable from a dict with a type to its class, or None.
    """

    def __init__(self, class_of):
        self.findings = []
        self._class_of = class_of

    def of_backbone(self, node):
        """Return the levels of an XCiT, None for another backbone; raise ``ValueError`` as the XCiT would."""
        kind = self._class_of(node)
        if not (inspect.isclass(kind) and issubclass(kind, XCiT)):
            return None
        arch = get_arch(_plain(node.get('arch', default_of(kind, 'arch'))))
        indices = node.get('out_indices')
        if indices is not None:
            check_out_indices(indices, arch.depth)
            arch = replace(arch, out_indices=indices)
        strides = node.get('out_strides', default_of(kind, 'out_strides'))
        if strides is None:
            strides = [arch.patch_size] * len(arch.out_indices)
        elif len(strides) != len(arch.out_indices) or not set(strides) <= set(PYRAMID_STRIDES):
            raise ValueError(f'out_strides must be one of {PYRAMID_STRIDES} for each of out_indices '
                             f'{tuple(arch.out_indices)}, got {strides!r}')
        return [Level(arch.embed_dims, stride) for stride in strides]

    def of_neck(self, node, levels):
        """Check what a neck takes and return what it gives, None if that is not known."""
        kind = self._class_of(node) if isinstance(node, dict) else None
        name = getattr(kind, '__name__', None)
        if kind is None or kind.__module__.partition('.')[0] not in ('mmdet', 'mmseg'):
            return None
        if name in ('FPN', 'PAFPN'):
            return self._of_fpn(node, levels, kind)
        if name == 'Feature2Pyramid':
            return self._of_feature2pyramid(node, levels, default_of(kind, 'rescales'))
        return None

    def check_dense_head(self, node, path, levels, giver):
        """Check the head of an RPN or of a detector of one stage."""
        kind = self._class_of(node) if isinstance(node, dict) else None
        if levels is None or not _is_a(kind, 'AnchorHead', 'AnchorFreeHead'):
            return
        self._compare(node.get('in_channels'), _single(levels), f'{path}.in_channels',
                      f'{giver} gives {_channels(levels)} channels')
        if _is_a(kind, 'AnchorHead'):
            strides, path = (node.get('anchor_generator') or {}).get('strides'), f'{path}.anchor_generator.strides'
        else:
            strides, path = node.get('strides'), f'{path}.strides'
        self._compare_strides(strides, levels, path, giver)

    def check_roi_head(self, node, levels, giver):
        """Check RoI extractors against the levels and the heads against their extractors."""
        if not isinstance(node, dict) or node.get('shared_head'):
            return
        for part in ('bbox', 'mask'):
            extractor, heads = node.get(f'{part}_roi_extractor'), node.get(f'{part}_head')
            if part == 'mask' and extractor is None:
                extractor = node.get('bbox_roi_extractor')
            if not isinstance(extractor, dict) or not _is_a(self._class_of(extractor), 'SingleRoIExtractor'):
                continue
            path = f'model.roi_head.{part}_roi_extractor'
            strides = extractor.get('featmap_strides')
            if levels is not None and strides is not None and f'{part}_roi_extractor' in node:
                self._compare_strides(strides, levels[:len(strides)], f'{path}.featmap_strides', giver)
                self._compare(extractor.get('out_channels'), _single(levels[:len(strides)]), f'{path}.out_channels',
                              f'{giver} gives {_channels(levels)} channels')
            several = isinstance(heads, (list, tuple))
            for i, head in enumerate(heads if several else [heads]):
                if isinstance(head, dict):
                    path = f'model.roi_head.{part}_head'
                    self._check_behind_extractor(head, f'{path}.{i}' if several else path, extractor)

    def check_decode_head(self, node, path, levels, giver):
        """Check channels, indices and strides of a head of mmseg."""
        kind = self._class_of(node) if isinstance(node, dict) else None
        if levels is None or not _is_a(kind, 'BaseDecodeHead'):
            return
        index, channels = node.get('in_index', default_of(kind, 'in_index')), node.get('in_channels')
        indices = index if isinstance(index, (list, tuple)) else [index]
        if not all(isinstance(i, int) and -len(levels) <= i < len(levels) for i in indices):
            self._add(f'{path}.in_index', index, f'{giver} gives {len(levels)} maps, 0 to {len(levels) - 1}')
            return
        chosen = [levels[i] for i in indices]
        given = [level.channels for level in chosen]
        if isinstance(index, (list, tuple)):
            wanted = list(channels) if isinstance(channels, (list, tuple)) else channels
        else:
            wanted, given = channels, given[0]
        self._compare(wanted, given, f'{path}.in_channels', f'{giver} gives {given}')
        strides = node.get('feature_strides')
        if strides is not None and kind.__name__ == 'FPNHead':
            known = [level.stride for level in chosen]
            # the head looks at how the strides relate
            if None not in known and [s / strides[0] for s in strides] != [s / known[0] for s in known]:
                self._add(f'{path}.feature_strides', strides, f'the maps have the strides {_list(known)}')

    def _check_behind_extractor(self, head, path, extractor):
        kind = self._class_of(head)
        if not _is_a(kind, 'BBoxHead', 'FCNMaskHead'):
            return
        self._compare(head.get('in_channels'), extractor.get('out_channels'), f'{path}.in_channels',
                      f'its RoI extractor gives {extractor.get("out_channels")} channels')
        size = (extractor.get('roi_layer') or {}).get('output_size')
        if isinstance(size, int) and _is_a(kind, 'BBoxHead'):
            self._compare(head.get('roi_feat_size', default_of(kind, 'roi_feat_size')), size, f'{path}.roi_feat_size',
                          f'its RoI extractor gives {size} x {size}')

    def _of_fpn(self, node, levels, kind):
        path, wanted = 'model.neck', node.get('in_channels')
        if levels is not None and isinstance(wanted, (list, tuple)):
            given = [level.channels for level in levels]
            self._compare(list(wanted), given, f'{path}.in_channels', f'the backbone gives {given}')
        if not isinstance(wanted, (list, tuple)) or not isinstance(node.get('num_outs'), int):
            return None
        strides = [level.stride for level in levels] if levels and len(levels) == len(wanted) else [None] * len(wanted)
        start, end, outs = node.get('start_level', 0), node.get('end_level', -1), node['num_outs']
        if end != -1 and end != len(wanted) - 1:
            return None  # the two frameworks count it in two ways
        used = strides[start:]
        if end == -1 and outs < len(used):
            self._add(f'{path}.num_outs', outs, f'the levels from start_level {start} on are {len(used)}')
            return None
        while len(used) < outs:  # each further map is a pooled or convolved one of half the size
            used.append(None if used[-1] is None else used[-1] * 2)
        return [Level(node.get('out_channels'), stride) for stride in used[:outs]]

    def _of_feature2pyramid(self, node, levels, rescales):
        rescales = node.get('rescales', rescales)
        if levels is None:
            return None
        self._compare(node.get('embed_dim'), _single(levels), 'model.neck.embed_dim',
                      f'the backbone gives {_channels(levels)} channels')
        if len(rescales) != len(levels):
            self._add('model.neck.rescales', rescales, f'the backbone gives {len(levels)} maps, and each needs one')
            return None
        return [Level(level.channels, level.stride / scale) for level, scale in zip(levels, rescales, strict=True)]

    def _compare_strides(self, strides, levels, path, giver):
        known = [level.stride for level in levels]
        if not isinstance(strides, (list, tuple)) or None in known:
            return
        plain = [s[0] if isinstance(s, (list, tuple)) and len(set(s)) == 1 else s for s in strides]
        if plain != known:
            self._add(path, strides, f'the maps of {giver} have the strides {_list(known)}')

    def _compare(self, wanted, given, path, reason):
        if wanted is not None and given is not None and wanted != given:
            self._add(path, wanted, f'{reason}; set it to {given}')

    def _add(self, path, value, problem):
        self.findings.append(f'{path} = {_plain(value)!r}: {problem}')


def _is_a(kind, *names):
    """Whether a class of the frameworks, or one made from it, has one of these names."""
    return inspect.isclass(kind) and any(base.__name__ in names and base.__module__.partition('.')[0] in (
        'mmdet', 'mmseg') for base in kind.__mro__)


def _single(levels):
    """Return the channels that all levels have, or None."""
    channels = {level.channels for level in levels}
    return channels.pop() if len(channels) == 1 else None


def _channels(levels):
    return ', '.join(sorted({str(level.channels) for level in levels}))


def _list(strides):
    return [int(s) if s == int(s) else s for s in strides]


def _plain(value):
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else value
