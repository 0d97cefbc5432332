"""The results of findings: how bad each kind is, an error, and which images are drawn."""
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import ANNOTATIONS, INFINITE, coco, fields, folders, image_and_map, rewrite, save_map
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check
from xcit_dense.data.check.check import check_before_training, check_data_set
from xcit_dense.data.check.findings import KINDS, Finding, Report, each_kind_first
from xcit_dense.data.check.images import choose_samples
from xcit_dense.data.check.outputs import draw_contact_sheet
from xcit_dense.data.demo import CLASSES
from xcit_dense.draw import class_colours, draw_objects
from xcit_dense.errors import ConfigError, DataError

#: Training ignores it by itself or repeats it, or can use it as it is.
WARNINGS = {
    'file-name-twice', 'unknown-category', 'orphan', 'box-ignored', 'area-empty', 'map-ignored', 'image-two-classes',
    'image-in-training', 'not-checked', 'box-sticks-out', 'polygon-points', 'image-left-out', 'map-ratio',
    'class-unused', 'class-spare', 'class-test', 'data-set-twice', 'files-left-out', 'image-depth', 'class-empty',
    'class-ids', 'class-void', 'objects-lost', 'images-unused', 'label-file'}
#: All others stop or spoil the training.
ERRORS = {*KINDS} - WARNINGS


def of_kinds(kinds, source='x', **place):
    return Report(source, [Finding(kind, 'x', value='some', **place) for kind in sorted(kinds)])


def test_every_kind_is_in_the_table_and_planted_in_a_test():
    report = of_kinds(KINDS)
    assert {f.kind for f in report.errors} == ERRORS and {f.kind for f in report.warnings} == WARNINGS
    severities = [line.split(':')[0].strip() for line in report.summary().splitlines() if re.match('  [^ ]', line)]
    assert severities == ['error'] * len(ERRORS) + ['warning'] * len(WARNINGS)
    files = [path for path in Path(__file__).parents[1].rglob('test_*.py') if path != Path(__file__)]  # it lists them
    text = ''.join(path.read_text() for path in files)
    assert [kind for kind in KINDS if f"'{kind}'" not in text] == []


def test_a_training_stops_at_every_error_and_at_no_warning(demo_data, monkeypatch, said):
    cfg = load_config(TINY_CONFIG, data_root=demo_data, pretrained=False)
    monkeypatch.setattr(check, 'check_classes', lambda cfg: [])
    for kind in KINDS:
        monkeypatch.setattr(check, 'check_data_sets', lambda cfg, loaders, kind=kind: dict(a=of_kinds({kind})))
        said.clear()
        with pytest.raises(DataError) if kind in ERRORS else nullcontext():
            check_before_training(cfg)
        assert len(said) == (kind in WARNINGS) and kind in (said or [kind])[0]
        said.clear()
        check_before_training(cfg, on_findings='warn')
        assert said and kind in said[0], kind


def stopped(root, config=TINY_CONFIG):
    with pytest.raises(DataError) as caught:
        check_before_training(load_config(config, data_root=root, pretrained=False))
    return str(caught.value)


def endless(root, *heights):
    """Leave only boxes of infinite width, with these heights."""
    rewrite(root, lambda content: content.update(annotations=[
        dict(content['annotations'][0], id=i, bbox=[0, 0, INFINITE, height]) for i, height in enumerate(heights, 1)]))


def test_equal_faults_are_one_line(root, monkeypatch, said):
    """In the report, which shows three of a kind, and in the error of a training, which shows ten and each kind."""
    for count, more in ((3, 0), (4, 1), (11, 8)):
        endless(root, *range(1, count + 1))
        message, summary = stopped(root), check_data_set(coco(root)).summary()
        assert message.count('[0, 0, inf') == min(count, 10) and ('and 1 more' in message) == (count == 11)
        assert summary.count('[0, 0, inf') == 3 and (f'and {more} more' in summary) == (more > 0)
    endless(root, *[5] * 2468, 6)
    for text in (check_data_set(coco(root)).summary(), stopped(root)):
        assert text.count('[0, 0, inf, 5]') == 1 and '2,468 times, for example: ' in text
        assert text.count('[0, 0, inf, 6]') == 1 and ' more' not in text
    assert f': python -m xcit_dense check_data {TINY_CONFIG} --data-root {root}\n' in text  # to be copied
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    check_before_training(cfg, on_findings='warn')
    assert '2,469 errors' in said[-1] and 'box [' not in said[-1] and '2,468 times' in said[-2]  # each once
    with pytest.raises(ConfigError, match='on_findings'):
        check_before_training(cfg, on_findings='no')
    endless(root, *[5] * 12)
    rewrite(root, fields('annotations', 0, segmentation='x', bbox=[0, 0, 5, 5]))
    text = stopped(root)
    assert '12 errors' in text and "RLE: 'x'" in text and '[0, 0, inf, 5]' in text and 'Mend or delete' in text
    image_and_map(root)[1].unlink()
    assert '1 error ' in (text := stopped(root, TINY_SEG_CONFIG)) and 'findings.json' in text
    (root / ANNOTATIONS).write_text('no json')
    assert '1 error ' in (text := stopped(root)) and 'findings.json' not in text
    monkeypatch.setenv('RANK', '1')
    check_before_training(Config(dict(cfg, launcher='pytorch')))  # one process looks, and ends the others with itself


def colours_of(path):
    return {colour for _, colour in Image.open(path).convert('RGB').getcolors(1 << 24)}


def test_sheets_show_what_was_found_first(root, tmp_path):
    def change(content):
        content['annotations'][-1].update(bbox=[70, 5, 4, 4])
        content['images'][4].update(width=640)
    owner = rewrite(root, change)['annotations'][-1]['image_id']
    report = check_data_set(coco(root))
    assert [Path(sample['file']).name for sample in report.samples] == [
        f'00000000000{number}.jpg' for number in dict.fromkeys((5, owner, 1, 2, 3, 4, 6))]
    captions = {Path(sample['file']).stem[-1]: sample['captions'] for sample in report.samples}
    assert 'not 640 x' in captions['5'][0] and 'outside its image' in captions[str(owner)][-1]
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6 and (176, 0, 32) in colours_of(tmp_path / 'a.png')


def test_label_maps_with_faults_are_drawn(root, tmp_path):
    image, path = image_and_map(root)
    save_map(lambda m: np.where(m == 0, 77, m).astype(np.uint8))(image, path)
    save_map(lambda m: np.stack([m] * 3, 2))(image, path.with_name('000000000002.png'))
    path.with_name('000000000003.png').write_bytes(b'no map')
    report = check_data_set(folders(root))
    assert [bool(sample['captions']) for sample in report.samples] == [True] * 3 + [False] * 3
    maps = {Path(sample['file']).stem[-1]: sample['map'] for sample in report.samples}
    assert maps['2'] is maps['3'] is None and maps['1'] == str(path)
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6


def test_classes_have_one_colour_in_all_sheets(root, tmp_path):
    names = ('background', *CLASSES)
    wanted, others = set(class_colours(names)), set(class_colours(names[::-1]))
    for order in (names, names[::-1]):
        report = check_data_set(folders(root, metainfo=dict(classes=order)))
        report.samples = [dict(report.samples[0], captions=[])]
        draw_contact_sheet(report, tmp_path / 'a.png', names)
        seen = colours_of(tmp_path / 'a.png')  # in the legend, where they are not mixed with a picture
        assert seen & wanted and not seen & (others - wanted)


@pytest.mark.slow
def test_sheets_have_the_palette_of_the_config(root, tmp_path, monkeypatch):
    """The ids of the classes are in another order."""
    drawn, palette = set(), [(10, 20, 30), (200, 0, 90), (0, 90, 200), (90, 200, 0), (250, 250, 250)]

    def spy(picture, boxes, labels, names, colours, *args, **options):
        drawn.update(zip((name.removesuffix(' (crowd)') for name in names), map(tuple, colours), strict=True))
        return draw_objects(picture, boxes, labels, names, colours, *args, **options)

    monkeypatch.setattr('xcit_dense.data.check.outputs.draw_objects', spy)
    for file in (ANNOTATIONS, ANNOTATIONS.replace('train', 'val')):
        rewrite(root, lambda content: content['categories'].reverse(), file)
    (tmp_path / 'config.py').write_text('\n'.join([f'_base_ = {str(TINY_CONFIG)!r}', 'classes_from_data = False', *(
        f'{part}_dataloader = dict(dataset=dict(metainfo={dict(classes=CLASSES[::-1], palette=palette)}))'
        for part in ('train', 'val', 'test'))]))
    run_tool('check_data.py', tmp_path / 'config.py', '--data-root', root, '--out', tmp_path / 'checked')
    assert drawn == set(zip(CLASSES[::-1], palette, strict=True))


def test_twelve_images_with_findings_and_four_without():
    """Every kind is among the first; a chosen image has all its captions; the others are spread over the data."""
    def finding(kind, number):
        return Finding(kind, 'x', 'annotations', number, number, 'some')

    found = [(number, finding('area-empty', number)) for number in range(20)]
    found += [(19, finding('rle-size', 50)), (3, finding('box-ignored', 51)), (19, finding('box-ignored', 52))]
    chosen = choose_samples(found, list(range(100, 200)) + [3])
    assert [(image, [int(caption.split()[2]) for caption in words]) for image, words in chosen.items()] == [
        (19, [50, 52, 19]), (0, [0]), (3, [51, 3]), *((number, [number]) for number in (1, 2, *range(4, 11))),
        (100, []), (133, []), (166, []), (199, [])]
    assert list(choose_samples([], [5, 6])) == [5, 6] and choose_samples([], []) == {}
    # errors go before warnings
    kinds = ('area-empty', 'area-empty', 'rle-counts', 'box-ignored', 'rle-counts', 'rle-size')
    assert each_kind_first([finding(kind, i) for i, kind in enumerate(kinds)]) == [2, 5, 0, 3, 4, 1]
