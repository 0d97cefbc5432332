"""The results of findings: an error, contact sheets, a cleaned file."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.faulty_data import (
    ANNOTATIONS,
    INFINITE,
    NAN,
    coco,
    fields,
    folders,
    image_and_map,
    polygon,
    rewrite,
    save_map,
)
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import check as data_check
from xcit_dense.data.check import (
    KINDS,
    check,
    check_before_training,
    check_data_set,
    draw_contact_sheet,
)
from xcit_dense.data.demo import CLASSES
from xcit_dense.draw.colours import class_colours
from xcit_dense.errors import ConfigError, DataError, OutputError
from xcit_dense.files import RECORD

#: A box that would spoil the training.
ENDLESS = [0, 0, INFINITE, 5]


def test_training_is_stopped_with_the_first_faults(root, monkeypatch, caplog):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    check_before_training(cfg)

    def change(content):
        for height, annotation in enumerate(content['annotations'][:12], 5):
            annotation['bbox'] = [0, 0, INFINITE, height]
    rewrite(root, change)
    with pytest.raises(DataError) as stopped:
        check_before_training(cfg)
    message = str(stopped.value)
    assert '12 errors' in message and '2 more' in message and message.count('box [0, 0, inf') == 10
    assert f': python -m xcit_dense check_data {TINY_CONFIG} --data-root {root}\n' in message  # to be copied
    assert '--drop DIR' in message
    with pytest.raises(ConfigError, match='on_findings'):
        check_before_training(cfg, on_findings='no')
    said = []
    monkeypatch.setattr(check, 'print_log', lambda text, **options: said.append(text))
    check_before_training(cfg, on_findings='warn')
    assert len(said) == 2 and said[0].count('box [0, 0, inf') == 3 and '9 more' in said[0]  # each once
    assert '12 errors' in said[1] and 'box [' not in said[1] and 'check_data' in said[1]
    # one process of several looks, and ends the others with itself
    cfg.launcher = 'pytorch'
    monkeypatch.setenv('RANK', '1')
    check_before_training(cfg)


@pytest.mark.parametrize('count, more', ((3, 0), (4, 1), (10, 7), (11, 8)))
def test_no_more_are_counted_than_there_are(root, count, more):
    """Beyond the ten that an error shows, and the three of a kind that a report shows."""
    def change(content):
        one = content['annotations'][0]
        content['annotations'] = [dict(one, id=i, bbox=[0, 0, INFINITE, i]) for i in range(1, count + 1)]
    rewrite(root, change)
    with pytest.raises(DataError) as stopped:
        check_before_training(load_config(TINY_CONFIG, data_root=root, pretrained=False))
    said = str(stopped.value)
    assert said.count('[0, 0, inf') == min(count, 10) and ('and 1 more' in said) == (count == 11)
    summary = check_data_set(coco(root)).summary()
    assert summary.count('[0, 0, inf') == 3 and (f'and {more} more' in summary) == (more > 0)
    assert summary.count(' more') == (more > 0)


@pytest.mark.parametrize('count', (2, 468))
def test_equal_faults_are_one_line(root, count):
    """In the report and in the error of a training, for every kind; the file of findings has all."""
    def change(content):
        one = content['annotations'][0]
        content['annotations'] = [dict(one, id=i, bbox=ENDLESS) for i in range(1, count + 1)]
        content['annotations'].append(dict(one, id=count + 1, bbox=[0, 0, INFINITE, 6]))
    rewrite(root, change)
    report = check_data_set(coco(root))
    assert len(report.findings) == count + 1
    with pytest.raises(DataError) as stopped:
        check_before_training(load_config(TINY_CONFIG, data_root=root, pretrained=False))
    for said in (report.summary(), str(stopped.value)):
        assert said.count('[0, 0, inf, 5]') == 1 and f'{count:,} times, for example: ' in said
        assert said.count('[0, 0, inf, 6]') == 1 and ' more' not in said


def test_first_lines_have_a_fault_of_every_kind_and_drop_where_it_helps(root):
    def change(content):
        content['annotations'][0]['segmentation'] = 'x'
        for annotation in content['annotations'][1:12]:
            annotation['bbox'] = ENDLESS

    def message(config):
        with pytest.raises(DataError) as stopped:
            check_before_training(load_config(config, data_root=root, pretrained=False))
        return str(stopped.value)

    rewrite(root, change)
    text = message(TINY_CONFIG)
    assert '12 errors' in text and "RLE: 'x'" in text and '[0, 0, inf, 5]' in text and '--drop' in text
    (root / ANNOTATIONS).write_text('no json')
    assert '1 error ' in message(TINY_CONFIG) and '--drop' not in message(TINY_CONFIG)
    image_and_map(root)[1].unlink()
    assert '1 error ' in message(TINY_SEG_CONFIG) and '--drop' not in message(TINY_SEG_CONFIG)


def colours_of(path):
    return {colour for _, colour in Image.open(path).convert('RGB').getcolors(1 << 24)}


def test_sheets_show_what_was_found_first(root, tmp_path):
    def change(content):
        content['annotations'][-1].update(bbox=[70, 5, 4, 4])
        content['images'][4].update(width=640)
        content['images'][3].update(file_name='../../beside.jpg')
    shutil.copy(root / 'train2017/000000000001.jpg', root.parent / 'beside.jpg')
    rewrite(root, change)
    report = check_data_set(coco(root))
    content = json.loads((root / ANNOTATIONS).read_text())
    owner = content['annotations'][-1]['image_id']
    assert [Path(sample['file']).name for sample in report.samples] == [
        f'00000000000{number}.jpg' if number else 'beside.jpg' for number in (0, 5, *dict.fromkeys((owner, 1, 2, 3, 6)))
        if number != 4]
    captions = {Path(sample['file']).stem[-1]: sample['captions'] for sample in report.samples}
    assert any('is outside' in caption for caption in captions['e'])
    assert 'not 640 x' in captions['5'][0] and 'entirely outside its image' in captions[str(owner)][-1]
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6
    alarm = (176, 0, 32)
    assert alarm in colours_of(tmp_path / 'a.png')
    assert draw_contact_sheet(check_data_set(coco(root, ann_file=ANNOTATIONS.replace('train', 'val'),
                                                  data_prefix=dict(img='val2017/'))), tmp_path / 'b.png') == 3
    assert alarm not in colours_of(tmp_path / 'b.png')


def test_masks_that_nothing_has_checked_are_not_drawn(root, tmp_path):
    rewrite(root, polygon(1, 1, NAN, 5, 3))
    report = check_data_set(coco(root, pipeline=[dict(type='LoadAnnotations', with_bbox=True)]))
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6


def test_label_maps_with_faults_are_drawn(root, tmp_path):
    image, path = image_and_map(root)
    save_map(lambda m: np.where(m == 0, 77, m).astype(np.uint8))(image, path)
    save_map(lambda m: np.stack([m] * 3, 2))(image, path.with_name('000000000002.png'))
    path.with_name('000000000003.png').write_bytes(b'no map')
    report = check_data_set(folders(root))
    drawn = {Path(sample['file']).stem[-1]: sample for sample in report.samples}
    assert [bool(sample['captions']) for sample in report.samples] == [True] * 3 + [False] * 3
    assert drawn['2']['map'] is None and drawn['3']['map'] is None and drawn['1']['map'] == str(path)
    assert draw_contact_sheet(report, tmp_path / 'a.png') == 6


def test_classes_have_one_colour_in_all_sheets(root, tmp_path):
    names = ('background', *CLASSES)
    first, other = (check_data_set(folders(root, metainfo=dict(classes=order))) for order in (names, names[::-1]))
    for report, file in ((first, 'a.png'), (other, 'b.png')):
        report.samples = report.samples[:1]
        report.samples[0].update(captions=[])
        draw_contact_sheet(report, tmp_path / file, names)
    # the legend, where colours are not mixed with a picture
    wanted = set(class_colours(names))
    assert colours_of(tmp_path / 'a.png') & wanted and colours_of(tmp_path / 'b.png') & wanted
    assert not colours_of(tmp_path / 'b.png') & (set(class_colours(names[::-1])) - wanted)


def test_warnings_are_logged_and_do_not_stop(root, monkeypatch):
    rewrite(root, fields('annotations', 0, area=0))
    said = []
    monkeypatch.setattr(check, 'print_log', lambda text, **options: said.append(text))
    check_before_training(load_config(TINY_CONFIG, data_root=root, pretrained=False))
    assert len(said) == 1 and 'area-empty' in said[0]


def test_image_ids_that_are_there_twice_are_dropped_with_what_means_either(root, tmp_path):
    rewrite(root, fields('images', 1, id=1))
    report = check_data_set(coco(root))
    words, file = data_check.drop_findings(report, tmp_path / 'clean')
    assert 'without 2 images' in words and 'image-id-twice 2' in words
    assert file == tmp_path / 'clean/instances_train2017.json'
    kept = json.loads((tmp_path / 'clean/instances_train2017.json').read_text())
    assert [image['id'] for image in kept['images']] == [3, 4, 5, 6]
    assert {a['image_id'] for a in kept['annotations']} <= {3, 4, 5, 6}
    for overwrite in (False, True):
        with pytest.raises(DataError, match='the data set itself'):
            data_check.drop_findings(report, root / 'annotations', overwrite)
    (root / ANNOTATIONS).write_text('no json')
    with pytest.raises(DataError, match='cannot be cleaned'):
        data_check.drop_findings(check_data_set(coco(root)), tmp_path / 'other')


@pytest.mark.parametrize('kind', (coco, folders))
def test_what_was_dropped_is_written_again_and_nothing_of_others(root, tmp_path, kind):
    rewrite(root, fields('images', 1, id=1))
    image_and_map(root)[1].unlink()
    report, out = check_data_set(kind(root)), tmp_path / 'clean'
    data_check.drop_findings(report, out)
    file, = (path for path in out.iterdir() if path.name != RECORD)
    written = file.read_bytes()
    data_check.drop_findings(report, out)  # yesterday's is its own
    assert file.read_bytes() == written
    file.write_text('mine')
    with pytest.raises(OutputError, match='--overwrite'):
        data_check.drop_findings(report, out)
    assert file.read_text() == 'mine'
    data_check.drop_findings(report, out, overwrite=True)
    assert file.read_bytes() == written


def test_drop_lists_bad_images_of_folders(root, tmp_path):
    image, path = image_and_map(root)
    path.unlink()
    words, file = data_check.drop_findings(check_data_set(folders(root)), tmp_path / 'clean')
    assert '1 image to remove from' in words and file is None
    assert (tmp_path / 'clean/take_away.txt').read_text() == f'{image}\n'
    assert image.is_file()


def test_every_kind_of_finding_is_planted_here():
    files = [path for path in Path(__file__).parent.glob('test_*.py') if path.name != 'test_kinds.py']  # it lists them
    text = ''.join(path.read_text() for path in files)
    assert [kind for kind in KINDS if f"'{kind}'" not in text] == []
