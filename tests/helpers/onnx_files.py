"""Tiny files with the inputs, outputs and metadata of those that `export` writes, which compute almost nothing."""
import json

import onnx
from onnx import helper, numpy_helper, parser

METADATA = dict(xcit_dense=1, classes=['red', 'green', 'blue'], palette=[[255, 0, 0], [0, 255, 0], [0, 0, 255]],
                numbers=[1, 2, 3], mean=[0.] * 3, std=[1.] * 3, resize=dict(rule='none'), pad_divisor=1, pad_value=0,
                turns=True, mask_threshold=None, config='tiny', checkpoint='tiny.pth', checkpoint_sha256='12' * 32,
                versions={}, words={})
_HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'


def write_detector(path, dets, labels, masks=None, num=None, **metadata):
    """Write a detector that always finds dets (n, 5), boxes in shares of the sides and scores; num of them are real."""
    n, num = len(dets), len(dets) if num is None else num
    tensors, outputs, lines = dict(dets_=dets, labels_=labels), '', ''
    if masks is not None:
        outputs = f', float[B,{n},{masks.shape[1]},{masks.shape[2]}] masks'
        lines = 'masks = Expand(masks_, b3)'
        tensors['masks_'] = masks
    model = parser.parse_model(_HEAD + f'''g (uint8[B,H,W,3] image) => (
float[B,{n},5] dets, int64[B,{n}] labels, int64[B] num{outputs})
<int64[1] one = {{1}}, int64[1] num_ = {{{num}}}, float[1] onef = {{1.0}}, int64[2] turned = {{1, 0}}> {{
  b = Shape<start = 0, end = 1>(image)
  hw = Shape<start = 1, end = 3>(image)
  wh = Gather(hw, turned)
  pixels = Cast<to = 1>(wh)
  scale = Concat<axis = 0>(pixels, pixels, onef)
  scaled = Mul(dets_, scale)
  b2 = Concat<axis = 0>(b, one, one)
  b3 = Concat<axis = 0>(b2, one)
  b1 = Concat<axis = 0>(b, one)
  dets = Expand(scaled, b2)
  labels = Expand(labels_, b1)
  num = Expand(num_, b)
  {lines}
}}''')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return _write(path, model, task='detection', **{'mask_threshold': None if masks is None else 0.5, **metadata})


def write_segmentor(path, scores=True, **metadata):
    """Write a segmentor whose label of a pixel is the strongest of red, green and blue."""
    more = ', float[B,h,w] scores' if scores else ''
    model = parser.parse_model(_HEAD + f'''g (uint8[B,H,W,3] image, int64[2] size) => (uint8[B,h,w] labels{more})
<int64[2] size = {{0, 0}}, int64[2] none = {{0, 0}}, float[1] hundred = {{100.0}}, int64[1] axis = {{1}}> {{
  bc = Shape<start = 0, end = 2>(planes)
  own = Shape<start = 1, end = 3>(image)
  as_own = Equal(size, none)
  hw = Where(as_own, own, size)
  sizes = Concat<axis = 0>(bc, hw)
  logits = Resize<mode = "linear">(planes, , , sizes)
  best = ArgMax<axis = 1, keepdims = 0>(logits)
  labels = Cast<to = 2>(best)
  {"""weaker = Div(logits, hundred)
  shares = Softmax<axis = 1>(weaker)
  scores = ReduceMax<keepdims = 0>(shares, axis)""" if scores else ""}
}}''')
    model.graph.node.insert(0, helper.make_node('Cast', ['image'], ['float'], to=1))
    model.graph.node.insert(1, helper.make_node('Transpose', ['float'], ['planes'], perm=[0, 3, 1, 2]))
    return _write(path, model, task='segmentation', **metadata)


def write_backbone(path, **metadata):
    """Write a backbone with two levels: twice the image, and means of 2 x 2."""
    model = parser.parse_model(_HEAD + '''g (float[B,3,H,W] images) => (float[B,3,H,W] level0, float[B,3,h,w] level1) {
  level0 = Add(images, images)
  level1 = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(images)
}''')
    return _write(path, model, task='backbone', **{'classes': [], 'palette': [], 'numbers': [], **metadata})


def _write(path, model, **metadata):
    texts = {key: value if isinstance(value, str) and key in ('task', 'config', 'checkpoint_sha256') else
             json.dumps(value) for key, value in {**METADATA, **metadata}.items()}
    helper.set_model_props(model, texts)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
