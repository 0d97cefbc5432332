"""docs/own_data.md: each layout passes the check of the data as its tool exports it."""
import pytest

from helpers import exports, exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

DETECTION = (exports.roboflow, exports.cvat, exports.label_studio, exports.fiftyone, exports.one_file)
POLYGONS = dict(ultralytics={}, roboflow=dict(form='roboflow'), bare=dict(form='bare'))
SEGMENTATION = (exports_segmentation.camvid, exports_segmentation.camvid_colours, exports_segmentation.voc,
                exports_segmentation.cvat, exports_segmentation.label_studio, exports_segmentation.roboflow)
TABLE = [*((TINY_CONFIG, make, {}) for make in DETECTION),
         *((TINY_CONFIG, exports.yolo, dict(options, polygons=True)) for options in POLYGONS.values()),
         *((TINY_SEG_CONFIG, make, {}) for make in SEGMENTATION)]


@pytest.mark.parametrize('config, make, options', TABLE)
def test_each_layout(config, make, options, tmp_path):
    root = make(tmp_path / 'data', **options)
    done = run_tool('check_data.py', config, '--data-root', root, '--out', tmp_path / 'out')
    assert f'in {root}' in done.stdout and '0 errors' in done.stdout
