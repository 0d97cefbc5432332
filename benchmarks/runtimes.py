"""Our model in other runtimes: an exported file in onnxruntime and OpenVINO, in several types, on a CPU."""
import json
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from xcit_dense.errors import SetupError
from xcit_dense.runtime import openvino_core

_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
#: Calibration images are noise: times are the same as with real images, errors are not.
_CALIBRATION = dict(count=4, size=(256, 320, 3))


class Autocast(nn.Module):
    """A model under autocast to bfloat16."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        """Map images to maps."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.model(x)


class Onnxruntime(nn.Module):
    """An exported file in onnxruntime.

    Its threads do not spin while they wait for the next call, as that would slow down the other models.
    """

    def __init__(self, file):
        super().__init__()
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(file), options, providers=['CPUExecutionProvider'])
        self.file_bytes = file.stat().st_size

    def forward(self, x):
        """Map images to maps."""
        return tuple(map(torch.from_numpy, self.session.run(None, {'images': x.numpy()})))


class OpenVINO(nn.Module):
    """An exported file in OpenVINO.

    Args:
        file: The file.
        precision: Type to compute in; OpenVINO's default is bfloat16 if the processor supports it.
        shape: Compile only for images of this shape; None for any shape.
    """

    def __init__(self, file, precision, shape=None):
        super().__init__()
        core = openvino_core()
        model = core.read_model(file)
        if shape:
            model.reshape(list(shape))
        self.compiled = core.compile_model(model, 'CPU', dict(
            PERFORMANCE_HINT='LATENCY', INFERENCE_PRECISION_HINT=precision,
            INFERENCE_NUM_THREADS=torch.get_num_threads()))
        self.file_bytes = file.stat().st_size

    def forward(self, x):
        """Map images to maps."""
        return tuple(torch.from_numpy(y) for y in self.compiled(x.numpy()).values())


#: Runtimes by name: functions of ``files(int8)``, which returns the exported file, our fused model, and the images'
#: shape.
RUNTIMES = {
    'eager_bf16': lambda files, model, shape: Autocast(model),
    'onnxruntime': lambda files, model, shape: Onnxruntime(files(False)),
    'onnxruntime_int8': lambda files, model, shape: Onnxruntime(files(True)),
    'openvino': lambda files, model, shape: OpenVINO(files(False), 'f32'),
    'openvino_fixed': lambda files, model, shape: OpenVINO(files(False), 'f32', shape),
    'openvino_bf16': lambda files, model, shape: OpenVINO(files(False), 'bf16', shape),
    'openvino_int8': lambda files, model, shape: OpenVINO(files(True), 'f32', shape),
}


def build_runtimes(names, model, shape):
    """Build modules of `RUNTIMES` that run a model.

    Args:
        names: Keys of `RUNTIMES`.
        model: Our fused model.
        shape: Shape of the images.

    Returns:
        Modules by name.

    Raises:
        SetupError: A package is missing.
    """
    with tempfile.TemporaryDirectory() as folder:  # opened files stay in memory

        @cache
        def files(int8):
            file = Path(folder, f'int8_{int8}.onnx')
            return _quantise(files(False), file) if int8 else _export(model, file)

        try:
            return {name: RUNTIMES[name](files, model, shape) for name in names}
        except ImportError as error:
            raise SetupError(f'the runtimes need packages that are not installed ({error}): pip install onnx '
                             'onnxscript onnxruntime openvino') from None


def _quantise(source, file):
    from xcit_dense.export.finishing import quantise
    random = np.random.default_rng(0)
    count, size = _CALIBRATION['count'], _CALIBRATION['size']
    quantise(source, file, (random.integers(0, 256, size, np.uint8) for _ in range(count)))
    return file


def _export(model, file):
    from xcit_dense.export.exporting import check_packages, graph_of, trace
    check_packages()
    import onnx
    exported = trace(graph_of(SimpleNamespace(backbone=model), 'backbone'))
    onnx.helper.set_model_props(exported, dict(mean=json.dumps(_MEAN), std=json.dumps(_STD)))
    onnx.save(exported, file)
    return file
