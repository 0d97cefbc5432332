"""Prints as JSON what graphs of the backbone do on the GPU that computes nothing: run by test_launches.py."""
import gc
import json
import statistics
import sys
import time
import warnings

import torch

sys.path += ['tests', 'benchmarks/nullgpu']
from models.touches import TOUCHES, make
from run import launched

from benchmarks.cells import make_step
from benchmarks.models import build_models
from xcit_dense import XCiT, XCiTClassifier
from xcit_dense.archs import arch_names
from xcit_dense.models import graphs

warnings.filterwarnings('ignore')
graphs._first_difference = lambda *_: None  # values mean nothing here
TINY = dict(embed_dims=64, depth=4, num_heads=4, patch_size=16, out_indices=(0, 1, 2, 3))
CASES = {name: dict(arch=name) for name in arch_names()} | dict(
    stochastic_depth=dict(drop_path_rate=0.3), attention_dropout=dict(attn_drop_rate=0.1),
    frozen_stages=dict(frozen_stages=2), norm_eval=dict(norm_eval=True),
    synchronised=dict(norm_cfg=dict(type='SyncBN')),
    group_norm=dict(norm_cfg=dict(type='GN', num_groups=4)), patch_8=dict(arch=dict(TINY, patch_size=8)),
    float16=dict(dtype='float16'), float32=dict(dtype='float32'), inference=dict(mode='inference'))


def captured(model, dtype='bfloat16', mode='training'):
    """Return how many graphs a model has after some steps, what was said, and the launches of a step."""
    model.graphs = graphs.Graphs(model.train(mode == 'training'), (said := []).append)
    step = make_step(model, torch.randn(2, 3, 160, 192, device='cuda'), mode, dtype)
    for _ in range(graphs.AFTER + 2):
        step()
    return len(model.graphs.pairs), said, len(launched(step))


def built(arch=TINY, dtype='bfloat16', mode='training', kind=XCiT, **options):
    with torch.device('cuda'):  # which is no obstacle
        return captured(kind(arch, **dict(norm_cfg=dict(type='BN')) | options), dtype, mode)


def touched(touch):
    """Return whether a change of a captured model drops its graph, and what was said."""
    model = make().cuda()
    assert captured(model)[0] == 1
    before, said = {*model.graphs.pairs.values()}, []
    model.graphs.say = said.append
    touch(model)
    model.cuda()
    images, dropped = torch.randn(2, 3, 160, 192, device='cuda'), None
    for _ in range(graphs.AFTER + 2):
        with torch.autocast('cuda', torch.bfloat16):
            sum(out.float().mean() for out in model(images)).backward()
        dropped = before.isdisjoint(model.graphs.pairs.values()) if dropped is None else dropped
    return dropped, said


def host_times():
    """Return the milliseconds of the host for a step of small 12 patch 16, replayed and in the authors' form."""
    steps, times = {}, {}
    for name in ('ours', 'authors'):
        model = build_models('small_12_p16', 'training', [name])[name]
        model.graphs = graphs.Graphs(model, lambda line: None)
        steps[name] = make_step(model, torch.randn(2, 3, 800, 1280, device='cuda'), 'training', 'bfloat16')
    gc.collect()
    gc.freeze()
    for _ in range(25):
        for name, step in steps.items():
            start = time.process_time()
            step()
            times.setdefault(name, []).append(1000 * (time.process_time() - start))
    return {name: statistics.median(values[graphs.AFTER + 2:]) for name, values in times.items()}


print(json.dumps(dict(
    captured={name: built(**options) for name, options in CASES.items()} | dict(
        classifier=built(kind=XCiTClassifier, num_classes=5)),
    touched={name: touched(touch) for name, touch in TOUCHES.items()}, host=host_times())))
