"""The Python of the docs runs as it stands, and says what the text around it says."""
import re
from functools import reduce

import pytest
import torch
from torchvision.models.feature_extraction import create_feature_extractor

from helpers.models import TINY, build, randomise, relative_error
from helpers.paths import ROOT

PAGE = ROOT / 'docs/changing_the_model.md'


def example(title):
    """The Python under a heading of the page."""
    return python_in(PAGE.read_text().split(f'\n## {title}')[1].partition('\n## ')[0])


def python_in(text):
    return '\n'.join(re.findall(r'```python\n(.*?)```', text, re.S))


def run(title):
    return executed(example(title), title)


def executed(code, name):
    found = {}
    exec(compile(code, name, 'exec'), found)
    return found


def test_what_a_model_looks_at():
    found = executed(python_in((ROOT / 'docs/attention.md').read_text()), 'attention.md')
    assert found['maps'].shape == (1, 2, 4, 14, 20)
    assert [tokens.shape for tokens in found['tokens']] == [(1, 128, 14, 20)] * 2
    assert found['components'].shape == (1, 3, 14, 20) and found['explained'].shape == (1, 3)


def test_turning_the_fast_path_off():
    found = run('What is fast')
    assert found['image'].grad is not None and found['image'].grad.any()


def test_lora_learns(capsys):
    found = run('Example: fine-tune with LoRA')
    names = {name for name, p in found['backbone'].named_parameters() if p.requires_grad}
    assert names and all('lora_' in name for name in names)
    assert len(names) == 2 * 4 * 12  # two matrices for each of four layers of a block
    assert all(p.grad.any() for p in found['learning']) and found['loss'] < 0.3
    assert 'parameters learn' in capsys.readouterr().out


def test_another_attention():
    """And another block: both are what the model computes with."""
    found = run('Example: another attention')
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


def test_features_by_hooks():
    found = run('Example: features by hooks')
    assert {tuple(value.shape) for value in found['queries'].values()} == {(1, 24, 128)} and len(found['queries']) == 12
    assert not any(block.attn.qkv._forward_hooks for block in found['model'].blocks)
    extractor = create_feature_extractor(found['model'], ['blocks.5.attn.softmax'])
    attention = extractor(torch.randn(1, 3, 64, 96))['blocks.5.attn.softmax']
    assert attention.shape == (1, 4, 32, 32) and torch.allclose(attention.sum(-1), torch.ones(1, 4, 32))


@pytest.mark.parametrize('patch_size', (8, 16))
def test_the_reference_works_as_a_copy(patch_size):
    """In a file of its own, with another name and another block."""
    source = (ROOT / 'xcit_dense/models/reference.py').read_text()
    model = randomise(build(patch_size)).eval()
    x = torch.randn(1, 3, 133, 77)
    for name, act, is_same in ((f'Copied{patch_size}', 'gelu', True), (f'Changed{patch_size}', 'relu', False)):
        found = {}
        changes = {'class ReferenceXCiT': f'class {name}', 'F.gelu(block.mlp': f'F.{act}(block.mlp'}
        exec(reduce(lambda text, change: text.replace(*change), changes.items(), source), found)
        copied = found[name](dict(TINY, patch_size=patch_size), norm_cfg=dict(type='BN')).eval()
        copied.load_state_dict(model.state_dict())
        with torch.no_grad():
            assert (relative_error(copied(x)[3], model(x)[3]) < 5e-6) == is_same


def test_links_lead_somewhere():
    links = [(page, target) for page in (*(ROOT / 'docs').glob('*.md'), ROOT / 'README.md', ROOT / 'tests/README.md')
             for target in re.findall(r'\]\((?!http|#)([^)#]+)', page.read_text())]
    assert len(links) > 10
    assert not [target for page, target in links if not (page.parent / target).exists()]


def test_where_things_happen_names_files_that_are_there():
    page = (ROOT / 'docs/where_things_happen.md').read_text()
    names = re.findall(r'`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`', page)
    assert len(names) > 60
    assert not [name for name in names if not (ROOT / 'xcit_dense' / name).exists() and not (ROOT / name).exists()]
    table = page.partition('Five things')[0]
    rooms = {path.name + '/' * path.is_dir() for path in (ROOT / 'xcit_dense').iterdir()
             if not path.name.startswith(('_', '.')) and (path.is_file() or any(path.glob('*.py')))}
    assert rooms == {name for name in re.findall(r'`(\w+(?:\.py|/))`', table) if name != 'xcit_dense/'}


def test_the_page_of_faults_names_a_test_for_every_promise():
    page = ROOT / 'docs/when_something_goes_wrong.md'
    table = page.read_text().partition('| fault | what happens | test |')[2].partition('\n\n')[0]
    rows = [line.rpartition(' | ')[2] for line in table.splitlines()[2:]]
    assert len(rows) > 12
    tests = '\n'.join(path.read_text() for path in (ROOT / 'tests').rglob('test_*.py'))
    files = {path.name for path in (ROOT / 'tests').rglob('test_*.py')}
    for row in rows:
        names = re.findall(r'`([^`]+)`', row)
        assert names, row
        for name in names:
            assert name in files or f'def {name}(' in tests, name
