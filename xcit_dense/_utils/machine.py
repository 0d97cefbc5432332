"""The machine that a number was measured on, and its memory."""
import platform
from contextlib import suppress
from pathlib import Path

import torch
from mmengine.logging import print_log

from .text import counted


def describe_machine():
    """Return the device and the versions that a measurement depends on."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f'{_of_cpu("model name") or platform.processor()}, {counted(torch.get_num_threads(), "threads")}'
    return dict(device=device, torch=torch.__version__, python=platform.python_version())


def has_bfloat16(device) -> bool:
    """Whether a device multiplies in bfloat16: a CPU with AVX512-BF16 or AMX, an Nvidia or AMD GPU that reports it."""
    device = torch.device(device)
    if device.type == 'cpu':
        return bool({'avx512_bf16', 'amx_bf16'} & {*_of_cpu('flags').split()})
    return device.type == 'cuda' and torch.cuda.is_bf16_supported(including_emulation=False)


def can_use_bfloat16(device) -> bool:
    """Return `has_bfloat16`; if it is False, a log line says that float32 is used."""
    device = torch.device(device)
    if has_bfloat16(device):
        return True
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else f'the device {device}'
    print_log(f'{name} does not support bfloat16, and emulation would be slower than float32: the model runs in '
              'float32', logger='current')
    return False


def _of_cpu(name) -> str:
    """Return what Linux knows of the first processor, such as its ``model name``; '' if it does not."""
    file = Path('/proc/cpuinfo')
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(':')[2].strip() for line in lines if line.startswith(name)), '')


def own_peak_memory():
    """Return the most memory that this process has held, in bytes. Linux only."""
    return kib(Path('/proc/self/status'), 'VmHWM')  # not ru_maxrss: a new process inherits the peak of its parent


def forget_peak_memory() -> bool:
    """Let `own_peak_memory` begin anew from what this process holds now; return whether the system can."""
    with suppress(OSError):
        return Path('/proc/self/clear_refs').write_text('5') > 0
    return False


def kib(file, name):
    """Return the bytes of a line such as ``VmRSS:  1728 kB``."""
    line = next(line for line in file.read_text().splitlines() if line.startswith(f'{name}:'))
    return int(line.split()[1]) * 1024
