"""The train tool as a user runs it."""
import re

import pytest
import torch

from helpers.paths import MAIN_CONFIG, SAMPLES, SMALL_CONFIG, TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.report.curves import read_curves
from xcit_dense.weights import read_checkpoint


def test_training_shows_progress_evaluates_and_saves(trained):
    work_dir, output = trained
    assert re.search(r'Epoch\(train\) +\[2\]\[3/3\].*eta: .*loss: ', output)
    assert 'Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all' in output
    said = re.search(r'parameters +[\d,]+: ([\d,]+) trained, .* with weight decay', output)[1]
    state = read_checkpoint(work_dir)['state_dict']
    statistics = ('running_mean', 'running_var', 'num_batches_tracked')
    assert int(said.replace(',', '')) == sum(v.numel() for n, v in state.items() if not n.endswith(statistics))
    assert 'paramwise_options' not in output
    assert (work_dir / 'epoch_2.pth').is_file()
    assert tuple(read_checkpoint(work_dir)['meta']['dataset_meta']['classes'])[:2] == ('disc', 'square')


def test_a_schedule_longer_than_the_run_is_said_in_the_log(trained):
    work_dir, output = trained
    log, = work_dir.glob('*/*.log')
    for text in (output, log.read_text()):
        assert len(re.findall(r'param_scheduler\.1 .* at 6, .* 2 epochs', text)) == 1


def test_resume_goes_on_where_it_stopped(trained, demo_data, tmp_path):
    work_dir, _ = trained
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--resume',
                    work_dir / 'epoch_1.pth')
    assert 'resumed epoch: 1, iter: 3' in done.stdout
    assert not re.search(r'Epoch\(train\) +\[1\]', done.stdout)
    optimizer = read_checkpoint(tmp_path / 'epoch_2.pth')['optimizer']
    assert all(state['step'] == 6 for state in optimizer['state'].values())
    # and on from there, without naming the file
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--resume',
                    '--cfg-options', 'train_cfg.max_epochs=3')
    assert 'resumed epoch: 2, iter: 6' in done.stdout and 'does not fit the run' not in done.stdout
    assert [step for step, _ in read_curves(tmp_path)['loss']] == [4, 5, 6, 7, 8, 9]


def test_resume_with_nothing_there_does_not_start_over(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--resume',
                    check=False)
    assert done.returncode == 1
    assert re.search(f'error: .*no checkpoint.* {tmp_path}', done.stdout)
    assert 'Traceback' not in done.stdout and 'Epoch(train)' not in done.stdout


def test_text_in_a_checkpoint_is_not_run_on_resume(trained, demo_data, tmp_path):
    checkpoint = torch.load(trained[0] / 'epoch_1.pth', weights_only=False)
    trace = tmp_path / 'trace'
    bomb = f'import os\nos.mkdir({str(trace)!r})\n'
    checkpoint['meta'].update(cfg=bomb, config=bomb)
    torch.save(checkpoint, tmp_path / 'bomb.pth')
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--resume',
                    tmp_path / 'bomb.pth')
    assert 'resumed epoch: 1' in done.stdout
    assert not trace.exists()


def test_linear_scaling_is_said_in_the_log(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--auto-scale-lr',
                    '--cfg-options', 'train_cfg.max_epochs=1')
    assert re.search('batch size of 8 .*batch size is 2', done.stdout)
    # 1e-3 for batch 8, a quarter of it, at the start of the warm-up
    for name in ('lr', 'base_lr'):
        assert read_curves(tmp_path)[name][0][1] == pytest.approx(1e-3 / 4 * 0.01)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_slurm_without_a_gpu_is_refused(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--launcher', 'slurm',
                    check=False)
    assert done.returncode == 1 and 'error: --launcher slurm needs GPUs' in done.stdout
    assert 'Traceback' not in done.stdout


@pytest.mark.parametrize('options, env, said', (
    (['--launcher', 'pytorch'], {}, 'torchrun .*--launcher pytorch'),
    ([], dict(RANK='1', WORLD_SIZE='2'), 'one of 2 processes.*--launcher pytorch')))
def test_processes_and_launcher_that_do_not_match_are_refused(options, env, said, demo_data, tmp_path):
    """Before anything is written: without a launcher there is no group, without the option no common model."""
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path / 'run', *options,
                    env=env, check=False)
    assert done.returncode == 1 and re.search(said, done.message) and 'Traceback' not in done.stdout
    assert not (tmp_path / 'run').exists()


def test_weights_that_cannot_be_fetched_name_the_switch_and_the_place(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--cfg-options',
                    'model.backbone.init_cfg.type=Pretrained',
                    'model.backbone.init_cfg.checkpoint=xcit://small_12_p8_384_dist',
                    env=dict(TORCH_HOME=str(tmp_path / 'torch'), https_proxy='http://127.0.0.1:9'), check=False)
    assert done.returncode == 1
    assert '--no-pretrained' in done.stdout and 'Traceback' not in done.stdout
    assert f'{tmp_path}/torch/hub/checkpoints/xcit_small_12_p8_384_dist.pth' in done.stdout


def test_data_without_the_classes_of_the_config(demo_data, tmp_path):
    done = run_tool('train.py', MAIN_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--no-pretrained',
                    check=False)
    assert done.returncode == 1
    assert "does not have 80 of the 80 classes of the config: 'person', 'bicycle'" in done.stdout
    assert 'classes_from_data' in done.stdout
    assert 'Traceback' not in done.stdout and 'Epoch(train)' not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'coco_sample').is_dir(), reason='no COCO sample beside the checkout')
def test_small_config_learns_from_real_images(tmp_path):
    """The small config on 100 images of COCO: 80 classes out of the data, and a loss that clearly falls."""
    run_tool('train.py', SMALL_CONFIG, '--data-root', SAMPLES / 'coco_sample', '--work-dir', tmp_path,
             '--cfg-options', 'train_cfg.max_epochs=6', 'train_cfg.val_interval=6')
    losses = [value for _, value in read_curves(tmp_path)['loss']]
    assert losses[-1] < 0.75 * losses[0], losses
    assert len(read_checkpoint(tmp_path)['meta']['dataset_meta']['classes']) == 80
