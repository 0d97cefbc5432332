"""The config that a run wrote into its checkpoint, read without running it."""
import pytest
from mmengine.config import Config

from xcit_dense.config.loading import load_config
from xcit_dense.weights.contents import config_of_checkpoint


def read(text):
    return config_of_checkpoint(dict(meta=dict(cfg=text), state_dict={}))


@pytest.mark.parametrize('name', ('maskrcnn_xcit_s12_p8_coco', 'semfpn_xcit_n12_p16_small'))
def test_it_is_the_config_that_was_written(name):
    cfg = load_config(name)
    assert read(cfg.pretty_text) == cfg.to_dict()


def test_every_kind_of_value():
    values = dict(a=-1.5, b=None, c=(1, [2, 'x']), d={1: 2, 'a-b': dict(e=True)}, f=())
    assert read(Config(values, format_python_code=False).pretty_text) == values


@pytest.mark.parametrize('value', (
    '__import__("os").getcwd()', 'a', 'dict(b=len("x"))', 'dict([("b", 1)])', 'dict(**{})', '{**{}}', '[*()]',
    '{{}: 1}', '1 + 1', 'dict({}, {})', 'dict({}, a=1)', '-"x"', 'open("x")', '{[]: 1}', 'f"{a}"',
    '[i for i in "ab"]', 'object.dict()', 'dict(b=[(1, {2: x})])'))
def test_a_value_that_is_no_literal_is_unknown(value):
    assert read(f'x = 1\ny = 2\nx = {value}\nx.z = 3\nif y:\n    y = 4') == dict(y=2)


@pytest.mark.parametrize('text', (
    None, 3, b'x = 1', '', 'x = ', 'x = 1\0', 'x = "\ud800"', 'x = 1' + '+1' * 10**5, 'x = ' + '(' * 10**5,
    'x = ' + '[' * 150 + ']' * 150 + '[0]' * 10**5, 'x = ' + 'dict(a=' * 10**5, 'x = ' + '-' * 10**5 + '1',
    'x = ' + '9' * 10**5, 'x = a' + '.a' * 10**5, 'x = 1 #' + '#' * 2**22))
def test_hostile_text_says_nothing(text):
    assert read(text) == {}


@pytest.mark.parametrize('checkpoint', ([], {}, dict(meta=None), dict(meta=[]), dict(cfg='x = 1')))
def test_a_checkpoint_without_config(checkpoint):
    assert config_of_checkpoint(checkpoint) == {}
