"""What the tests of tools share."""
import pytest
import torch

from xcit_dense import XCiTClassifier


@pytest.fixture(scope='session')
def classifier(tmp_path_factory):
    """The file of a classifier that takes every image for a dog, and less for a cat."""
    path = tmp_path_factory.mktemp('weights') / 'own.pth'
    state = XCiTClassifier('nano_12_p16', num_classes=4, norm_cfg=dict(type='BN')).state_dict()
    state['head.weight'].zero_()
    state['head.bias'].copy_(torch.tensor([0.2, 0.7, 0.06, 0.04]).log())
    names = 'cat', 'dog', 'a newt', 'a name of a class that is longer than most'
    torch.save(dict(meta=dict(dataset_meta=dict(classes=names)), state_dict=state), path)
    return path
