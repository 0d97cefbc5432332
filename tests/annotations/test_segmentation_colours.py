"""Label maps in colour, and the files that define the colours."""
import json
from pathlib import Path

import numpy as np
import pytest
from annotations.placing import segmentor
from PIL import Image

from helpers import exports_segmentation as exports
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import files_in
from xcit_dense._utils.files import RECORD
from xcit_dense.annotations import DataOptions
from xcit_dense.annotations.conversion import are_colours, names_beside, read_palette
from xcit_dense.annotations.derived import Made
from xcit_dense.config.loading import load_config
from xcit_dense.errors import DataError

TWO = dict(road=(128, 64, 128), sky=(0, 0, 255))


def maps_of(work_dir):
    return {path.name: np.asarray(Image.open(path)) for path in sorted((work_dir / 'data/maps').rglob('*.png'))}


def test_a_palette_in_any_of_its_forms(tmp_path):
    path = tmp_path / 'a.txt'
    for name, text in (
            ('a.txt', 'road 128 64 128\nsky 0 0 255\n'), ('a.txt', '128 64 128\troad\n0 0 255\t\tsky\n'),
            ('labelmap.txt', '# label:color_rgb:parts:actions\nroad:128,64,128::\nsky:0,0,255:a,b:walk\n'),
            ('class_dict.csv', 'name,r,g,b\nroad,128,64,128\nsky,0,0,255\n'),
            ('class_dict.csv', '\ufeffname, r, g, b, class_11\nroad, 128, 64, 128, 1\nsky, 0, 0, 255, 0\n'),
            ('a.json', json.dumps(TWO))):
        (tmp_path / name).write_text(text)
        assert list(read_palette(tmp_path / name).items()) == list(TWO.items()), text
    for text, words in (
            ('road\nsky', 'is not a palette'), ('road 1 2 256', 'is not a palette'), ('', 'is not a palette'),
            ('a 1 2 3\na 4 5 6', 'the name a twice'), ('a 1 2 3\nb 1 2 3', r'the colour \(1, 2, 3\) twice'),
            ('\n'.join(f'c{i} {i % 256} {i // 256} 0' for i in range(256)), '256 classes')):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_palette(path)
    path.write_text('\n'.join(f'c{i} {i} 0 0' for i in range(255)))
    assert len(read_palette(path)) == 255
    with pytest.raises(DataError, match='b.txt cannot be read'):
        read_palette(tmp_path / 'b.txt')


def test_names_beside_the_data(tmp_path):
    for number, (name, text) in enumerate((
            ('codes.txt', 'road\nsky'), ('data.yaml', 'names: [road, sky]'), ('data.yaml', 'names: {1: sky, 0: road}'),
            ('_classes.csv', 'Pixel Value, Class\n1, sky\n0, road'),
            ('class_dict.csv', 'name,r,g,b\nroad,1,2,3\nsky,4,5,6'))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        assert names_beside([tmp_path / 'none', folder]) == (('road', 'sky'), folder / name)
    assert names_beside([tmp_path / 'none']) == ((), None)
    assert names_beside([tmp_path / '4', tmp_path / '0'])[1] == tmp_path / '0/codes.txt'  # by their kinds, then folders
    rows = tmp_path / '_classes.csv'
    rows.write_text('Pixel Value, Class\n0, road\n2, sky')
    assert names_beside([tmp_path]) == (('road', '1', 'sky'), rows)
    for row, words in (('1 sky', 'a comma'), ('1', 'a comma'), ('999999999, sky', 'the label 999999999')):
        rows.write_text(f'Pixel Value, Class\n0, road\n{row}')
        with pytest.raises(DataError, match=f'_classes.csv .*{words}'):
            names_beside([tmp_path])
    rows.unlink()
    (tmp_path / 'data.yaml').write_text('names: [a')
    with pytest.raises(DataError, match='data.yaml cannot be read'):
        names_beside([tmp_path])


def test_colours_are_converted_once_and_again_where_they_change(tmp_path):
    root = exports.camvid_colours(tmp_path / 'data')
    (root / 'classes.txt').write_text('\n'.join(exports.CAMVID[::-1]))  # labels are places in the palette
    assert segmentor(root, tmp_path / 'run').train_dataloader.dataset.metainfo.classes == exports.CAMVID
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / 'run/data').rglob('*.png')}
    assert len(before) == 6
    segmentor(root, tmp_path / 'run')
    assert {path: path.stat().st_mtime_ns for path in before} == before
    exports.save(root / 'train_labels/train000_L.png', exports.coloured(np.zeros((40, 48), int)))
    lost = tmp_path / 'run/data/maps/val/val000.png'
    lost.unlink()
    segmentor(root, tmp_path / 'run')
    maps = maps_of(tmp_path / 'run')
    assert (maps['train000.png'] == 0).all() and (maps['val000.png'] == exports.scene(100)[1]).all()
    changed = {path for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {lost, tmp_path / 'run/data/maps/train/train000.png'}


def test_a_stopped_conversion_is_gone_on_with(tmp_path, monkeypatch):
    """By the run after it, also with another palette."""
    root, write, count = exports.camvid_colours(tmp_path / 'data'), Made.write, []

    def stop(*args):
        count.append(args)
        if len(count) > 4:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(Made, 'write', stop)
    with pytest.raises(KeyboardInterrupt):
        segmentor(root, tmp_path / 'run')
    monkeypatch.undo()
    head, *lines = (root / 'class_dict.csv').read_text().splitlines()
    (root / 'class_dict.csv').write_text('\n'.join([head, *reversed(lines)]))
    segmentor(root, tmp_path / 'run')
    assert len(maps_of(tmp_path / 'run')) == 6


def test_another_palette_leaves_the_maps_of_a_training_unless_it_trains(tmp_path):
    """Neither a test nor a run that continues in another work dir changes them."""
    root, run = exports.camvid_colours(tmp_path / 'data'), tmp_path / 'run'
    segmentor(root, run)
    (run / 'iter_1.pth').touch()
    files = files_in(run)
    first, *lines = (root / 'class_dict.csv').read_text().splitlines()
    (root / 'other.csv').write_text('\n'.join([first, *reversed(lines)]))

    def load(work_dir, palette='other.csv', **options):
        cfg = load_config(TINY_SEG_CONFIG, data_root=str(root), data=DataOptions(palette=palette),
                          work_dir=work_dir, data_dir=run / 'data', pretrained=False, **options)
        return Path(cfg.val_dataloader.dataset.data_root, cfg.val_dataloader.dataset.data_prefix.seg_map_path)

    for work_dir, options in ((tmp_path / 'test', dict(tested=True)), (run, dict(tested=True)),
                              (tmp_path / 'more', dict(replaces=True))):
        maps = load(work_dir, **options)
        assert files.items() <= files_in(run).items() and maps.parents[1].parent == run / 'data'
    assert load(run, replaces=True) == run / 'data/maps/val'
    assert all((run / f'data/maps/val/{path.name}').read_bytes() == path.read_bytes() for path in maps.iterdir())
    load(run, 'class_dict.csv', replaces=True)  # as at first, and so are the maps
    files.pop(f'data/{RECORD}')
    assert files.items() <= files_in(run).items()


def test_colours_without_a_class_without_a_palette_or_ignored(tmp_path):
    root = exports.camvid_colours(tmp_path / 'data')
    cfg = segmentor(root, tmp_path / 'ignored', ignore_label=(4, ))  # by its place in the palette
    assert cfg.train_dataloader.dataset.metainfo.classes == exports.CAMVID[:4]
    for name in ('train000', 'train001'):
        path = root / f'train_labels/{name}_L.png'
        pixels = np.asarray(Image.open(path)).copy()
        pixels[:2, :5], pixels[3, :4] = (1, 2, 3), (9, 8, 7)
        Image.fromarray(pixels).save(path)
    with pytest.raises(DataError, match=r'2 label maps cannot be converted: .*train000_L.png \(2 colours missing in '
                       r'.*class_dict.csv: \(1, 2, 3\) \(10 pixels\), \(9, 8, 7\) \(4 pixels\)\), .*--palette FILE'):
        segmentor(root, tmp_path / 'run')
    (root / 'mine.csv').write_text((root / 'class_dict.csv').read_text() + 'odd,1,2,3\nother,9,8,7\n')
    cfg = segmentor(root, tmp_path / 'run', palette='mine.csv')
    assert cfg.model.decode_head.num_classes == 7
    for name in ('class_dict', 'mine'):
        (root / f'{name}.csv').unlink()
    with pytest.raises(DataError, match='in colour, such as .*_L.png.*--palette FILE'):
        segmentor(root, tmp_path / 'run')


def test_colours_where_the_config_looks_are_read_with_a_palette(tmp_path, monkeypatch):
    root = tmp_path / 'data'
    for part in ('training', 'validation'):
        exports.pairs(root, f'images/{part}', f'annotations/{part}', exports.names(2), change=exports.coloured)
    exports.pairs(root, 'train/images', 'train/masks', exports.names(3))  # other data in the same folder
    (root / 'colours.json').write_text(json.dumps(exports.COLOURS))
    with pytest.raises(DataError, match=r'mode RGB\. To convert colours: --palette FILE'):
        segmentor(root, tmp_path / 'run')
    cfg = segmentor(root, tmp_path / 'run', palette='colours.json')
    assert cfg.train_dataloader.dataset.metainfo.classes == exports.CAMVID
    (root / 'colours.json').rename(tmp_path / 'here.json')
    monkeypatch.chdir(tmp_path)
    cfg = segmentor(root, tmp_path / 'run', palette='here.json')
    assert cfg.train_dataloader.dataset.metainfo.classes == exports.CAMVID
    assert cfg.train_dataloader.dataset.data_prefix.img_path == 'images/training'


def test_black_and_white_masks(tmp_path):
    root = exports.pairs(tmp_path / 'data', 'images', 'masks', exports.names(4),
                         change=lambda labels: np.where(labels == 1, 255, 0).astype(np.uint8))
    for options, name in (({}, 'data'), (dict(class_name='road'), 'road')):
        assert segmentor(root, tmp_path / 'run', **options).train_dataloader.dataset.metainfo.classes == (
            'background', name)
    assert (maps_of(tmp_path / 'run')['s000.png'] == (exports.scene(0)[1] == 1)).all()
    (root / 'mine.txt').write_text('road 255 255 255\nbackground 0 0 0\n')
    cfg = segmentor(root, tmp_path / 'run', palette='mine.txt')
    assert cfg.train_dataloader.dataset.metainfo.classes == ('road', 'background')
    assert (maps_of(tmp_path / 'run')['s000.png'] == (exports.scene(0)[1] != 1)).all()
    two = dict(a=(1, 1, 1), b=(0, 0, 0), c=(255, 255, 255))
    for labels, mode, wanted in (
            ([0, 255], 'L', True), ([0, 1], 'L', False), ([0, 255], 'P', False), ([0, 9], 'L', False),
            (None, 'RGBA', True), (None, 'I;16', False)):
        content = dict(mode=mode, **(dict(labels=[[label, 5] for label in labels]) if labels else {}))
        assert are_colours(content, two) == wanted, (labels, mode)


@pytest.mark.parametrize('label, mode', (
    ('.png', 'RGB'), ('.png', '1'), ('.gif', 'L'), ('.bmp', 'L'), ('.tif', 'RGBA'), ('.jpg', 'L'),
    ('_mask.jpeg', 'RGB'), ('.png', '0 and 1')))
def test_masks_in_black_and_white_of_every_kind(label, mode, tmp_path, capfd):
    root = exports.pairs(tmp_path / 'data', 'images', 'road', exports.names(4), label=label, change=lambda labels: (
        labels == 1).astype(np.uint8) if mode == '0 and 1' else np.asarray(Image.fromarray(
            (labels == 1).astype(np.uint8) * 255).convert(mode)))
    cfg = segmentor(root, tmp_path / 'run', train_images='images', train_annotations='road', val_share=0.25)
    dataset = cfg.train_dataloader.dataset
    assert dataset.metainfo.classes == ('background', 'road')
    is_done = dataset.data_prefix.seg_map_path == 'road'  # the numbers in the files are right as they are
    assert is_done == (label == '.gif' or mode in ('1', '0 and 1'))
    for number, name in enumerate(exports.names(4)):
        labels = (np.asarray(Image.open(root / f'road/{name}{label}')) if is_done else
                  maps_of(tmp_path / 'run')[f'{name}.png'])
        assert (labels == (exports.scene(number)[1] == 1)).all()
    assert ('masks are cut at half of white' in capfd.readouterr().out) == ('jp' in label)


def test_what_only_looks_black_and_white(tmp_path):
    """Label maps with three classes and ignored pixels keep their numbers; a list of names too."""
    root = exports.pairs(tmp_path / 'data', 'images', 'masks', exports.names(30), change=lambda labels: np.where(
        labels == 1, 255, 0).astype(np.uint8))
    third = np.zeros((40, 48), np.uint8)
    third[:9] = 2
    exports.save(root / 'masks/s007.png', third)  # not one of those that are looked at first
    for names in (('0', '1', '2'), ('a', 'b', 'c')):
        dataset = segmentor(root, tmp_path / 'run').train_dataloader.dataset
        assert dataset.metainfo.classes == names and dataset.data_prefix.seg_map_path == 'masks'
        (root / 'classes.txt').write_text('a\nb\nc\n')
    photos = exports.pairs(tmp_path / 'photos', 'images', 'masks', exports.names(3), label='.jpg',
                           change=lambda labels: labels * 60)
    with pytest.raises(DataError, match='are JPEG, which changes labels'):
        segmentor(photos, tmp_path / 'b')
