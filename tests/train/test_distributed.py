"""Runs of two processes on a CPU, as on GPUs."""
import re
import shutil
import signal

import pytest
import torch

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import assert_same_run, make_config
from helpers.tools import run_process, run_tool
from xcit_dense.errors import ConfigError
from xcit_dense.report.curves import read_curves
from xcit_dense.train import build_runner
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import damage, read_notes

SUMMED = 'randomness = dict(seed=1)\noptim_wrapper = dict(accumulative_counts=2)\n'


def write_config(path, *hooks, more='', base=TINY_SEG_CONFIG):
    hooks = ', '.join(f'dict(type={hook})' for hook in hooks)
    imports = "'xcit_dense', 'xcit_dense.for_mmseg', 'helpers.rank_dump'"
    path.write_text(f"_base_ = '{base}'\ncustom_imports = dict(imports=[{imports}])\n"
                    f'custom_hooks = [{hooks}]\n{more}')
    return path


@pytest.fixture
def train(two_processes, demo_data):
    """A function that trains in two processes; gives what came of the first and the second."""
    return lambda config, work_dir, *options, check=True: two_processes.run_tool(
        'train.py', config, '--data-root', demo_data, '--work-dir', work_dir, *options, check=check)


@pytest.fixture
def launch(demo_data, tmp_path):
    """A function that trains in two processes started by torch's launcher; gives what came of it."""
    return lambda config, *options, check=True: run_process(
        'train.py', config, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--launcher', 'pytorch',
        '--no-pretrained', *options, check=check, env=dict(OMP_NUM_THREADS=1, LONG_WAITS=1),
        python=('-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2'))


@pytest.mark.integration
def test_two_cpu_processes_train_one_model(launch, tmp_path):
    config = write_config(tmp_path / 'config.py', "'RankDumpHook'", base=TINY_CONFIG)
    done = launch(config, '--auto-scale-lr', '--cfg-options', 'train_cfg.max_epochs=1',
                  'train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True')
    assert 'the current batch size is 4' in done.stdout
    assert re.search(r'Epoch\(train\) +\[1\]\[2/2\]', done.stdout)  # 3 batches over 2 processes
    assert done.stdout.count('Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all') == 2  # boxes and masks, once
    assert (tmp_path / 'run/epoch_1.pth').is_file()
    first, second = (torch.load(tmp_path / f'run/rank{rank}.pt')['parameters'] for rank in (0, 1))
    assert first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())
    # workers that are not told to end are waited for
    assert max(map(float, re.findall(r'seconds after training: ([\d.]+)', done.stdout))) < 50
    assert done.stdout.count('threads of gloo at the end: 0') == 2


def test_two_processes_learn_what_one_does_with_the_joined_batch(train, demo_data, tmp_path):
    config = write_config(tmp_path / 'config.py', "'RankDumpHook'", "'EvalNormsHook'", more=(
        'randomness = dict(seed=1)\n'
        'model = dict(backbone=dict(drop_path_rate=0.), decode_head=dict(dropout_ratio=0.))\n'
        "optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1, weight_decay=0.01))\nval_cfg = None\n"
        "val_dataloader = None\nval_evaluator = None\n"))
    train(config, tmp_path / 'two')
    run_tool('train.py', config, '--data-root', demo_data, '--work-dir', tmp_path / 'one', '--cfg-options',
             'train_dataloader.batch_size=4')
    first, second = (torch.load(tmp_path / f'two/rank{rank}.pt') for rank in (0, 1))
    whole = torch.load(tmp_path / 'one/rank0.pt')
    assert len(whole['losses']) == 4 and first['losses'] != second['losses']
    for loss, a, b in zip(whole['losses'], first['losses'], second['losses'], strict=True):
        assert (a + b) / 2 == pytest.approx(loss, rel=1e-5)
    wanted = torch.cat([value.flatten() for value in whole['parameters'].values()])
    got = torch.cat([first['parameters'][f'module.{name}'].flatten() for name in whole['parameters']])
    assert (got - wanted).norm() < 1e-6 * wanted.norm()


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_and_the_run_goes_on_exactly(train, tmp_path):
    """Between two iterations whose gradients are added; they and random numbers differ from process to process."""
    more = ('randomness = dict(seed=1, diff_rank_seed=True)\noptim_wrapper = dict(accumulative_counts=2)\n'
            'auto_scale_lr = dict(base_batch_size=16)\n')
    plain = write_config(tmp_path / 'plain.py', "'AverageHook'", more=more)
    stopping = write_config(tmp_path / 'stopping.py', "'AverageHook'",
                            "'SignalHook', rank=1, iteration=3, number='SIGTERM'", more=more)
    train(plain, tmp_path / 'whole', '--auto-scale-lr')
    for done in train(stopping, tmp_path / 'run', '--auto-scale-lr', check=False):
        assert done.returncode == 128 + signal.SIGTERM and 'after iteration 3. Saved' in done.stdout
    assert newest_checkpoint(tmp_path / 'run').name == 'iter_3.pth'
    train(plain, tmp_path / 'run', '--resume', '--auto-scale-lr')
    got, wanted = (read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('run', 'whole'))
    assert_same_run(got, wanted)
    assert len(got['training']['loops']) == 2 and got['ema_state_dict']['steps'] == 4
    assert all(group['initial_lr'] == pytest.approx(0.002 * 8 / 16) for group in got['optimizer']['param_groups'])


def test_a_bad_loss_in_one_process_ends_all_and_names_its_images(train, tmp_path):
    config = write_config(tmp_path / 'config.py', "'PoisonHook', rank=1, iteration=2")
    for done in train(config, tmp_path / 'run', check=False):
        assert done.returncode == 1
        assert re.search(r'iteration 2: .* not finite. process 1: .*; images: \S+/images/training/', done.message)
        assert 'process 0: ' not in done.message


def test_all_stop_where_no_validation_is_better_and_the_first_says_so(train, tmp_path):
    more = ("train_cfg = dict(max_iters=6)\noptim_wrapper = dict("
            "optimizer=dict(_delete_=True, type='SGD', lr=0., weight_decay=0.))\n")
    config = write_config(tmp_path / 'config.py', "'EvalNormsHook'", more=more)
    first, second = train(config, tmp_path / 'run', '--no-pretrained', '--val-loss', '--patience', '1')
    assert first.stdout.count('as good as the best so far') == first.stdout.count(', stopped before') == 1
    assert 'best so far' not in second.stdout and ', stopped before' not in second.stdout
    assert read_notes(tmp_path / 'run').validations == 2 and len([*(tmp_path / 'run').glob('best_*')]) == 1
    losses = [value for _, value in read_curves(tmp_path / 'run')['val/loss']]
    assert losses == pytest.approx([losses[0]] * 2, rel=1e-6)


def test_each_image_counts_once(two_processes, trained_segmentor, demo_data, tmp_path):
    """Three images on two processes: one process pads, and the result must not see it."""
    args = [TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir']
    one = run_tool('test.py', *args, tmp_path / 'one')
    two, _ = two_processes.run_tool('test.py', *args, tmp_path / 'two')
    assert (one.stdout + two.stdout).count(f'checkpoint of {trained_segmentor[0]}: best of 2 validations: ') == 2
    found = [re.findall(r'aAcc: ([\d.]+)  mIoU: ([\d.]+)  mAcc: ([\d.]+)', done.stdout)[-1] for done in (one, two)]
    assert found[0] == found[1]


def checkpoints(folder):
    """Return the names of the checkpoints to resume, which must all be complete, and of half-written files there."""
    files = sorted(folder.glob('*.pth'))
    assert not any(map(damage, files)) and read_checkpoint(newest_checkpoint(folder))
    return [path.name for path in files if not path.name.startswith('best_')], len(list(folder.glob('*.part')))


@pytest.mark.integration
def test_killed_while_saving_while_starting_and_in_a_validation(two_processes, launch, demo_data, tmp_path):
    """With kill -9, one process alone; in the end the run is that which nothing stopped, to the last bit."""
    folder, kill = tmp_path / 'run', "'SignalHook', rank=1, number='SIGKILL', "
    options = ['--data-root', demo_data, '--no-pretrained', '--work-dir']
    for name, hook, resume, wanted in (
            ('saving', "'KillInWritingHook', iteration=4", [], (['iter_2.pth'], 1)),
            ('starting', f"{kill}iteration=3, where='before_train'", ['--resume'], (['iter_2.pth'], 0)),
            ('validation', f"{kill}iteration=5, where='after_val_iter'", ['--resume'],
             (['iter_2.pth', 'iter_4.pth'], 0))):
        done = launch(write_config(tmp_path / f'{name}.py', hook, more=SUMMED), *resume, check=False)
        assert done.returncode and re.search(r'exitcode\s*: -9', done.stdout), done.stdout[-3000:]
        assert checkpoints(folder) == wanted, name
    plain, alone = write_config(tmp_path / 'plain.py', more=SUMMED), shutil.copytree(folder, tmp_path / 'alone')
    two_processes.run_tool('train.py', plain, *options, tmp_path / 'whole')
    done, _ = two_processes.run_tool('train.py', plain, *options, folder, '--resume')
    assert 'Iter(val)' in done.stdout  # the validation that was cut off
    assert_same_run(*(read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('run', 'whole')))
    assert 'Iter(val)' in run_tool('train.py', plain, *options, alone, '--resume').stdout
    assert checkpoints(folder) == checkpoints(alone) == (['iter_2.pth', 'iter_4.pth'], 0)


@pytest.mark.parametrize('wrapper', ('MMFullyShardedDataParallel', 'MMDeepSpeedEngineWrapper'))
def test_sharding_is_refused(wrapper, demo_data, tmp_path):
    with pytest.raises(ConfigError, match=r'model_wrapper_cfg shards the model \(FSDP'):
        build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, model_wrapper_cfg=dict(type=wrapper)))
