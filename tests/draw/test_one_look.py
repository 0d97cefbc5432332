"""Sheets of check_data have the colours of the config; those of other tools: test_drawing.py, test_contents.py."""
import json

import pytest

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.check import outputs

PALETTE = [(10, 20, 30), (200, 0, 90), (0, 90, 200), (90, 200, 0), (250, 250, 250)]


@pytest.mark.slow
def test_sheets_of_check_data_have_the_palette_of_the_config(root, tmp_path, monkeypatch):
    """The ids of the classes are in another order."""
    drawn, plain, config = set(), outputs.draw_objects, tmp_path / 'config.py'

    def spy(picture, boxes, labels, names, colours, *args, **options):
        drawn.update(zip((name.removesuffix(' (crowd)') for name in names), map(tuple, colours), strict=True))
        return plain(picture, boxes, labels, names, colours, *args, **options)

    monkeypatch.setattr(outputs, 'draw_objects', spy)
    for split in ('train', 'val'):
        file = root / f'annotations/instances_{split}2017.json'
        content = json.loads(file.read_text())
        content['categories'].reverse()
        file.write_text(json.dumps(content))
    names = tuple(category['name'] for category in content['categories'])
    config.write_text('\n'.join([f'_base_ = {str(TINY_CONFIG)!r}', 'classes_from_data = False', *(
        f'{part}_dataloader = dict(dataset=dict(metainfo={dict(classes=names, palette=PALETTE)}))'
        for part in ('train', 'val', 'test'))]))
    run_tool('check_data.py', config, '--data-root', root, '--out', tmp_path / 'checked')
    assert drawn == set(zip(names, PALETTE, strict=True))
