"""The machine that a number was measured on."""
import platform
from pathlib import Path

import torch


def describe_machine():
    """Return the device and the versions that a measurement depends on."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        names = [line.split(':')[1].strip() for line in Path('/proc/cpuinfo').read_text().splitlines()
                 if line.startswith('model name')] if Path('/proc/cpuinfo').exists() else [platform.processor()]
        device = f'{names[0]}, {torch.get_num_threads()} threads'
    return dict(device=device, torch=torch.__version__, python=platform.python_version())
