"""The measure tool."""
import json

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool


def test_measuring_prints_what_it_saw(demo_data, tmp_path):
    out = tmp_path / 'measured.json'
    done = run_tool('measure.py', TINY_CONFIG, '--data-root', demo_data, '--iterations', 4, '--images', 2, '--out', out)
    result = json.loads(out.read_text())
    assert result['backbone_errors']['float32'] < 5e-6 and result['backbone_errors']['float32 gradient'] < 5e-5
    assert result['backbone_errors']['autocast bfloat16'] < 0.1
    assert len(result['training']['losses']) == 4 and result['training']['seconds_per_iteration'] > 0
    assert 0.1 < result['training']['peak_memory_gib'] < 8
    assert f'loss {result["training"]["losses"][0]:.3f} to' in done.stdout
