"""How bad each kind of finding is, whether its record is dropped, and what that changes."""
import json

import pytest

from helpers.faulty_data import ANNOTATIONS, folders
from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import check as data_check
from xcit_dense.data.check import KINDS, Finding, Report, check, check_before_training, drop_findings
from xcit_dense.errors import DataError

#: Stops or spoils the training, and dropping the record fixes it.
ERRORS_THAT_DROP = {
    'bad-record', 'image-id-twice', 'annotation-id-twice', 'image-dimensions', 'box-infinite', 'box-absurd',
    'mask-missing', 'mask-malformed', 'polygon-first', 'polygon-not-finite', 'polygon-absurd', 'polygon-outside',
    'rle-size', 'rle-counts', 'rle-malformed', 'image-missing', 'image-unreadable', 'image-size', 'image-rotated',
    'map-missing', 'map-shared', 'map-unreadable', 'map-16-bit', 'map-colour', 'map-size', 'map-labels', 'list-line',
    'list-label'}
#: Stops or spoils the training, and dropping records does not fix it.
ERRORS_THAT_STAY = {
    'not-there', 'not-coco', 'category-id-twice', 'category-name-twice', 'no-images', 'class-missing', 'class-order',
    'class-list', 'class-count', 'class-single', 'class-unread', 'class-hidden', 'class-numbers', 'evaluator-data',
    'class-explicit'}
#: Training ignores it by itself, or repeats it.
WARNINGS_THAT_DROP = {
    'file-name-twice', 'image-twice', 'unknown-category', 'orphan', 'box-not-finite', 'box-negative', 'box-outside',
    'box-empty', 'area-empty', 'area-not-finite', 'mask-no-counts', 'polygon-none', 'image-cut-off', 'map-ignored',
    'image-two-classes', 'image-in-training'}
#: What training can use as it is.
WARNINGS_THAT_STAY = {
    'not-checked', 'annotation-id-0', 'box-sticks-out', 'polygon-points', 'image-huge', 'image-outside',
    'image-left-out', 'map-ratio', 'map-without-image', 'class-unused', 'class-spare', 'class-test', 'data-set-twice',
    'evaluator-more', 'files-left-out', 'class-empty', 'class-ids', 'class-void'}
ERRORS, WARNINGS = ERRORS_THAT_DROP | ERRORS_THAT_STAY, WARNINGS_THAT_DROP | WARNINGS_THAT_STAY


def of_kinds(kinds, source='x', **place):
    return Report(source, [Finding(kind, 'x', value='some', **place) for kind in sorted(kinds)])


def test_every_kind_is_in_the_table():
    assert set(KINDS) == ERRORS | WARNINGS and len(ERRORS) + len(WARNINGS) == len(KINDS)
    for kind in KINDS:
        finding = Finding(kind, 'x')
        assert finding.severity == ('error' if kind in ERRORS else 'warning'), kind
        assert finding.drops == (kind in ERRORS_THAT_DROP | WARNINGS_THAT_DROP), kind
    report = of_kinds(KINDS)
    assert {f.kind for f in report.errors} == ERRORS and {f.kind for f in report.warnings} == WARNINGS
    lines = report.summary().splitlines()
    severities = [line.split(':')[0].strip() for line in lines if line.startswith('  ') and line[2] != ' ']
    assert severities == ['error'] * len(ERRORS) + ['warning'] * len(WARNINGS)


def test_a_training_stops_at_every_error_and_at_no_warning(demo_data, monkeypatch):
    cfg = load_config(TINY_CONFIG, data_root=demo_data, pretrained=False)
    said = []
    monkeypatch.setattr(check, 'print_log', lambda text, **how: said.append(text))
    monkeypatch.setattr(check, 'check_classes', lambda cfg: [])
    for kind in KINDS:
        monkeypatch.setattr(check, 'check_data_sets', lambda cfg, loaders, kind=kind: dict(a=of_kinds({kind})))
        said.clear()
        if kind in ERRORS:
            with pytest.raises(DataError):
                check_before_training(cfg)
            assert not said
        else:
            check_before_training(cfg)
            assert len(said) == 1 and kind in said[0]
        said.clear()
        check_before_training(cfg, on_findings='warn')
        assert said and kind in said[0], kind


@pytest.mark.parametrize('kinds, strict, code, numbers', (
    ((), True, 0, '0 errors and 0 warnings'), (WARNINGS, False, 0, f'0 errors and {len(WARNINGS)} warnings'),
    (WARNINGS, True, 1, f'0 errors and {len(WARNINGS)} warnings'), ({'box-empty'}, True, 1, '0 errors and 1 warning'),
    ({'rle-size'}, False, 1, '1 error and 0 warnings'),
    (KINDS, False, 1, f'{len(ERRORS)} errors and {len(WARNINGS)} warnings')))
def test_the_tool_ends_with_1_for_errors_and_with_strict_for_warnings(
        demo_data, tmp_path, monkeypatch, call_tool, kinds, strict, code, numbers):
    monkeypatch.setattr(data_check, 'check_data_sets', lambda cfg, use_cache: dict(train_dataloader=of_kinds(kinds)))
    got = call_tool('check_data.py', TINY_CONFIG, '--data-root', demo_data, '--out', tmp_path,
                    *['--strict'] * strict)
    assert got[0] == code and numbers in got[1]
    written = json.loads((tmp_path / 'findings.json').read_text())
    assert {f['kind']: f['severity'] for f in written} == {
        kind: 'error' if kind in ERRORS else 'warning' for kind in kinds}


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_dropped(root, tmp_path, kind):
    """The record with the finding and no other, of a file; the image with it, of folders."""
    dropped = kind in ERRORS_THAT_DROP | WARNINGS_THAT_DROP
    before = json.loads((root / ANNOTATIONS).read_text())
    drop_findings(of_kinds({kind}, root / ANNOTATIONS, part='annotations', row=2), tmp_path)
    target = tmp_path / 'instances_train2017.json'
    assert target.exists() == dropped
    if dropped:
        after = json.loads(target.read_text())
        assert after['annotations'] == before['annotations'][:2] + before['annotations'][3:]
        assert after['images'] == before['images']
    folder = folders(root)['data_root']
    drop_findings(of_kinds({kind}, folder, part='image', row=f'{folder}/a.jpg'), tmp_path)
    assert (tmp_path / 'take_away.txt').exists() == dropped
