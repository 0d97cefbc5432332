"""Memory of the whole tool for a picture in tiles, reading and drawing included."""
import json

import cv2
import numpy as np
import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import peak_of_tool


@pytest.mark.slow
@pytest.mark.parametrize('kind, limit', (('detector', 1.6), ('segmentor', 2.6)))  # in GiB
def test_a_large_picture_in_tiles_takes_so_much_memory(kind, limit, trained, trained_segmentor, tmp_path):
    """6000 x 6000 pixels with 50 objects a tile: as many masks of the whole picture would be 100 GB."""
    coarse = np.random.default_rng(0).integers(0, 255, (120, 120, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.jpg'), cv2.resize(coarse, (6000, 6000)))
    config, work_dir = (TINY_CONFIG, trained[0]) if kind == 'detector' else (TINY_SEG_CONFIG, trained_segmentor[0])
    options = ['--cfg-options', 'model.test_cfg.rcnn.score_thr=0'] if kind == 'detector' else []
    peak = peak_of_tool('predict', config, work_dir, 'a.jpg', '--out', 'out', '--tile', '1024', *options, cwd=tmp_path)
    print(f'{kind}: {peak:.2f} GiB')
    assert peak < limit
    assert cv2.imread(str(tmp_path / 'out/a.jpg')).shape == (2048, 2048, 3)
    if kind == 'detector':
        records = json.loads((tmp_path / 'out/results.json').read_text())
        assert len(records) > 500 and {tuple(one['segmentation']['size']) for one in records} == {(6000, 6000)}
    else:
        assert cv2.imread(str(tmp_path / 'out/labels/a.png'), cv2.IMREAD_UNCHANGED).shape == (6000, 6000)
