"""The docs name files and tests that exist, and the code that they offer to copy works as a copy."""
import re
from functools import reduce

import pytest
import torch

from helpers.models import TINY, build, randomise, relative_error
from helpers.paths import ROOT


@pytest.mark.parametrize('patch_size', (8, 16))
def test_the_reference_works_as_a_copy(patch_size):
    """In a separate file, with another name and another block."""
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


def test_where_things_happen_names_files_that_are_there():
    page = (ROOT / 'docs/where_things_happen.md').read_text()
    names = re.findall(r'`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`', page)
    assert len(names) > 60
    assert not [name for name in names if not (ROOT / 'xcit_dense' / name).exists() and not (ROOT / name).exists()]


def test_the_page_of_faults_names_a_test_for_every_promise():
    page = ROOT / 'docs/when_something_goes_wrong.md'
    lines = [line for line in page.read_text().splitlines() if line.startswith('|')]
    rows = [line.strip('| ').split(' | ') for line in lines if '---' not in line and not line.endswith('| tests |')]
    assert len(rows) > 100
    files = [*(ROOT / 'tests').rglob('test_*.py')]
    files, tests = {path.name for path in files}, '\n'.join(path.read_text() for path in files)
    for row in rows:
        names = re.findall(r'`([^`]+)`', row[3]) if len(row) == 4 else ()
        assert names, row
        assert not [name for name in names if name not in files and f'def {name}(' not in tests], row
