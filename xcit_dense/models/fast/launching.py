"""Triton kernels as operators, and how the host launches them."""
from types import SimpleNamespace

import torch
import triton
from torch import Tensor

#: The kernels by name, once `xcit_dense.models.fast.kernels` is imported.
KERNELS = SimpleNamespace()
_library = torch.library.Library('xcit_dense', 'DEF')


def operator(function):
    """Add a function to `KERNELS` and to ``torch.ops.xcit_dense``; it may write to its argument ``out``.

    The dispatcher takes as long as a launch, so it is asked only where a mode looks at every operation.
    """
    name, changed = function.__name__, {'out'} & function.__annotations__.keys()
    _library.define(name + torch.library.infer_schema(function, mutates_args=changed))
    _library.impl(name, function, 'CompositeExplicitAutograd')
    dispatched = getattr(torch.ops.xcit_dense, name).default
    is_included, python = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.Python
    setattr(KERNELS, name, lambda *args: (dispatched if is_included(python) else function)(*args))
    return function


_compiled = {}


def launch(kernel, grid, *args, **constants):
    """Run a kernel with a grid of two numbers on the device of its first tensor; constants follow the arguments."""
    device = args[0].get_device()
    if device == -1:  # in the interpreter
        return kernel[grid](*args, **constants)
    if device != torch.cuda.current_device():
        with torch.cuda.device_of(args[0]):
            return launch(kernel, grid, *args, **constants)
    # Triton takes 10 us to find what it compiled, longer than many kernels run
    key = id(kernel), device, *constants.values(), *[
        (a.dtype, a.data_ptr() & 15 == 0) if isinstance(a, Tensor) else
        (a == 1, a & 15 == 0, a >> 31) if type(a) is int else type(a) for a in args]
    found = _compiled.get(key)
    hooks = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    if found is None or kernel.pre_run_hooks or any(getattr(hook, 'calls', hook) for hook in hooks):  # lists, or one
        compiled = kernel[grid](*args, **constants)
        rest = [constants[name] for name in kernel.arg_names[len(args):]]
        _compiled[key] = compiled.run, compiled.function, compiled.packed_metadata, rest, compiled
        return
    run, function, metadata, rest, _ = found
    stream = triton.runtime.driver.active.get_current_stream(device)
    run(*grid, 1, stream, function, metadata, None, None, None, *args, *rest)
