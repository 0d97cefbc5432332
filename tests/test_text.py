"""Words for people."""
import pytest

import xcit_dense.for_mmseg  # noqa: F401  registers ImageFolderDataset
from xcit_dense.text import counted


@pytest.mark.parametrize('number, words, text', (
    (1, 'faults', '1 fault'), (0, 'faults', '0 faults'), (1, 'classes', '1 class'),
    (1, 'images without annotations', '1 image without annotations'),
    (1, 'categories', '1 category'), (1234, 'categories', '1,234 categories')))
def test_one_of_a_kind(number, words, text):
    assert counted(number, words) == text
