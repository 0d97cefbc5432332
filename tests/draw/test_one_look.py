"""One data set through all tools that draw objects: a class has the same colour in each."""
import json

import pytest

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.check import outputs
from xcit_dense.predict import drawing
from xcit_dense.report import matching

PALETTE = [(10, 20, 30), (200, 0, 90), (0, 90, 200), (90, 200, 0), (250, 250, 250)]


@pytest.fixture
def drawn(monkeypatch):
    """By module, the names of classes and their colours with which something was drawn."""
    found = {}
    for module in (outputs, drawing, matching):
        def spy(picture, boxes, labels, names, colours, *args, plain=module.draw_objects, name=module.__name__,
                **options):
            pairs = zip((name.removesuffix(' (crowd)') for name in names), map(tuple, colours), strict=True)
            found.setdefault(name.removeprefix('xcit_dense.'), set()).update(pairs)
            return plain(picture, boxes, labels, names, colours, *args, **options)
        monkeypatch.setattr(module, 'draw_objects', spy)
    return found


@pytest.mark.slow
def test_a_class_has_one_colour_in_every_tool(root, drawn, tmp_path):
    """The ids of the classes are in another order, and one has no object in the validation."""
    pytest.importorskip('tensorboard')
    for split in ('train', 'val'):
        file = root / f'annotations/instances_{split}2017.json'
        content = json.loads(file.read_text())
        content['categories'].reverse()
        last = content['categories'][-1]['id'] if split == 'val' else None
        content['annotations'] = [found for found in content['annotations'] if found['category_id'] != last]
        file.write_text(json.dumps(content))
    names = tuple(category['name'] for category in content['categories'])
    config, work_dir = tmp_path / 'config.py', tmp_path / 'run'
    heads = ', '.join(f'{head}=dict(num_classes={len(names)})' for head in ('bbox_head', 'mask_head'))
    config.write_text('\n'.join([
        f'_base_ = {str(TINY_CONFIG)!r}', 'train_cfg = dict(max_epochs=1)', 'classes_from_data = False',
        f'model = dict(roi_head=dict({heads}))',
        *(f'{part}_dataloader = dict(dataset=dict(metainfo={dict(classes=names, palette=PALETTE)}))'
          for part in ('train', 'val', 'test'))]))
    wanted = set(zip(names, PALETTE, strict=True))
    for modules, tool, *args in (
            (['data.check.outputs'], 'check_data', config, '--data-root', root, '--out', tmp_path / 'checked'),
            (['predict.drawing'], 'train', config, '--data-root', root, '--work-dir', work_dir, '--log', 'tensorboard'),
            (['predict.drawing', 'report.matching'], 'test', config, work_dir, '--data-root', root, '--work-dir',
             tmp_path / 'tested', '--report', '--show-dir', tmp_path / 'shown'),
            (['predict.drawing'], 'predict', config, work_dir, root / 'val2017', '--out', tmp_path / 'predicted',
             '--score-thr', '0')):
        drawn.clear()
        run_tool(f'{tool}.py', *args)
        assert drawn == dict.fromkeys(modules, wanted), tool
