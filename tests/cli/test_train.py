"""The train tool as a user runs it."""
import re

import pytest
import torch

from helpers.paths import SAMPLES, SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.demo import CLASSES
from xcit_dense.report.curves import read_curves
from xcit_dense.weights import newest_checkpoint, read_checkpoint


def test_training_shows_progress_evaluates_and_saves(trained):
    work_dir, output = trained
    assert re.search(r'Epoch\(train\) +\[2\]\[3/3\].*eta: .*loss: ', output)
    assert 'Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all' in output
    said = re.search(r'parameters +[\d,]+: ([\d,]+) trained, .* with weight decay', output)[1]
    checkpoint = read_checkpoint(work_dir)
    statistics = ('running_mean', 'running_var', 'num_batches_tracked')
    assert int(said.replace(',', '')) == sum(
        value.numel() for name, value in checkpoint['state_dict'].items() if not name.endswith(statistics))
    assert 'paramwise_options' not in output and (work_dir / 'epoch_2.pth').is_file()
    assert tuple(checkpoint['meta']['dataset_meta']['classes']) == CLASSES
    log, = work_dir.glob('*/*.log')
    for text in (output, log.read_text()):  # a schedule longer than the run
        assert len(re.findall(r'param_scheduler\.1 .* at 6, .* 2 epochs', text)) == 1


def test_training_of_a_segmentor(trained_segmentor):
    (work_dir, output), names = trained_segmentor, ('background', *CLASSES)
    assert re.search(r'Iter\(train\) +\[4/4\].*eta: .*loss: ', output)
    assert re.search(r'Iter\(val\).*aAcc: .*mIoU: ', output)
    assert all(re.search(rf'\| +{name} +\|', output) for name in names)  # IoU per class
    checkpoint, curves = read_checkpoint(work_dir), read_curves(work_dir)
    assert tuple(checkpoint['meta']['dataset_meta']['classes']) == names
    assert checkpoint['state_dict']['decode_head.conv_seg.weight'].shape[0] == len(names)
    assert [step for step, _ in curves['loss']] == [1, 2, 3, 4] and [step for step, _ in curves['val/mIoU']] == [2, 4]


def test_resume_goes_on_where_it_stopped(trained_segmentor, demo_data, tmp_path):
    """From a file, and on from there without naming one; text in it is not run. Linear scaling is said in the log."""
    checkpoint = torch.load(trained_segmentor[0] / 'iter_2.pth', weights_only=False)
    bomb = f'import os\nos.mkdir({str(tmp_path / "trace")!r})\n'
    checkpoint['meta'].update(cfg=bomb, config=bomb)
    torch.save(checkpoint, tmp_path / 'bomb.pth')
    begin = 'train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir'
    arguments = *begin, tmp_path / 'run', '--resume'
    done = run_tool(*arguments, tmp_path / 'bomb.pth')
    assert 'resumed epoch: 0, iter: 2' in done.stdout and not (tmp_path / 'trace').exists()
    states = read_checkpoint(newest_checkpoint(tmp_path / 'run'))['optimizer']['state']
    assert all(state['step'] == 4 for state in states.values())
    done = run_tool(*arguments, '--cfg-options', 'train_cfg.max_iters=6')
    assert 'resumed epoch: 0, iter: 4' in done.stdout
    assert [step for step, _ in read_curves(tmp_path / 'run')['loss']] == [3, 4, 5, 6]
    done = run_tool(*begin, tmp_path / 'scaled', '--auto-scale-lr', '--cfg-options', 'train_cfg.max_iters=1')
    assert re.search('batch size of 8 .*batch size is 2', done.stdout)
    for name in ('lr', 'base_lr'):  # 2e-3 for batch 8, a quarter of it, at the start of the warm-up
        assert read_curves(tmp_path / 'scaled')[name][0][1] == pytest.approx(2e-3 / 4 * 0.01)


@pytest.mark.parametrize('config, options, env, words', (
    ('maskrcnn_xcit_s12_p8_coco', ('--no-pretrained', ), {}, (
        "does not have 80 of the 80 classes of the config: 'person', 'bicycle'", 'classes_from_data')),
    ('configs/nothing.py', (), {}, ('error: there is no config', )),
    (TINY_CONFIG, ('--resume', ), {}, ('error: ', 'no checkpoint', 'WORK_DIR')),
    (TINY_CONFIG, ('--cfg-options', 'train_cfg.val_intervall=3'), {}, ('train_cfg.val_intervall', 'did you mean')),
    (TINY_SEG_CONFIG, ('--no-pretrained', '--cfg-options', 'model.decode_head.loss_decode.class_weight=[1.,2.]'), {}, (
        'class_weight has 2 weights', )),
    (TINY_CONFIG, ('--cfg-options', 'model.backbone.init_cfg.type=Pretrained',
                   'model.backbone.init_cfg.checkpoint=xcit://small_12_p8_384_dist'),
     dict(https_proxy='http://127.0.0.1:9'), (
        '--no-pretrained', 'WORK_DIR/torch/hub/checkpoints/xcit_small_12_p8_384_dist.pth'))),
    ids=('classes', 'config', 'file', 'key', 'weights', 'fetch'))
def test_what_cannot_start_names_the_fix(config, options, env, words, demo_data, tmp_path):
    done = run_tool('train.py', config, '--data-root', demo_data, '--work-dir', tmp_path, *options,
                    env=dict(env, TORCH_HOME=str(tmp_path / 'torch')), check=False)
    assert done.returncode == 1 and all(word.replace('WORK_DIR', str(tmp_path)) in done.stdout for word in words)
    assert 'Traceback' not in done.stdout and '(train)' not in done.stdout


@pytest.mark.parametrize('options, env, said', (
    (['--launcher', 'pytorch'], {}, 'torchrun .*--launcher pytorch'),
    ([], dict(RANK='1', WORLD_SIZE='2'), 'one of 2 processes.*--launcher pytorch')))
def test_processes_and_launcher_that_do_not_match_are_refused(options, env, said, demo_data, tmp_path):
    """Before anything is written: without a launcher there is no group, without the option no common model."""
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run', *options,
                    env=env, check=False)
    assert done.returncode == 1 and re.search(said, done.message) and 'Traceback' not in done.stdout
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLES.is_dir(), reason='no samples beside the checkout')
@pytest.mark.parametrize('config, data, length, classes', (
    (SMALL_CONFIG, 'coco_sample', 'epochs=3', range(80, 81)),
    ('semfpn_xcit_n12_p16_small', 'ade20k_sample/ADEChallengeData2016', 'iters=60', range(101, 151))),
    ids=('coco', 'ade20k'))
def test_small_config_learns_from_real_images(config, data, length, classes, tmp_path):
    """The small configs on 100 images of COCO and 20 of ADE20k: classes out of the data, a loss that clearly falls."""
    run_tool('train.py', config, '--no-fit', '--data-root', SAMPLES / data, '--work-dir', tmp_path, '--cfg-options',
             f'train_cfg.max_{length}', f'train_cfg.val_interval={length.partition("=")[2]}')
    losses = [value for _, value in read_curves(tmp_path)['loss']]
    assert losses[-1] < 0.75 * losses[0], losses
    assert len(read_checkpoint(tmp_path)['meta']['dataset_meta']['classes']) in classes
