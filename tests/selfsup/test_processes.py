"""DINO in two processes: as one with the joined batch."""
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from helpers.models import randomise
from helpers.paths import ROOT, TINY_DINO_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config

pytest.importorskip('mmpretrain')

#: Views without chance, so that an image has the same in every process, and batch norms with fixed statistics: on CPUs
#: each process has its own, as there is no SyncBN.
SAME = '''
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmpretrain', 'helpers.rank_dump'])
randomness = dict(seed=1)
model = dict(backbone=dict(drop_path_rate=0., norm_eval=True), head=dict(batch_norm=False))
_flip = dict(type='RandomFlip', prob=1., direction='horizontal')
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='MultiView', num_views=[1, 1, 1], transforms=[
        [dict(type='Resize', scale=(32, 32))], [dict(type='Resize', scale=(32, 32)), _flip],
        [dict(type='CenterCrop', crop_size=24), dict(type='Resize', scale=(16, 16))]]),
    dict(type='PackInputs')]))
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.01, weight_decay=0.01))
'''


def write_config(path, text):
    path.write_text(f"_base_ = '{TINY_DINO_CONFIG}'\n{text}")
    return path


def test_two_processes_learn_what_one_does_with_the_joined_batch(two_processes, class_folders, tmp_path):
    """The centre is that of the images of both; with random weights their outputs are far apart."""
    init_default_scope('mmpretrain')
    cfg = load_config(TINY_DINO_CONFIG, cfg_options={'model.head.batch_norm': False})
    model = randomise(MODELS.build(cfg.model), noise=0.5)
    torch.save(model.state_dict(), tmp_path / 'random.pth')
    config = write_config(tmp_path / 'config.py', f"{SAME}load_from = '{tmp_path}/random.pth'\ncustom_hooks = [dict("
                          "type='RankDumpHook'), dict(type='DINOHook', momentum=(0.9, 1.), warmup=2)]\n")
    args = [config, '--data-root', class_folders / 'train', '--work-dir']
    two_processes.run_tool('train.py', *args, tmp_path / 'two')
    run_tool('train.py', *args, tmp_path / 'one', '--cfg-options', 'train_dataloader.batch_size=6')
    first, second = (torch.load(tmp_path / f'two/rank{rank}.pt') for rank in (0, 1))
    whole = torch.load(tmp_path / 'one/rank0.pt')
    assert len(whole['losses']) == 6 and first['losses'] != second['losses']
    for loss, a, b in zip(whole['losses'], first['losses'], second['losses'], strict=True):
        assert (a + b) / 2 == pytest.approx(loss, rel=1e-5)
    centres = [run['buffers'][f'{prefix}teacher.centre'] for run, prefix in (
        (first, 'module.'), (second, 'module.'), (whole, ''))]
    assert torch.equal(centres[0], centres[1]) and centres[0].any()
    assert (centres[0] - centres[2]).norm() < 1e-5 * centres[2].norm()
    for name, value in whole['parameters'].items():
        a, b = (run['parameters'][f'module.{name}'] for run in (first, second))
        assert torch.equal(a, b), name
        assert (a - value).norm() < 1e-5 * value.norm() + 1e-7, name


def test_a_model_in_shares_is_refused(two_processes, class_folders, tmp_path):
    wrapper = load_config(ROOT / 'configs/_base_/fsdp.py').model_wrapper_cfg
    config = write_config(tmp_path / 'config.py', f'model_wrapper_cfg = {wrapper}\n')
    for done in two_processes.run_tool('train.py', config, '--data-root', class_folders / 'train', '--work-dir',
                                       tmp_path / 'run', check=False):
        assert done.returncode == 1 and 'FSDP' in done.message and 'the model DINO' in done.message
