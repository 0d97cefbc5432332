"""What is replaced inside the frameworks while they run: mmdet's COCO evaluation, a step of torch's compiler, yapf."""
import sys
from contextlib import contextmanager
from functools import partial

import torch
from mmengine.config import config

#: The names by which mmdet's COCO metrics find the class that evaluates: in this process, and with ``use_mp_eval`` in
#: several.
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


def keep_sizes_dynamic():
    """Let a compiled graph serve images of any size.

    Graphs then call torch's own gradient of a convolution, as they do in the end on CUDA and on a CPU. On the way there
    Inductor fixes the strides of the maps (seen with torch 2.14), which takes a graph for every image size.
    """
    try:
        from torch._inductor.kernel.conv import aten_convolution_backward_fallback
        from torch._inductor.lowering import lowerings
    except ImportError:  # another version of torch, which calls it without a detour
        return
    if not torch.version.hip:
        lowerings[torch.ops.aten.convolution_backward.default] = aten_convolution_backward_fallback


def format_configs_once():
    """Let mmengine format the text of a config once, and not for each file, log and checkpoint it is written to."""
    formatted, kept = getattr(config, 'FormatCode', None), {}
    if formatted is None:  # the fork of mmengine, which looks it up in yapf
        return

    def format_code(text, **style):  # the style is always the same
        if text not in kept:
            if len(kept) == 4:  # configs of one run
                kept.clear()
            kept[text] = formatted(text, **style)
        return kept[text]

    config.FormatCode = format_code
