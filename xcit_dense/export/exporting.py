"""From a config and a checkpoint to an ONNX file that is compared with the checkpoint.

Readers, such as `xcit_dense.runtime`, know from the metadata of the file how to prepare images: strings by name, most
of them JSON.
"""
import copy
import json
import logging
import time
import warnings
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from .._utils.files import OwnFiles, atomic_write, hash_of
from .._utils.text import first_line
from ..config.loading import load_config
from ..config.settings import Settings
from ..config.tasks import task_named, task_of
from ..data.pipelines import turns_images
from ..errors import ConfigError, ExportError, OutputError, SetupError
from ..models import XCiT
from ..predict.classes import test_dataset
from ..predict.models import resize_rule
from ..predict.predictor import build_predictor
from ..weights import fetch
from .finishing import MOST, add_checksum, compare_file, save
from .preprocessing import TRACED, Preprocessing

#: Version of the names and their meaning; a reader rejects a later one.
FORMAT = '1'
_PACKAGES = ('xcit_dense', 'torch', 'onnx', 'onnxscript', 'onnxruntime', 'mmengine', 'mmdet', 'mmsegmentation')


class Exported(NamedTuple):
    """The result of `export_model`: the file, its size in bytes, the seconds it took, and the result of the check."""
    path: Path
    size: int
    seconds: float
    checked: str


def export_model(config, checkpoint, out, *, scores: bool = False, backbone: bool = False, cfg_options: dict = None,
                 image_size=None, overwrite: bool = False, say=lambda words: None) -> Exported:
    """Write a trained detector or segmentor as one ONNX file, for images of any size and any batch size.

    Before the file gets its name, it is compared with the checkpoint on images of other sizes than those it was traced
    with. Inputs, outputs and metadata: docs/deploying.md.

    Args:
        config: Name or path of the config.
        checkpoint: As for `predict`: a path, an address, ``xcit://NAME`` or a work dir.
        out: The file to write.
        scores: For segmentation: also output the probability of each label.
        backbone: Export only the backbone, for your own neck: normalised images in, levels out.
        cfg_options: Changes to the config, by dotted keys.
        image_size: Another resize rule, like ``--image-size`` of `predict`.
        overwrite: Whether to replace an ``out`` that no earlier call wrote.
        say: Called with a description of each step.

    Raises:
        CheckpointError: As for `xcit_dense.predict.predictor.build_predictor`.
        ConfigError: As for `build_predictor`; or a part of the config cannot be exported.
        ExportError: The file does not compute the same as the checkpoint.
        OutputError: ``out`` exists already, or cannot be written.
        SetupError: A package that export needs is missing.
    """
    start, out = time.perf_counter(), Path(out).expanduser()
    check_packages()
    if out.suffix != '.onnx':
        raise ConfigError(f'the name of the output file must end in .onnx, got {out}')
    settings = Settings(image_size=image_size)
    cfg = load_config(config, cfg_options=cfg_options, settings=settings, tested=True, pretrained=False)
    if task_of(cfg).graph is None:
        raise ConfigError('only detectors and segmentors can be exported, and the config is for neither')
    task = 'backbone' if backbone else task_of(cfg).name
    if scores and task != 'segmentation':
        raise ConfigError('--scores works only with a segmentor; detections always have scores')
    with OwnFiles(out.parent, 'export', overwrite) as own:
        own.claim(out.name)
        path = fetch(str(checkpoint))
        predictor = build_predictor(cfg, path, device='cpu', fuse=False, given=(
            *(cfg_options or ()), *settings.options))
        name = Path(config).stem
        graph = graph_of(predictor.model, task, scores)
        values = metadata_of(predictor, cfg, task, name, path)
        with _written(out) as part:
            say(f'tracing the {task} model of {name}; this takes a minute')
            save(trace(graph), values, part)
            say('comparing the file with the checkpoint')
            share, words = compare_file(part, predictor, task)
            if not share <= MOST[task]:
                raise ExportError(f'the exported file does not compute the same as the checkpoint: {words}. Nothing '
                                  'was written')
            add_checksum(part)
    return Exported(out, out.stat().st_size, time.perf_counter() - start,
                    f'Compared with the checkpoint on generated images: {words}')


@contextmanager
def _written(out):
    """Like `atomic_write`, with `OutputError` instead of `OSError`; fails at once if the folder is not writable."""
    try:
        with atomic_write(out) as part:
            part.touch()
            yield part
    except OSError as error:
        raise OutputError(f'cannot write {error.filename or out}: {error.strerror or error}') from error


def graph_of(model, task: str, scores: bool = False) -> nn.Module:
    """Return a model in evaluation mode as a module to `trace`; `ConfigError` if a part of it cannot be exported.

    It has ``inputs``, for each by name an example and its free dimensions; the names of its ``outputs``; and
    ``translations``, the ONNX function of each of our own operators.

    Args:
        model: The detector or segmentor; for a backbone any object that has it as ``backbone``.
        task, scores: As for `metadata_of` and `export_model`.
    """
    if task != 'backbone':
        return task_named(task).part('graph')(model, *([scores] if scores else ()))
    if not isinstance(model.backbone, XCiT):
        kind = type(model.backbone).__name__
        raise ConfigError(f'--backbone can only export an XCiT, but model.backbone is a {kind}')
    module, free = copy.deepcopy(model.backbone).fuse(), torch.export.Dim.DYNAMIC
    module.inputs = dict(images=(torch.zeros(2, module.in_channels, *TRACED), {0: free, 2: free, 3: free}))
    module.outputs, module.translations = [f'level{i}' for i in range(len(module.out_indices))], {}
    return module


def trace(graph):
    """Return the ONNX model of a module from `graph_of`; raise `ExportError` if torch cannot trace it."""
    examples, dynamic = zip(*graph.inputs.values(), strict=True)
    try:
        # without the log of its own steps and its tables of functions
        logging.disable(logging.WARNING)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return torch.onnx.export(
                graph.eval(), examples, input_names=list(graph.inputs), output_names=graph.outputs, dynamo=True,
                dynamic_shapes=dynamic, external_data=False, custom_translation_table=graph.translations, verbose=False
            ).model_proto
    except Exception as error:  # of many types: torch's own, and whatever the model raises
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(f'torch cannot export this model: {first_line(cause)}. The usual reason is a '
                          'custom layer whose output shape depends on tensor values, or that turns sizes into '
                          'Python numbers. --backbone exports only the backbone') from error
    finally:
        logging.disable(logging.NOTSET)


def check_packages():
    """Raise `SetupError` unless the packages that export needs are installed."""
    if missing := [name for name in ('onnx', 'onnxscript', 'onnxruntime') if find_spec(name) is None]:
        raise SetupError(f'export needs {", ".join(missing)}: pip install {" ".join(missing)}')


def metadata_of(predictor, cfg, task: str, config, checkpoint) -> dict:
    """Return the metadata for an exported file: of a predictor from `build_predictor`, the name of its config, and the
    path of its weight file. The task is ``detection``, ``segmentation`` or ``backbone``.
    """
    model, classes = predictor.model, predictor.classes
    before = Preprocessing(model.data_preprocessor)
    words = dict(names_from=classes.names_from, numbers_from=classes.numbers_from, model=type(model).__name__)
    values = dict(
        classes=list(classes.names), palette=[list(map(int, colour)) for colour in predictor.palette],
        numbers=list(map(int, classes.numbers)), mean=before.mean.flatten().tolist(), std=before.std.flatten().tolist(),
        mask_threshold=model.test_cfg.rcnn.mask_thr_binary if getattr(model, 'with_mask', False) else None,
        resize=resize_rule(cfg), turns=turns_images(test_dataset(cfg)), pad_divisor=before.pad_divisor,
        pad_value=before.pad_value, checkpoint=Path(checkpoint).name, versions=_versions(), words=words)
    return dict({key: json.dumps(value) for key, value in values.items()}, xcit_dense=FORMAT, task=task,
                config=str(config), checkpoint_sha256=hash_of(checkpoint))


def _versions():
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # another distribution, such as a fork
            found[name] = metadata.version(name)
    return found
