"""Paths that tests share."""
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Real samples next to the checkout; tests that use them are skipped where there are none.
SAMPLES = ROOT.parent / 'shared' / 'data'
SMALL_CONFIG = ROOT / 'configs/maskrcnn_xcit_n12_p16_small.py'
SMALL_SEG_CONFIG = ROOT / 'configs/semfpn_xcit_n12_p16_small.py'
MAIN_CONFIG = ROOT / 'configs/maskrcnn_xcit_s12_p8_coco.py'
TINY_CONFIG = ROOT / 'tests/maskrcnn_xcit_tiny.py'
TINY_SEG_CONFIG = ROOT / 'tests/semfpn_xcit_tiny.py'
#: A classifier, which needs mmpretrain.
TINY_CLS_CONFIG = ROOT / 'tests/xcit_classifier_tiny.py'
#: A DINO, which needs mmpretrain.
TINY_DINO_CONFIG = ROOT / 'tests/xcit_dino_tiny.py'
