"""Prints as JSON what the operators in mmcv's place do on the GPU that computes nothing: run by test_launches.py.

For each operator and type: whether outputs and gradients have the device and the type of the inputs, the launches of a
step there and back, and how often it waits for the GPU.
"""
import json
import warnings
from importlib import import_module

import torch
from run import launches

import xcit_dense  # noqa: F401  (with it, mmcv's operators are there)

ops = import_module('mmcv.ops')
attend, psa_mask = (getattr(import_module(f'mmcv.ops.{module}'), name).apply for module, name in (
    ('multi_scale_deform_attn', 'MultiScaleDeformableAttnFunction'), ('psa_mask', 'PSAMaskFunction')))
warnings.filterwarnings('ignore')


def random(*shape):
    return torch.rand(*shape, device='cuda')


MAPS, ROIS = random(2, 8, 12, 16), torch.tensor([[0., 8, 8, 40, 30], [1, 0, 0, 60, 44]], device='cuda')
SHAPES, STARTS = torch.tensor([[12, 16], [6, 8]], device='cuda'), torch.tensor([0, 192], device='cuda')
LABELS = torch.tensor([0, 2, 3], device='cuda')
#: By name, the function and its inputs of a floating type.
CASES = {
    'deformable attention': (lambda value, places, weights: attend(
        value, SHAPES, STARTS, places, weights, 64),
        random(2, 240, 2, 4), random(2, 5, 2, 2, 3, 2), random(2, 5, 2, 2, 3)),
    'deformable convolution': (lambda maps, offset, weight: ops.deform_conv2d(maps, offset, weight, 1, 1),
                               MAPS, random(2, 18, 12, 16), random(4, 8, 3, 3)),
    'modulated deformable convolution': (
        lambda maps, offset, mask, weight, bias: ops.modulated_deform_conv2d(maps, offset, mask, weight, bias, 1, 1),
        MAPS, random(2, 18, 12, 16), random(2, 9, 12, 16), random(4, 8, 3, 3), random(4)),
    'RoIAlign': (lambda maps: ops.roi_align(maps, ROIS.to(maps), 3, 0.25), MAPS),
    'RoIAlign with the largest sample': (lambda maps: ops.roi_align(maps, ROIS.to(maps), 3, 0.25, 2, 'max'), MAPS),
    'RoIPool': (lambda maps: ops.roi_pool(maps, ROIS.to(maps), 3, 0.25), MAPS),
    'deformable RoI pooling': (lambda maps, offset: ops.deform_roi_pool(maps, ROIS.to(maps), offset, (3, 3), 0.25, 2),
                               MAPS, random(2, 2, 3, 3)),
    'CARAFE': (lambda maps, kernels: ops.carafe(maps, kernels, 3, 1, 2), MAPS, random(2, 9, 24, 32)),
    'PSA mask': (lambda windows: psa_mask(windows, 0, (3, 5)), random(2, 15, 4, 6)),
    'focal loss': (lambda logits: ops.sigmoid_focal_loss(logits, LABELS, 2., 0.25, None, 'none'), random(3, 3))}

found = {}
for name, (function, *inputs) in CASES.items():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = [one.detach().to(dtype).requires_grad_() for one in inputs]

        def step(function=function, given=given):
            output = function(*given)
            output.backward(torch.ones_like(output))
            return output

        output = step()
        kinds = {(str(one.dtype), one.device.type) for one in (output, *(one.grad for one in given))}
        found[f'{name} {str(dtype).removeprefix("torch.")}'] = (
            kinds == {(str(dtype), 'cuda')}, *launches(lambda step=step: step()))
print(json.dumps(found))
