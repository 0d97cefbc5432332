"""Data similar to stained nuclei: many objects of twelve pixels, in the layout of COCO."""
from unittest import mock

from benchmarks import fitting


def make_nuclei(root, num_train=32, num_val=12, sides=(300, 600), most=150):
    """Write images with the given height and width in pixels, and their annotations, into a folder; return it."""
    kind = fitting.Kind(num_train, sides[1], sides[0], (8, 16), (most // 2, most), 2)
    with mock.patch.dict(fitting.KINDS, nuclei=kind), mock.patch.object(fitting, '_VALIDATION', num_val):
        fitting.write(root, 'nuclei')
    return root
