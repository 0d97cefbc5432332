"""What the package uses and replaces inside the frameworks: every private name of mmengine, under a public name, and
what is replaced while they run: pycocotools' reading, a step of torch's compiler, yapf.

Written for mmengine 0.10.7. When you move to another version or to the fork, check this file first.
"""
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.config import config
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend
from pycocotools.coco import COCO

from ..errors import ConfigError

#: Functions of `mmengine.config.Config` whose frames hold, as ``filename``, the file that they read.
CONFIG_READERS = ('_file2dict', '_is_lazy_import', '_parse_lazy_import')

def _public(name):
    """A property that is another attribute, for reading and writing."""
    return property(lambda self: getattr(self, name), lambda self, value: setattr(self, name, value))


class OpenRunner(Runner):
    """Runner with public names for its loading options and for the initialisation of its weights."""

    #: File or address of the weights to start from, or None.
    loads_from = _public('_load_from')
    #: Whether the training continues from that file.
    resumes = _public('_resume')
    #: Whether the weights are in the model already.
    has_loaded = _public('_has_loaded')

    #: Fill in the weights that the config asks for.
    init_weights = Runner._init_model_weights

    def _init_model_weights(self):
        self.init_weights()


def is_resumed(runner) -> bool:
    """Whether the training of a runner continues from a checkpoint."""
    return runner._resume


def built_train_loop(runner):
    """Return a runner's training loop, or its config if not built yet, or None in a run without training."""
    return runner._train_loop


class OpenLoop:
    """Mixin for mmengine's training loops that makes their counters writable."""

    #: Iterations done.
    iterations = _public('_iter')
    #: Epochs done.
    epochs = _public('_epoch')
    #: Epochs and iterations of the whole run.
    max_epochs, max_iters = _public('_max_epochs'), _public('_max_iters')

    def update_val_interval(self):
        """Update the validation interval to that of the current epoch or iteration."""
        self._decide_current_val_interval()


class OpenCheckpointHook(CheckpointHook):
    """Hook with public names for the two methods that write checkpoints."""

    #: Save the checkpoint of an epoch or iteration.
    save_step = CheckpointHook._save_checkpoint_with_step
    #: Save a checkpoint whose metrics are the best so far.
    save_best_of = CheckpointHook._save_best_checkpoint

    def _save_checkpoint_with_step(self, runner, step, meta):
        self.save_step(runner, step, meta)

    def _save_best_checkpoint(self, runner, metrics):
        self.save_best_of(runner, metrics)


class OpenVisBackend(LocalVisBackend):
    """Local files of curves, with a public name for the method that writes a line."""

    #: Write scalars to a file.
    write_line = LocalVisBackend._dump

    def _dump(self, *args, **kwargs):
        self.write_line(*args, **kwargs)


def mend_weighted_losses(model):
    """Let mmsegmentation's ``class_weight`` work with ignored pixels and sigmoids; `ConfigError` for a wrong length."""
    for head in (module for module in model.modules() if hasattr(module, 'loss_decode')):
        for loss in head.loss_decode.modules():
            weights, criterion = getattr(loss, 'class_weight', None), getattr(loss, 'cls_criterion', None)
            read = getattr(type(head), 'loss_by_feat', None)  # other heads may weigh other things
            if isinstance(weights, (list, tuple)) and len(weights) != head.out_channels and (
                    getattr(read, '__qualname__', '').startswith('BaseDecodeHead.')):
                raise ConfigError(f'{type(head).__name__}.loss_decode.class_weight has {len(weights)} weights, but the '
                                  f'head has {head.out_channels} outputs: set one for each, or None')
            if weights is not None and str(getattr(criterion, '__module__', '')).endswith('.cross_entropy_loss'):
                loss.cls_criterion = partial(_weigh, criterion)


def _weigh(criterion, scores, labels, weight=None, *, class_weight, reduction, avg_factor, ignore_index=-100, **others):
    if criterion.__name__ == 'binary_cross_entropy':
        class_weight = class_weight.reshape(-1, *[1] * (scores.dim() - 2))  # for (B, C, H, W), or (N, C)
    elif reduction == 'mean' and avg_factor is None and not 0 <= ignore_index < len(class_weight):
        avg_factor = class_weight[labels[labels != ignore_index]].sum()  # where it looks up the ignored label too
    return criterion(scores, labels, weight, class_weight=class_weight, reduction=reduction, avg_factor=avg_factor,
                     ignore_index=ignore_index, **others)


def accumulated_steps(optim_wrapper) -> int:
    """Return over how many iterations an optimizer wrapper accumulates gradients."""
    return getattr(optim_wrapper, '_accumulative_counts', 1)


def awaits_gradients(optim_wrapper) -> bool:
    """Whether an optimizer wrapper has accumulated gradients and waits for more before its step."""
    return (steps_of(optim_wrapper) or 0) % accumulated_steps(optim_wrapper) > 0


def steps_of(optim_wrapper):
    """Return how many iterations an optimizer wrapper has seen, None if it does not count."""
    return getattr(optim_wrapper, '_inner_count', None)


def set_steps(optim_wrapper, steps):
    """Set what `steps_of` returns."""
    optim_wrapper._inner_count = steps


#: The attributes of a `mmengine.logging.HistoryBuffer` that hold arrays of numbers, in the order of its arguments.
HISTORIES = ('_log_history', '_count_history')


def swaps_channels(preprocessor) -> bool:
    """Whether an `mmengine.model.ImgDataPreprocessor`, or mmdet's, swaps BGR and RGB."""
    return preprocessor._channel_conversion


def read_annotations_with(read):
    """Let pycocotools read annotation files by a function, from the path to the content."""
    known = COCO.__init__

    def open_file(self, annotation_file=None):
        content = annotation_file and read(annotation_file)
        known(self, None if isinstance(content, dict) else annotation_file)  # its own error about other files
        if isinstance(content, dict):
            self.dataset = content
            self.createIndex()

    COCO.__init__ = open_file


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
            kept[text] = formatted(text, **style)
        return kept[text]

    config.FormatCode = format_code


def find_base_configs(find):
    """Let ``_base_`` name configs that mmengine does not know: ``find`` returns the file of a name, or None."""
    known = config.Config._get_cfg_path

    def get_path(name, filename):
        found = find(name)
        return (str(found), None) if found else known(name, filename)

    config.Config._get_cfg_path = staticmethod(get_path)


def note_configs(note):
    """Call ``note`` with each file that mmengine reads as a config or as the base of one."""
    for name in ('_file2dict', '_parse_lazy_import'):
        setattr(config.Config, name, staticmethod(partial(
            lambda read, filename, *rest, **more: note(filename) or read(filename, *rest, **more),
            getattr(config.Config, name))))


def stock_configs(package: str) -> tuple:
    """Return the folder of the configs of a framework, and their paths in it; none if it is not installed."""
    spec = find_spec(package) if package else None
    folder = Path(spec and spec.origin or package).parent / '.mim/configs'
    found = (path.relative_to(folder) for path in folder.rglob('*.py'))
    return folder, [path.as_posix() for path in found if '_base_' not in path.parts]
