"""Whole models that version 0.1 pickled, in this process; tests/compat loads them in a separate one."""
import copy
import pickle

import pytest
import torch

from helpers.models import relative_error
from helpers.paths import ROOT
from xcit_dense import set_fast


@pytest.mark.parametrize('is_fast', (True, False))
@pytest.mark.parametrize('name', ('model', 'fused'))
def test_models_of_version_0_1_are_models_of_today(name, is_fast):
    """They compute what they did, keep nothing that only version 0.1 had, and can be pickled again."""
    file = torch.load(ROOT / 'tests/golden/models_of_0_1.pt', weights_only=False)
    model = file[name]
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad(), set_fast(is_fast):
            level, = each(file['image'])
        assert relative_error(level, file['level']) < 5e-6 and not each.training
        assert '_codes' not in vars(each.pos_embeder)
        for block in each.blocks:
            assert 'drop_path_rate' not in vars(block) and block.drop_path.rate == 0.1
            assert not block.drop_path.training and not hasattr(block.local_mp, 'taps1')
    if name == 'model':
        assert model.train().blocks[0].drop_path.training
