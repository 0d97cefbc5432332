"""Which detectors can be exported: the parts of mmdet that `xcit_dense.export.detector` reimplements."""
from torch import nn

from ..errors import ConfigError

#: Supported keys of ``nms``; ``split_thr``, from which mmcv works class by class, changes nothing here.
_NMS_KEYS = {'type', 'iou_threshold', 'iou_thr', 'split_thr'}


def check_detector(model: nn.Module):
    """Check that the exported graph supports all parts of a detector.

    Raises:
        ConfigError: It does not; the message names the key, the value and the fix.
    """
    _check_type(model, 'model', 'FasterRCNN', 'MaskRCNN', 'CascadeRCNN', 'TwoStageDetector', 'RetinaNet',
                'SingleStageDetector')
    _check_type(model.data_preprocessor, 'model.data_preprocessor', 'DetDataPreprocessor')
    if hasattr(model, 'roi_head'):
        _check_dense(model.rpn_head, 'rpn_head', 'model.test_cfg.rpn', 'RPNHead')
        _check_roi_head(model.roi_head)
    else:
        _check_dense(model.bbox_head, 'bbox_head', 'model.test_cfg', 'RetinaHead')
        smallest = model.bbox_head.test_cfg.get('min_bbox_size', -1)
        if smallest > 0:
            _refuse('model.test_cfg.min_bbox_size', smallest, 'it counts pixels of the image before resizing, but the '
                    'graph only has the image after it. Set it to 0')


def iou_threshold_of(cfg) -> float:
    """Return the IoU threshold of a ``test_cfg``."""
    return cfg.nms.get('iou_threshold', cfg.nms.get('iou_thr'))


def _check_dense(head, key, test_key, kind):
    key = f'model.{key}'
    _check_type(head, key, kind)
    _check_type(head.prior_generator, f'{key}.anchor_generator', 'AnchorGenerator')
    _check_coder(head.bbox_coder, key)
    if getattr(head.loss_cls, 'custom_cls_channels', False):
        _refuse_type(head.loss_cls, f'{key}.loss_cls', 'CrossEntropyLoss or FocalLoss')
    cfg = head.test_cfg
    _check_test_cfg(cfg, test_key)
    if cfg.get('nms_pre', -1) <= 0:
        _refuse(f'{test_key}.nms_pre', cfg.get('nms_pre'), 'a graph needs a fixed number of boxes. Set it, for example '
                'to 1000')


def _check_roi_head(roi_head):
    key = 'model.roi_head'
    _check_type(roi_head, key, 'StandardRoIHead', 'CascadeRoIHead')
    if roi_head.with_shared_head:
        _refuse_type(roi_head.shared_head, f'{key}.shared_head', 'no shared head')
    for head in each(roi_head.bbox_head):
        _check_type(head, f'{key}.bbox_head', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead', 'ConvFCBBoxHead')
        _check_coder(head.bbox_coder, f'{key}.bbox_head')
        if head.custom_cls_channels:
            _refuse_type(head.loss_cls, f'{key}.bbox_head.loss_cls', 'CrossEntropyLoss')
        for part in ('with_cls', 'with_reg'):
            if not getattr(head, part):
                _refuse(f'{key}.bbox_head.{part}', False, 'the graph needs both classes and boxes. Set it to True')
    extractors = [('bbox_roi_extractor', roi_head.bbox_roi_extractor)]
    if roi_head.with_mask:
        extractors.append(('mask_roi_extractor', roi_head.mask_roi_extractor))
        threshold = roi_head.test_cfg.mask_thr_binary
        if threshold < 0:
            _refuse('model.test_cfg.rcnn.mask_thr_binary', threshold, 'a negative value means masks with 256 levels '
                    'instead of binary ones, which exported files do not support. Set it to 0.5')
        for head in each(roi_head.mask_head):
            _check_type(head, f'{key}.mask_head', 'FCNMaskHead')
            if head.upsample_method == 'carafe':
                _refuse(f'{key}.mask_head.upsample_cfg.type', 'carafe', "ONNX has no such op. Use 'deconv'")
    for name, extractor in extractors:
        for part in each(extractor):
            _check_type(part, f'{key}.{name}', 'SingleRoIExtractor')
            layer = part.roi_layers[0]
            _check_type(layer, f'{key}.{name}.roi_layer', 'RoIAlign')
            if layer.pool_mode != 'avg':
                _refuse(f'{key}.{name}.roi_layer.pool_mode', layer.pool_mode, "runtimes compute it differently. Use "
                        "'avg'")
    _check_test_cfg(roi_head.test_cfg, 'model.test_cfg.rcnn')


def _check_test_cfg(cfg, key):
    nms = cfg.get('nms')
    if not nms:
        _refuse(f'{key}.nms', nms, "the graph needs NMS. Use dict(type='nms', iou_threshold=0.5)")
    kind = nms.get('type', 'nms')
    if kind != 'nms':
        _refuse(f'{key}.nms.type', kind, "ONNX has only plain NMS. Use type='nms', and compare the AP of both with "
                '`test`')
    for name in nms:
        if name not in _NMS_KEYS:
            _refuse(f'{key}.nms.{name}', nms[name], 'the graph does not support it. Remove it')
    if cfg.get('max_per_img', -1) <= 0:
        _refuse(f'{key}.max_per_img', cfg.get('max_per_img'), 'a graph needs a limit. Set it, for example to 100')


def _check_coder(coder, key):
    key = f'{key}.bbox_coder'
    _check_type(coder, key, 'DeltaXYWHBBoxCoder')
    if coder.add_ctr_clamp:
        _refuse(f'{key}.add_ctr_clamp', True, 'the graph does not support it. Remove it')
    if not coder.clip_border:
        _refuse(f'{key}.clip_border', False, 'the graph clips boxes at the border. Remove it')


def _check_type(part, key, *names):
    """Raise `ConfigError` unless a part has exactly one of mmdet's classes: a derived class may do anything."""
    kind = type(part)
    if kind.__name__ not in names or kind.__module__.partition('.')[0] not in ('mmdet', 'mmcv'):
        _refuse_type(part, key, ' or '.join(names))


def _refuse_type(part, key, instead):
    _refuse(f'{key}.type', type(part).__name__, f'export supports {instead}')


def _refuse(key, value, remedy):
    raise ConfigError(f'{key}={value!r} cannot be exported: {remedy}')


def each(part):
    """Return the parts of all stages as a list, also if there is only one."""
    return part if isinstance(part, nn.ModuleList) else [part]
