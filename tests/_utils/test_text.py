"""Text functions."""
import pytest

from xcit_dense._utils.text import counted, listed, printable, shown


@pytest.mark.parametrize('number, words, text', (
    (0, 'faults', '0 faults'), (1, 'classes', '1 class'), (1, 'batches', '1 batch'), (1, 'categories', '1 category'),
    (1, 'images without annotations', '1 image without annotations'), (1234, 'categories', '1,234 categories')))
def test_one_of_a_kind(number, words, text):
    assert counted(number, words) == text


def test_the_first_few_are_listed():
    assert listed(()) == '' and listed('abcde') == 'a, b, c, d, e' and listed('abcd', 3) == 'a, b, c and 1 more'
    assert listed(map(str, range(2005))) == '0, 1, 2, 3, 4 and 2,000 more'


def test_long_values_are_cut_and_control_characters_escaped():
    assert shown('x' * 78) == repr('x' * 78) and shown('x' * 79) == f"'{'x' * 79}..."
    assert printable('a\x1b[31m\nbé') == r'a\x1b[31m\nbé'
