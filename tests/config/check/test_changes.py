"""What differs between values of configs."""
from xcit_dense.config.check.changes import changes


def test_differences_of_values():
    before = dict(a=[dict(type='A', x=1), (1, 2)], b=dict(type='B', y=1), c=[1])
    after = dict(a=[dict(type='A', x=2), (1, 2)], b=dict(type='C', y=2), c=[1, 2], d=3)
    rest = [('k.c', [1], [1, 2]), ('k.d', None, 3)]
    assert changes(before, after, 'k') == [('k.a.0.x', 1, 2), ('k.b.type', 'B', 'C'), ('k.b.y', 1, 2), *rest]
    assert changes(before, after, 'k', by_type=True) == [('k.a.0.x', 1, 2), ('k.b', before['b'], after['b']), *rest]
