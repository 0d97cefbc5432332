"""The machine that a number was measured on, and its memory."""
import platform
import resource
from contextlib import contextmanager
from pathlib import Path

import torch
from mmengine.logging import print_log

from .text import counted


def describe_machine():
    """Return the device and the versions that a measurement depends on."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        names = [line.split(':')[1].strip() for line in Path('/proc/cpuinfo').read_text().splitlines()
                 if line.startswith('model name')] if Path('/proc/cpuinfo').exists() else [platform.processor()]
        device = f'{names[0]}, {counted(torch.get_num_threads(), "threads")}'
    return dict(device=device, torch=torch.__version__, python=platform.python_version())


def has_bfloat16(device) -> bool:
    """Whether a device multiplies in bfloat16: a CPU with AVX512-BF16 or AMX, a GPU if torch reports it."""
    device = torch.device(device)
    if device.type == 'cpu':
        return bool({'avx512_bf16', 'amx_bf16'} & _flags_of_cpu())
    if not torch.amp.is_autocast_available(device.type):
        return False
    if device.type == 'cuda':
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(getattr(getattr(torch, device.type, None), 'is_bf16_supported', lambda: False)())


def can_use_bfloat16(device) -> bool:
    """Return `has_bfloat16`; if it is False, a log line says that float32 is used."""
    device = torch.device(device)
    if has_bfloat16(device):
        return True
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else (
        f'this processor ({platform.machine()})' if device.type == 'cpu' else f'the device {device}')
    print_log(f'{name} does not support bfloat16, and emulation would be slower than float32: the model runs in '
              'float32', logger='current')
    return False


def _flags_of_cpu() -> set:
    """Return the flags of the processor, as Linux names them."""
    file = Path('/proc/cpuinfo')
    lines = file.read_text().splitlines() if file.exists() else []
    return set(next((line.partition(':')[2].split() for line in lines if line.startswith('flags')), ()))


def own_memory():
    """Return the memory that this process holds now, in bytes. Linux only."""
    return kib(Path('/proc/self/status'), 'VmRSS')


def own_peak_memory():
    """Return the most memory that this process has held, in bytes."""
    status = Path('/proc/self/status')
    if status.exists():
        return kib(status, 'VmHWM')  # not ru_maxrss: a new process inherits the peak of its parent
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


def available_memory():
    """Return the memory that no process needs, in bytes. Linux only."""
    return kib(Path('/proc/meminfo'), 'MemAvailable')


def kib(file, name):
    """Return the bytes of a line such as ``VmRSS:  1728 kB``."""
    line = next(line for line in file.read_text().splitlines() if line.startswith(f'{name}:'))
    return int(line.split()[1]) * 1024


@contextmanager
def without_tf32():
    """Context, or decorator, in which float32 on a GPU is float32: its products do not use TF32."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
