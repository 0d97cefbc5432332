"""Tiny detectors that find something, their exported files, and a comparison of their results."""
import copy

import numpy as np
import onnx
import torch
from export.exported import IMAGES, export, opened
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope

from helpers.paths import ROOT
from xcit_dense.config.loading import load_config
from xcit_dense.export.boxes import TRANSLATIONS
from xcit_dense.export.detector import DetectorGraph

#: The heads of the configs, made smaller.
KINDS = ('maskrcnn', 'fasterrcnn', 'cascade', 'retinanet', 'atss')
CONFIGS = dict(
    small='maskrcnn_xcit_n12_p16_small', maskrcnn='maskrcnn_xcit_n12_p16_small',
    fasterrcnn='fasterrcnn_xcit_n12_p16_small', cascade='cascade_maskrcnn_xcit_s12_p16_coco',
    retinanet='retinanet_xcit_s12_p16_coco', atss='atss_xcit_s12_p16_coco')


def config_of(kind, **changes):
    """Return the config of a tiny detector of 7 classes; ``changes`` are dotted keys."""
    cfg = load_config(ROOT / f'configs/{CONFIGS[kind]}.py', pretrained=False)
    model = cfg.model
    levels = len(model.neck.in_channels)
    model.backbone.update(arch=dict(embed_dims=32, depth=4, num_heads=4, patch_size=16),
                          out_indices=(0, 1, 2, 3)[-levels:], init_cfg=None)
    model.neck.update(in_channels=[32] * levels, out_channels=32)
    if kind in ('retinanet', 'atss'):
        model.bbox_head.update(in_channels=32, feat_channels=64, num_classes=7, stacked_convs=1)
        model.test_cfg.update(nms_pre=200)
    else:
        model.rpn_head.update(in_channels=32, feat_channels=32)
        model.test_cfg.rpn.update(nms_pre=200, max_per_img=60)
        heads = model.roi_head.bbox_head
        for head in heads if isinstance(heads, list) else [heads]:
            head.update(in_channels=32, fc_out_channels=64, num_classes=7)
        model.roi_head.bbox_roi_extractor.out_channels = 32
        if model.roi_head.get('mask_head'):
            model.roi_head.mask_head.update(in_channels=32, conv_out_channels=32, num_convs=1, num_classes=7)
            model.roi_head.mask_roi_extractor.out_channels = 32
    if kind == 'small':  # two levels and two blocks, which halves the time of the export
        model.backbone.update(arch=dict(embed_dims=32, depth=2, num_heads=4, patch_size=16), out_indices=(0, 1),
                              out_strides=(8, 16))
        model.neck.update(in_channels=[32] * 2, num_outs=3)
        model.rpn_head.anchor_generator.update(strides=[8, 16, 32], scales=[4])
        model.roi_head.bbox_roi_extractor.featmap_strides = model.roi_head.mask_roi_extractor.featmap_strides = [8, 16]
    cfg.merge_from_dict(changes)
    return cfg


def build(cfg):
    init_default_scope('mmdet')
    return MODELS.build(cfg.model).eval()


def detector(kind, **changes):
    """Return a tiny detector of a kind that finds something."""
    torch.manual_seed(1)
    return with_findings(build(config_of(kind, **changes)))


def with_findings(model, wide: bool = False):
    """Give a detector parameters with which scores are around the threshold; ``wide`` heads are those of a config."""
    one_stage, last = not hasattr(model, 'roi_head'), last_layers(model)

    def outputs(layers):
        found = []
        hooks = [layer.register_forward_hook(lambda module, args, out: found.append(out)) for layer in layers]
        eager(model, images(1, 96, 128))
        for hook in hooks:
            hook.remove()
        return found

    with torch.no_grad():
        for parameter in model.parameters():
            inputs = parameter[:1].numel() if parameter.ndim else 1
            parameter.add_(torch.randn_like(parameter) * (0.03 if inputs < 2000 else inputs**-0.5))
        # scores of only 0 and 1 would be ties, and so would IoUs of boxes narrower than a pixel
        scaled = [*last, *_named(model, 'rpn_reg', 'fc_reg', 'retina_reg', 'atss_reg')]
        for layer in scaled if one_stage or wide else ():
            layer.weight.mul_(min(1., 0.5 / torch.cat([x.flatten() for x in outputs([layer])]).std()))
        if not one_stage:
            for layer in last:
                layer.weight.mul_(4 if wide else 10)
        logits = outputs(last)
        if one_stage:
            shift(model, torch.cat([x.flatten() for x in logits]).quantile(0.98).item() + 1)
        else:
            mean = torch.stack(logits).mean(0)
            shift(model, (mean[:, :-1].max(1).values - mean[:, -1]).median().item() + 1)
    return model


def last_layers(model):
    """Return the layers that output the logits of the classes."""
    return _named(model, 'fc_cls', 'retina_cls', 'atss_cls')


def _named(model, *names):
    return [module for name, module in model.named_modules() if name.endswith(names)]


def shift(model, amount):
    """Lower the logits of all classes against the background."""
    with torch.no_grad():
        for layer in last_layers(model):
            if isinstance(layer, torch.nn.Linear):
                layer.bias[-1] += amount
            else:
                layer.bias -= amount


def images(count, height, width, seed=0):
    """Return uint8 images (count, height, width, 3) of rectangles on noise."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 80, (count, height, width, 3), dtype=np.uint8)
    for image in found:
        for _ in range(12):
            y, x = rng.integers(height - 8), rng.integers(width - 8)
            h, w = rng.integers(8, height), rng.integers(8, width)
            image[y:y + h, x:x + w] = rng.integers(0, 256, 3)
    return found


def eager(model, batch):
    """Return the ``pred_instances`` of mmdet's model for RGB images that are not resized."""
    shape = batch.shape[1:3]
    data = dict(inputs=[torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1) for image in batch],
                data_samples=[DetDataSample(metainfo=dict(img_shape=shape, ori_shape=shape, scale_factor=(1., 1.)))
                              for _ in batch])
    with torch.no_grad():
        return [sample.pred_instances for sample in model.test_step(data)]


class Exported:
    """A detector and its ONNX file; call it with images for the outputs by name."""

    def __init__(self, model, path):
        self.model, self.path, graph = model, path, DetectorGraph(model)
        image = torch.from_numpy(images(2, 96, 128))
        self.run = export(graph, path, dict(image=image), (IMAGES, ), graph.outputs, TRANSLATIONS)

    def shifted(self, amount):
        """Return the pair with another bias of the classes in the model and in the file."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        shift(other.model, amount)
        proto = onnx.load(self.path)
        biases = [x for x in proto.graph.initializer if x.name.endswith(('fc_cls.bias', 'retina_cls.bias'))]
        for tensor, layer in zip(biases, last_layers(other.model), strict=True):
            tensor.CopyFrom(onnx.numpy_helper.from_array(layer.bias.detach().numpy(), tensor.name))
        other.run = opened(proto.SerializeToString())
        return other

    def __call__(self, batch):
        return self.run(image=batch)


def assert_same(got, model, batch):
    """Compare a graph with `eager`, but for objects just at the threshold or limit; return the numbers of objects."""
    assert got['dets'].shape[1] == max(got['num'].max(), 1)
    cfg, wanted = (model.roi_head if hasattr(model, 'roi_head') else model.bbox_head).test_cfg, eager(model, batch)
    # of ATSS, scores are multiplied after they were compared with the threshold
    threshold = 0 if _named(model, 'atss_cls') else cfg.score_thr
    for place, objects in enumerate(wanted):
        dets, labels, num = got['dets'][place], got['labels'][place], got['num'][place]
        assert (np.diff(dets[:, 4]) <= 0).all()
        assert (dets[num:, 4] == 0).all() and (labels[num:] == -1).all() and (dets[:num, 4] > threshold).all()
        pairs, left = _matched(dets[:num], labels[:num], objects)
        least = max(objects.scores[-1].item(), threshold) if len(objects.scores) == cfg.max_per_img else threshold
        assert all(abs(score - least) < 1e-4 for score in left), (left, num, len(objects.scores))
        if 'masks' in got and pairs:
            _assert_masks(got['masks'][place], dets, objects, pairs, batch.shape[1:3])
    return [len(objects.scores) for objects in wanted]


def _matched(dets, labels, objects):
    """Return pairs of indices, and the scores of those without a partner."""
    boxes, scores, kinds = objects.bboxes.numpy(), objects.scores.numpy(), objects.labels.numpy()
    pairs, free = [], set(range(len(dets)))
    for j in range(len(scores)):
        near = [i for i in free if labels[i] == kinds[j] and abs(dets[i, 4] - scores[j]) < 1e-4
                and np.abs(dets[i, :4] - boxes[j]).max() < 0.05]
        if near:
            pairs.append((near[0], j))
            free.remove(near[0])
    taken = {j for _, j in pairs}
    return pairs, [dets[i, 4] for i in free] + [score for j, score in enumerate(scores) if j not in taken]


def _assert_masks(masks, dets, objects, pairs, size):
    found = torch.from_numpy(np.stack([masks[i] for i, _ in pairs]))[:, None]
    boxes = torch.from_numpy(np.stack([dets[i, :4] for i, _ in pairs]))
    pasted = _do_paste_mask(found, boxes, *size, skip_empty=False)[0] >= 0.5
    wanted = objects.masks[[j for _, j in pairs]]
    assert wanted.any() and (pasted != wanted).float().mean() < 1e-3
