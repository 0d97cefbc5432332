"""Settings compared by key."""
from xcit_dense.config.differences import changes, differences


def test_differences_of_settings_by_key():
    before = "a = dict(b=[dict(c=1, d='x'), dict(c=2)], e={'f.g': 3}, h=[1, 2])\nk = dict()\n"
    after = "a = dict(b=[dict(c=1, d='y')], e={'f.g': 4}, h=[1, 2])\nk = dict(l=None)\n"
    assert differences(before, before.replace("'", '"')) == {}
    assert differences(before, after) == {
        'a.b.0.d': ("'x'", "'y'"), 'a.b.1.c': ('2', 'not set'), 'a.e.f.g': ('3', '4'), 'k': ('dict()', 'not set'),
        'k.l': ('not set', 'None')}
    for text in ('a = (', 'a = ' + '(' * 10000, 'import os\nos.abort()\n', 'a.b = 1', 'a = {**c}'):
        assert differences(text, after) == {}


def test_differences_of_values():
    before = dict(a=[dict(type='A', x=1), (1, 2)], b=dict(type='B', y=1), c=[1])
    after = dict(a=[dict(type='A', x=2), (1, 2)], b=dict(type='C', y=2), c=[1, 2], d=3)
    rest = [('k.c', [1], [1, 2]), ('k.d', None, 3)]
    assert changes(before, after, 'k') == [('k.a.0.x', 1, 2), ('k.b.type', 'B', 'C'), ('k.b.y', 1, 2), *rest]
    assert changes(before, after, 'k', by_type=True) == [('k.a.0.x', 1, 2), ('k.b', before['b'], after['b']), *rest]
