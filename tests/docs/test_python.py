"""The Python in the fences of README and docs runs unchanged, and does what the text around it says."""
import ast
import itertools
import json
import re
from contextlib import suppress

import pytest
import torch
from docs.pages import fences
from torchvision.models.feature_extraction import create_feature_extractor

from helpers.models import relative_error
from helpers.paths import ROOT
from xcit_dense.config.loading import list_models, load_config

FENCES = fences('python')
#: What is tested in test_runtime_alone.py, by a word in it, and what is there of it.
ELSEWHERE = {'serve_forever': 'is_service=True', "Model('model.onnx')": 'is_service=False'}
#: A config without a base is a part of one: of this, or, where it imports the package, of one of mmdet's.
BASE, BASE_OF_OTHERS = 'maskrcnn_xcit_s12_p16_coco.py', 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'


def is_config(code):
    return all(isinstance(node, ast.Assign) for node in ast.parse(code).body)


CONFIGS = [fence for fence in FENCES if is_config(fence.code)]
#: By page and heading, the scripts under it, which run one after the other.
SCRIPTS = {place: [fence.code for fence in group] for place, group in itertools.groupby(
    (fence for fence in FENCES if fence not in CONFIGS and not any(word in fence.code for word in ELSEWHERE)),
    key=lambda fence: (fence.page, fence.section))}


def test_fences_of_python_are_found():
    """Also those that are tested elsewhere, or that have a check of their own."""
    assert len(CONFIGS) > 4 and len(SCRIPTS) > 8
    alone = (ROOT / 'tests/test_runtime_alone.py').read_text()
    for word, text in ELSEWHERE.items():
        assert any(word in fence.code for fence in FENCES) and text in alone, word
    for word in CHECKS:
        assert any(word in code for codes in SCRIPTS.values() for code in codes), word


@pytest.mark.parametrize('fence', CONFIGS, ids=lambda fence: f'{fence.page}-{fence.section}')
def test_configs_pass_the_check_of_a_training(fence, tmp_path):
    code = fence.code
    if '_base_ =' not in code:
        code = f'_base_ = {BASE_OF_OTHERS if "custom_imports" in code else BASE!r}\n{code}'
    code = code.replace('/path/to/xcit_dense', str(ROOT))
    for base in re.findall(r"_base_ = '([\w.]+)\.py'", code):
        assert base in list_models()
        code = code.replace(f"'{base}.py'", f"'{ROOT}/configs/{base}.py'")
    if '/configs/xcit_' in code:
        pytest.importorskip('mmpretrain')
    (tmp_path / 'mine.py').write_text(code)
    cfg = load_config(tmp_path / 'mine.py', check=True)
    for name, value in ast_values(code).items():
        assert holds(cfg[name], value), name
    if 'LoadImageChannels' in code:
        loaders = cfg.train_dataloader, cfg.test_dataloader
        assert [loader.dataset.pipeline[0].channels for loader in loaders] == [5, 5]
        assert len(cfg.model.data_preprocessor.mean) == cfg.model.backbone.in_channels == 5


def ast_values(code):
    """Return what a config sets, as far as it needs no other variable."""
    found = {}
    for node in ast.parse(code).body:
        with suppress(NameError):
            found[node.targets[0].id] = eval(compile(ast.Expression(node.value), 'docs', 'eval'), {'dict': dict})
    return {name: value for name, value in found.items() if name != '_base_'}


def holds(got, wanted):
    if isinstance(wanted, dict):
        return all(holds(got[key], value) for key, value in wanted.items() if key != '_delete_')
    if isinstance(wanted, (list, tuple)):
        return len(got) == len(wanted) and all(map(holds, got, wanted))
    return got == wanted


@pytest.mark.parametrize('where', [
    pytest.param(where, id='-'.join(where), marks=[pytest.mark.slow] * ('.optim' in '\n'.join(codes)))
    for where, codes in SCRIPTS.items()])
def test_scripts_run(where, place, capsys):
    codes, found = SCRIPTS[where], {}
    whole = '\n'.join(codes)
    place.prepare_python(whole)
    for code in codes:
        exec(compile(code, '-'.join(where), 'exec'), found)
    for word, check in CHECKS.items():
        if word in whole:
            check(found, capsys.readouterr().out)


def attention(found, out):
    assert found['maps'].shape == (1, 2, 4, 14, 20)
    assert [tokens.shape for tokens in found['tokens']] == [(1, 128, 14, 20)] * 2
    assert found['components'].shape == (1, 3, 14, 20) and found['explained'].shape == (1, 3)


def lora(found, out):
    names = {name for name, p in found['backbone'].named_parameters() if p.requires_grad}
    assert names and all('lora_' in name for name in names)
    assert len(names) == 2 * 4 * 12  # two matrices for each of four layers of a block
    assert all(p.grad.any() for p in found['learning']) and found['loss'] < 0.3
    assert 'parameters learn' in out


def another_attention(found, out):
    """And another block: both are what the model computes with."""
    x = torch.randn(1, 3, 256, 320)
    model = found['GatedXCiT']('nano_12_p16').eval()
    before = model(x)[3]
    with torch.no_grad():
        model.blocks[0].attn.gate[2].bias.add_(3.)
    assert relative_error(model(x)[3], before) > 1e-3
    model = found['model'].eval()
    other = found['XCiT']('nano_12_p16').eval()
    other.load_state_dict(model.state_dict())
    assert relative_error(model(x)[3], other(x)[3]) > 1e-3


def features_by_hooks(found, out):
    assert {tuple(value.shape) for value in found['queries'].values()} == {(1, 24, 128)} and len(found['queries']) == 12
    assert not any(block.attn.qkv._forward_hooks for block in found['model'].blocks)
    extractor = create_feature_extractor(found['model'], ['blocks.5.attn.softmax'])
    maps = extractor(torch.randn(1, 3, 64, 96))['blocks.5.attn.softmax']
    assert maps.shape == (1, 4, 32, 32) and torch.allclose(maps.sum(-1), torch.ones(1, 4, 32))


def predictions(found, out):
    drawn = found['Image'].open('drawn.png')
    result = found['result']
    assert result.boxes.shape[1] == 4 and drawn.size == result.draw().shape[1::-1]


def statistics(found, out):
    assert json.loads(f'[{out.replace("] [", "], [")}]') == [[1000.] * 5] * 2


#: By a word in a script, what must hold after it: its variables and what it printed.
CHECKS = {'attention_maps(': attention, 'LoraConfig': lora,
          'class FFNFirst': another_attention,
          'register_forward_hook': features_by_hooks, "save('drawn.png')": predictions, "rglob('*.npy')": statistics}
