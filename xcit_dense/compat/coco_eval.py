"""Which class evaluates the boxes and masks of mmdet's COCO metrics: pycocotools' or a stand-in."""
import sys
from contextlib import contextmanager
from functools import partial

#: The names by which mmdet's metrics find the class: in this process, and with ``use_mp_eval`` in several.
_NAMES = ('COCOeval', 'COCOevalMP')


@contextmanager
def evaluations_made_by(make, metric):
    """Let a function build the evaluations of a metric, while the context lasts.

    Args:
        make: It is called with what would have built the evaluation, then with the arguments for it, by place or by
            name: ground truth and predictions as COCO of pycocotools, and ``bbox`` or ``segm``. It returns an object
            with the interface of ``pycocotools.cocoeval.COCOeval``.
        metric: A metric that looks up the class in the module of its own class or of a base.
    """
    modules = {sys.modules[kind.__module__] for kind in type(metric).__mro__ if kind.__module__ in sys.modules}
    kept = [(module, name, getattr(module, name)) for module in modules for name in _NAMES if hasattr(module, name)]
    for module, name, built_by in kept:
        setattr(module, name, partial(make, built_by))
    try:
        yield
    finally:
        for module, name, built_by in kept:
            setattr(module, name, built_by)
