"""Models that compute in bfloat16: what of them does, how little it changes, and where they do not."""
import copy
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

import xcit_dense
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense._utils import machine
from xcit_dense.config.loading import load_config
from xcit_dense.predict import models

pytestmark = pytest.mark.filterwarnings('ignore')


def layers_seen(model, image):
    """Return the types that come out of each convolution and linear layer for an image, by the layer's name."""
    seen = {}
    for name, module in model.model.named_modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear, torch.nn.ConvTranspose2d)):
            module.register_forward_hook(
                lambda layer, args, out, name=name: seen.setdefault(name, set()).add(out.dtype))
    model(image)
    return seen


def test_what_of_a_model_runs_in_it(trained, trained_segmentor, path, bfloat16):
    seen = layers_seen(xcit_dense.load(trained[0], threshold=0, dtype='bfloat16'), path)
    last = {name: kinds for name, kinds in seen.items()
            if name.endswith(('rpn_cls', 'rpn_reg', 'fc_cls', 'fc_reg', 'conv_logits'))}
    assert len(last) == 5 and set().union(*last.values()) == {torch.float32}
    others = [seen[name] for name in seen.keys() - last.keys()]
    assert len(others) > 10 and all(kinds == {torch.bfloat16} for kinds in others)
    segmentor = xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0], dtype='bfloat16')
    seen = layers_seen(segmentor, path)
    levels = segmentor.model.extract_feat(torch.zeros(1, 3, 64, 64))
    logits = segmentor.model.decode_head.forward(levels)  # mmseg calls it like that
    assert {x.dtype for x in (*levels, logits)} == {torch.float32}
    assert seen.pop('decode_head.conv_seg') == {torch.float32}
    assert all(kinds == {torch.bfloat16} for name, kinds in seen.items() if name.startswith('decode_head'))


def test_the_tools_write_nearly_the_same(trained, trained_segmentor, demo_data, tmp_path, bfloat16):
    scores = []
    for dtype in models.DTYPES:
        out = tmp_path / dtype
        run_tool('predict.py', TINY_CONFIG, trained[0], demo_data / 'val2017', '--out', out, '--dtype', dtype)
        records = json.loads((out / 'results.json').read_text())
        scores.append(sorted((record['score'] for record in records), reverse=True)[:20])
    assert scores[0] != scores[1] and np.allclose(*scores, atol=0.02)
    for config, (run, _) in ((TINY_CONFIG, trained), (TINY_SEG_CONFIG, trained_segmentor)):
        done = run_tool('test.py', config, run, '--data-root', demo_data, '--work-dir', tmp_path / config.stem, '--amp')
        assert 'DtypeHook' in next((tmp_path / config.stem).glob('*/*.log')).read_text()
        assert 'float32' not in done.stdout


def test_a_tested_model_is_in_the_type_once(trained_segmentor, path, bfloat16):
    segmentor, hook = xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0]), models.DtypeHook('bfloat16')
    for _ in range(2):  # several tests in one run
        hook.before_test(SimpleNamespace(model=segmentor.model))
    assert {torch.bfloat16} in layers_seen(segmentor, path).values()


def test_elsewhere_it_stays_in_float32_and_says_so(detector, trained, path, monkeypatch, capsys):
    for flags in ('fpu avx2 avx512f avx512_bf16', 'amx_bf16 amx_tile', 'avx2 avx512f avx512_vnni'):
        monkeypatch.setattr(machine, '_of_cpu', lambda name, flags=flags: flags)
        assert machine.has_bfloat16('cpu') is ('bf16' in flags)
    wanted = detector(path)
    model = xcit_dense.load(trained[0], threshold=0, dtype='bfloat16', device='cpu')
    said = [line for line in ''.join(capsys.readouterr()).splitlines() if 'bfloat16' in line]
    assert len(said) == 1 and 'float32' in said[0]
    found = model(path)
    assert np.array_equal(found.boxes, wanted.boxes) and np.array_equal(found.scores, wanted.scores)


def test_models_are_copied_and_pickled(bfloat16):
    init_default_scope('mmseg')
    model = MODELS.build(load_config(TINY_SEG_CONFIG, pretrained=False).model).eval()
    models.set_dtype(model, 'bfloat16')
    image = torch.randn(1, 3, 64, 64)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            assert torch.equal(other(image), model(image))
            other.backbone.patch_embed.proj[0][0].weight.mul_(2)
            assert not torch.equal(other(image), model(image))
