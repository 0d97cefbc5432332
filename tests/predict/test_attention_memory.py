"""Attention maps of large pictures: memory of the whole tool, reading and drawing included."""
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from helpers.tools import peak_of_tool
from xcit_dense import XCiTClassifier


def available():
    """GiB of memory that nothing holds."""
    return int(re.search(r'MemAvailable: *(\d+) kB', Path('/proc/meminfo').read_text())[1]) / 2**20


@pytest.mark.slow
def test_a_large_picture_takes_so_much_memory(tmp_path):
    height, width, limit = 2000, 3000, 3  # GiB
    if available() < limit:
        pytest.skip(f'needs {limit} GiB')
    model = XCiTClassifier('small_12_p8', norm_cfg=dict(type='BN'))
    torch.save(dict(model=model.state_dict()), tmp_path / 'w.pth')
    coarse = np.random.default_rng(0).integers(0, 255, (height // 50, width // 50, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.jpg'), cv2.resize(coarse, (width, height)))
    peak = peak_of_tool('attention', 'w.pth', 'a.jpg', '--out', 'out', cwd=tmp_path)
    print(f'{height} x {width}: {peak:.1f} GiB')
    assert peak < limit
    assert np.load(tmp_path / 'out/a.npz')['attention'].shape == (2, 8, height // 8, width // 8)
    assert cv2.imread(str(tmp_path / 'out/a.png')).shape[1] <= 1600
