"""The machine that a number was measured on, and its memory."""
import platform
import resource
from pathlib import Path

import torch

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
