"""Our model in other runtimes: an exported file in onnxruntime and OpenVINO, on a CPU."""
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from xcit_dense.errors import SetupError
from xcit_dense.runtime import openvino_core


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
        # on a processor without bfloat16, it says nothing and takes float32
        self.used = self.compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()
        self.precision = precision
        self.file_bytes = file.stat().st_size

    def forward(self, x):
        """Map images to maps."""
        if self.used != self.precision:
            raise RuntimeError(f'on this processor OpenVINO computes in {self.used}, not in {self.precision}')
        return tuple(torch.from_numpy(y) for y in self.compiled(x.numpy()).values())


#: Runtimes by name: functions of ``export()``, which returns the exported file, our fused model, and the images' shape.
RUNTIMES = {
    'eager_bf16': lambda export, model, shape: Autocast(model),
    'onnxruntime': lambda export, model, shape: Onnxruntime(export()),
    'openvino': lambda export, model, shape: OpenVINO(export(), 'f32'),
    'openvino_fixed': lambda export, model, shape: OpenVINO(export(), 'f32', shape),
    'openvino_bf16': lambda export, model, shape: OpenVINO(export(), 'bf16', shape),
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
        def export():
            return _export(model, Path(folder, 'model.onnx'))

        try:
            return {name: RUNTIMES[name](export, model, shape) for name in names}
        except ImportError as error:
            raise SetupError(f'the runtimes need packages that are not installed ({error}): pip install onnx '
                             'onnxscript onnxruntime openvino') from None


def _export(model, file):
    from xcit_dense.export.exporting import check_packages, graph_of, trace
    check_packages()
    import onnx
    onnx.save(trace(graph_of(SimpleNamespace(backbone=model), 'backbone')), file)
    return file
