"""KITTI 2D: the layout of its download, lines with scores, and text that only looks alike."""
import json

import pytest
from annotations import exports
from annotations.exports_files import boxes
from annotations.placing import numbers, placed

from helpers.exports_segmentation import save
from xcit_dense.errors import DataError


def test_kitti(folder, tmp_path, capfd):
    root, wanted = tmp_path / 'data', []
    for number, (picture, objects) in enumerate(exports.scenes(5)):
        save(root / f'training/image_2/{number}.png', picture)
        (root / 'training/label_2').mkdir(exist_ok=True)
        wanted += [box for _, box in boxes(objects)]
        lines = [f'{kind} 0.00 0 -1.57 {" ".join(map(str, box))} 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59' + ' 0.9' * (
            number > 2) for kind, box in [*boxes(objects), ('DontCare', (1, 1, 9, 9))]]
        (root / f'training/label_2/{number}.txt').write_text('\n'.join(lines))
    assert numbers(placed(root, folder))[0] == dict(train=(4, 12), val=(1, 3), test=(1, 3))
    assert 'left out: 5 regions of DontCare' in capfd.readouterr().out
    found = [record['bbox'] for part in ('train', 'val')
             for record in json.loads((folder / f'{part}.json').read_text())['annotations']]
    assert sorted((x, y, x + w, y + h) for x, y, w, h in found) == sorted(wanted)
    (root / 'training/label_2/0.txt').write_text(f'{lines[0]}\nCar 0.00 0')
    with pytest.raises(DataError, match='0.txt: line 2 is no class with 14 numbers'):
        placed(root, folder)
