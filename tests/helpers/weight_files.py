"""Weight files: what they hold, models to fill, and errors that leave a model as it was."""
import pickle
from contextlib import contextmanager

import pytest
import torch

from helpers.models import assert_equal, prefixed
from xcit_dense import XCiTClassifier
from xcit_dense.errors import CheckpointError


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_tensors(got, wanted):
    """Compare by name, in any order."""
    assert got.keys() == wanted.keys()
    assert_equal({name: got[name] for name in wanted}, wanted)


@contextmanager
def rejects(*words, model=None):
    """Expect a `CheckpointError` with all the words, after which a model is as before."""
    before = model and values(model)
    with pytest.raises(CheckpointError) as caught:
        yield caught
    assert all(str(word) in str(caught.value) for word in words), caught.value
    if model:
        assert_equal(values(model), before)


def classifier(num_classes=10, **options):
    arch = dict(embed_dims=32, depth=4, num_heads=4)
    return XCiTClassifier(arch, num_classes=num_classes, **dict(norm_cfg=dict(type='BN')) | options)


def without(state, *starts):
    return {name: value for name, value in state.items() if not name.startswith(starts)}


def dino(teacher, student):
    """The content of a run of DINO: backbones without classes, and projection heads."""
    return prefixed(branch(student), 'student.') | prefixed(branch(teacher) | {'centre': torch.randn(6)}, 'teacher.')


def branch(state):
    return prefixed(without(state, 'head.'), 'backbone.') | {
        'head.mlp.0.weight': torch.randn(8, 32), 'head.last_layer.weight_g': torch.ones(6, 1),
        'head.last_layer.weight_v': torch.randn(6, 8)}


def passl_state(state):
    """The authors' tensors in PASSL's form: transposed linear weights, other names, no counters."""
    linear = ('qkv.weight', 'attn.proj.weight', 'fc1.weight', 'fc2.weight', 'head.weight')
    names = {n: n.replace('running_mean', '_mean').replace('running_var', '_variance') for n in state
             if not n.endswith('num_batches_tracked')}
    return {new.replace('head.', 'head.fc_cls.') if n.startswith('head.') else f'backbone.{new}':
            state[n].t().contiguous() if n.endswith(linear) else state[n] for n, new in names.items()}


def write_pickle(content, path, protocol=4):
    path.write_bytes(pickle.dumps(content, protocol))
    return path
