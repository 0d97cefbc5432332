"""Settings compared by key."""
from xcit_dense.config.differences import differences


def test_differences_of_settings_by_key():
    before = "a = dict(b=[dict(c=1, d='x'), dict(c=2)], e={'f.g': 3}, h=[1, 2])\nk = dict()\n"
    after = "a = dict(b=[dict(c=1, d='y')], e={'f.g': 4}, h=[1, 2])\nk = dict(l=None)\n"
    assert differences(before, before.replace("'", '"')) == {}
    assert differences(before, after) == {
        'a.b.0.d': ("'x'", "'y'"), 'a.b.1.c': ('2', 'not set'), 'a.e.f.g': ('3', '4'), 'k': ('dict()', 'not set'),
        'k.l': ('not set', 'None')}
    for text in ('a = (', 'a = ' + '(' * 10000, 'import os\nos.abort()\n', 'a.b = 1', 'a = {**c}'):
        assert differences(text, after) == {}


def test_one_more_hook_moves_no_other():
    """But hooks of one type are told apart by their position."""
    a, b, c = "dict(type='A', x=1)", "dict(type='B', y=1)", "dict(type='A', x=2)"
    assert differences(f'custom_hooks = [{b}]', f'custom_hooks = [{a}, {b}]') == {
        'custom_hooks.A.type': ('not set', "'A'"), 'custom_hooks.A.x': ('not set', '1')}
    assert differences(f'custom_hooks = [{a}, {a}]', f'custom_hooks = [{a}, {c}]') == {
        'custom_hooks.1.x': ('1', '2')}
