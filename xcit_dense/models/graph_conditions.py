"""What a CUDA graph of a backbone holds fixed: what can have none, and what is compared before each replay."""
from itertools import chain
from operator import is_

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext  # of torch.set_default_device

from . import fast

_REPLAYED_ON = ['cuda']
_KNOWN = 'torch.nn.', 'xcit_dense.', 'mmengine.', 'mmcv.'  # whose layers compute the same at each call
_hooks_of_saved = getattr(torch._C._autograd, '_top_saved_tensors_default_hooks', bool)  # of torch 2.8
_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
# torch 2.9 and later refuse to read allow_tf32 where somebody has set fp32_precision
_TF32 = 'fp32_precision' if hasattr(_MATMUL, 'fp32_precision') else 'allow_tf32'
_SWITCHES = (  # that change values or their order
    (_MATMUL, _TF32), (getattr(_CUDNN, 'conv', _CUDNN), _TF32), (_MATMUL, 'allow_bf16_reduced_precision_reduction'),
    (_MATMUL, 'allow_fp16_reduced_precision_reduction'), (_CUDNN, 'enabled'), (_CUDNN, 'benchmark'),
    (_CUDNN, 'deterministic'))
_HOOKS = '_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks'
_PARTS = *_HOOKS, '_modules', '_parameters', '_buffers'


def can_be_replayed(x) -> bool:
    """Whether a CUDA graph may take the place of a pass on ``x``: nothing looks at its operations one by one."""
    return (type(x) is Tensor and x.device.type in _REPLAYED_ON and not x.requires_grad and fast.can_run(x)
            and not (x.is_cuda and x.device.index != torch.cuda.current_device())
            and all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())
            and torch._C._len_torch_dispatch_stack() == 0 and not torch.is_anomaly_enabled()
            and _hooks_of_saved(True) is None and not (x.is_cuda and torch.cuda.is_current_stream_capturing()))


def kind_of(model, x) -> tuple:
    """Return what must be equal for batches to share a graph; the first is the model's mode."""
    on = torch.is_autocast_enabled(x.device.type)
    return (model.training, x.shape, x.dtype, x.stride(), x.device, on and torch.get_autocast_dtype(x.device.type),
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(),
            *(getattr(part, name, None) for part, name in _SWITCHES))


class State:
    """All that a graph of a model holds fixed and Python may change: layers, hooks, modes, options, tensors.

    It holds these objects, so that none of them is taken for a later one in the same place.
    """

    def __init__(self, model):
        self._modules = [*model.modules()]
        self._dicts = [each for module in self._modules for each in (
            module.__dict__, *(module.__dict__[name] for name in _PARTS))]
        self._tensors = [*model.parameters(), *model.buffers()]
        self._objects, self._numbers = self._read()

    def _read(self):
        kinds = [module.__class__ for module in self._modules]
        objects = [*chain.from_iterable(map(dict.values, self._dicts)), *kinds, *(kind.forward for kind in kinds)]
        return objects, [(t.data_ptr(), t.requires_grad, t.shape, t.stride(), t.dtype) for t in self._tensors]

    def is_current(self) -> bool:
        """Whether nothing changed."""
        objects, numbers = self._read()
        return (len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
                and numbers == self._numbers)


def obstacle_of(model) -> str:
    """Return why a CUDA graph cannot hold a model, or ''."""
    for name, module in model.named_modules():
        own, norm = module.__dict__, module if isinstance(module, _BatchNorm) and module.training else None
        for is_so, why in (
                (not type(module).__module__.startswith(_KNOWN), f'is of the class {type(module).__name__}, which may '
                 'compute something else at each call'),
                (module is not model and any(own[hooks] for hooks in _HOOKS), 'has a hook'),
                (any(callable(value) and not isinstance(value, type) for key, value in own.items() if key != 'graphs'),
                 'has a function in the place of a method, or is compiled'),
                (norm and norm.momentum is None, 'has momentum=None, so it reads a number from the GPU'),
                (norm and fast.sync_group(norm), 'shares statistics with other processes, which may not capture now')):
            if is_so:
                return f'{name or "it"} {why}'
    parameters = [*model.parameters()]
    if not fast.are_plain(parameters, next((p.dtype for p in parameters), None)):
        return 'its parameters are of several types, or of a subclass of Tensor'
    return 'with_cp computes the blocks again' if model.with_cp and torch.is_grad_enabled() else ''
