"""check_data: counts, draws, and ends with what it found."""
import json
import re
import shutil

import pytest
from PIL import Image

from helpers.faulty_data import ANNOTATIONS, INFINITE, fields, rewrite
from helpers.paths import SAMPLES, TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.check import check_before_training
from xcit_dense.errors import DataError


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_tool_counts_and_draws(demo_data, tmp_path, config):
    done = run_tool('check_data.py', config, '--data-root', demo_data, '--out', tmp_path / 'out', '--strict')
    assert '6 images' in done.stdout and re.search(r'star +\d+ +[\d,]+ +[\d.]+%', done.stdout)
    assert '0 errors and 0 warnings' in done.stdout
    assert json.loads((tmp_path / 'out/findings.json').read_text()) == []
    for part in ('train', 'val'):
        assert len(Image.open(tmp_path / f'out/{part}_dataloader.png').convert('RGB').getcolors(1 << 24)) > 1000


FAULTY = fields('annotations', 0, bbox=[0, 0, INFINITE, 5]), fields('annotations', 1, segmentation='x')
STICKS_OUT = (fields('annotations', 0, bbox=[20, 5, 60, 4]), )
OTHER_TEST = ('--cfg-options', 'test_dataloader.dataset.ann_file=test.json', 'test_evaluator.ann_file=ROOT/test.json',
              'test_dataloader.dataset.data_prefix.img=train2017/')


@pytest.mark.parametrize('changes, options, code, counts, found', (
    (FAULTY, (), 1, '2 errors and 0 warnings', {'mask-malformed': ANNOTATIONS, 'box-absurd': ANNOTATIONS}),
    ((), ('--cfg-options', 'train_dataloader.dataset.ann_file=annotations/absent.json'), 1, '1 error and 0 warnings',
     {'not-there': 'annotations/absent.json'}),
    ((fields('categories', 0, name='Disk'), ), (), 1, '1 error and 0 warnings', {'class-count': "'Disk'"}),
    ((), OTHER_TEST, 0, '0 errors and 1 warning', {'class-test': "'plus'"}),
    (STICKS_OUT, ('--strict', ), 1, '0 errors and 1 warning', {'box-sticks-out': ANNOTATIONS}),
    (STICKS_OUT, (), 0, '0 errors and 1 warning', {'box-sticks-out': ANNOTATIONS})),
    ids=('faulty', 'absent', 'renamed', 'only_test', 'strict', 'warning'))
def test_what_is_found_is_printed_and_ends_the_tool(changes, options, code, counts, found, root, tmp_path, call_tool):
    """A training does without the test, so its classes are a warning."""
    content = json.loads((root / ANNOTATIONS).read_text())
    content['categories'][-1]['name'] = 'plus'
    (root / 'test.json').write_text(json.dumps(content))
    for change in changes:
        rewrite(root, change)
    got, message = call_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'out', *(
        option.replace('ROOT', str(root)) for option in options))
    assert got == code and counts in message and message.startswith('error: ') == bool(code), message
    findings = json.loads((tmp_path / 'out/findings.json').read_text())
    assert {finding['kind'] for finding in findings} == set(found), findings
    for finding in findings:
        assert found[finding['kind']] in f'{finding["file"]} {finding["sentence"]}', finding
        assert finding['severity'] == ('warning' if '0 errors' in counts else 'error')


def test_boxes_only_are_for_a_detector_without_masks(root, tmp_path):
    rewrite(root, lambda content: [annotation.pop('segmentation') for annotation in content['annotations']])
    with pytest.raises(DataError) as stopped:
        check_before_training(load_config(TINY_CONFIG, data_root=root, pretrained=False))
    done = run_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'out', check=False)
    for words in (str(stopped.value), done.stdout):
        assert 'detector without masks: fasterrcnn_xcit_s12_p16_custom' in words


def test_each_of_several_data_sets_is_told_and_drawn_by_itself(root, demo_data, tmp_path):
    rewrite(root, FAULTY[0])
    shutil.copy(root / ANNOTATIONS, root / ANNOTATIONS.replace('train', 'val'))
    config = tmp_path / 'two.py'
    config.write_text(f"""_base_ = {str(TINY_CONFIG)!r}
_good = dict(type='RepeatDataset', times=2, dataset=dict(_base_.train_dataloader.dataset, data_root={str(demo_data)!r}))
_bad = dict(_base_.train_dataloader.dataset, data_root={str(root)!r})
train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=[_good, _bad]))
val_dataloader = dict(dataset=dict(data_root={str(root)!r}, data_prefix=dict(img='train2017/')))
val_evaluator = dict(ann_file={str(root / 'annotations/instances_val2017.json')!r})
test_dataloader = val_dataloader
test_evaluator = [dict(_base_.val_evaluator, **val_evaluator)]
""")
    done = run_tool('check_data.py', config, '--out', tmp_path / 'out', check=False)
    assert done.returncode == 1 and '2 errors' in done.stdout
    assert done.stdout.startswith('train_dataloader.0\n') and '\ntrain_dataloader.1\n' in done.stdout
    assert {path.name for path in (tmp_path / 'out').glob('*.png')} == {
        'train_dataloader.0.png', 'train_dataloader.1.png', 'val_dataloader.png'}


def test_class_folders_are_counted_and_drawn(demo_data, tmp_path):
    pytest.importorskip('mmpretrain', reason='mmpretrain is optional')
    said = run_tool('check_data.py', TINY_CLS_CONFIG, '--data-root', demo_data / 'classes', '--out', tmp_path / 'out',
                    '--cfg-options', 'classes_from_data=True', '--strict').stdout
    assert '0 errors and 0 warnings' in said and '15 images, 5 classes' in said
    assert re.search(r'star +3 +20.0% #', said)
    assert len(Image.open(tmp_path / 'out/train_dataloader.png').convert('RGB').getcolors(1 << 24)) > 1000


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'coco_sample').is_dir(), reason='no samples beside the checkout')
@pytest.mark.parametrize('config, folder', (
    ('maskrcnn_xcit_s12_p8_coco', 'coco_sample'), ('semfpn_xcit_s12_p16_ade20k', 'ade20k_sample/ADEChallengeData2016')))
def test_real_data_has_no_errors(tmp_path, config, folder):
    done = run_tool('check_data.py', config, '--data-root', SAMPLES / folder, '--out', tmp_path)
    assert re.search(r'^0 errors', done.stdout, re.M) and re.search(r'^  person ', done.stdout, re.M)
