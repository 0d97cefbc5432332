"""The loaders: the same batches for any number of workers; unreadable images and dead workers are named."""
import os
import re
import shutil
import signal
import time

import pytest
import torch
from mmengine.hooks import Hook

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, make_config, train
from xcit_dense.errors import DataError
from xcit_dense.train import build_runner


def test_hooks_reach_the_data_set_through_the_loader(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    loader = build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader
    loader.dataset.pipeline = lambda data: 'switched'
    assert loader.dataset.inner.pipeline(None) == loader.dataset.pipeline(None) == 'switched'


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_batches_do_not_depend_on_the_number_of_workers(config, demo_data, tmp_path):
    seen = []
    for workers in (0, 2, 3):
        cfg = make_config(config, demo_data, tmp_path / str(workers), workers)
        loader = iter(build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader)
        seen.append([next(loader) for _ in range(3)])
    for other in seen[1:]:
        for got, wanted in zip(other, seen[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(got['inputs'], wanted['inputs'], strict=True))
    first, second = seen[0][:2]
    assert not torch.equal(first['inputs'][0], second['inputs'][0])


def test_passes_differ_in_order_and_augmentation(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    loader = build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader
    passes = [[(s.img_path, s.flip) for batch in loader for s in batch['data_samples']] for _ in range(4)]
    assert len({tuple(p) for p in passes}) == 4
    assert len({frozenset(name for name, _ in p) for p in passes}) == 1


@pytest.mark.parametrize('size', (1, 3, 4))
def test_another_batch_size_leaves_out_no_image(size, demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)

    def loader_of(size):
        cfg.train_dataloader.update(batch_size=size, sampler=dict(type='DefaultSampler', shuffle=True),
                                    batch_sampler=None)
        return build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader

    def images(batches):
        return [sample.img_id for batch in batches for sample in batch['data_samples']]

    first, second = loader_of(2), loader_of(size)
    batches = iter(first)
    seen = images(next(batches) for _ in range(2))
    second.load_state_dict(first.state_dict())
    rest = images(second)
    assert sorted({*seen, *rest}) == sorted(images(loader_of(2))) and len(seen) + len(rest) < 6 + size


@pytest.mark.parametrize('workers', (0, 2))
@pytest.mark.parametrize('folder', ('training', 'validation'))
def test_an_unreadable_image_is_named(folder, workers, demo_data, tmp_path):
    root = tmp_path / 'data'
    shutil.copytree(demo_data, root)
    cfg = make_config(TINY_SEG_CONFIG, root, tmp_path / 'run', workers, **{'val_dataloader.num_workers': workers})
    victim = sorted((root / 'images' / folder).iterdir())[2]
    whole = victim.read_bytes()
    victim.write_bytes(b'no image')
    with pytest.raises(DataError, match=f'^cannot read sample 2, .*{victim.name}') as error:
        train(cfg)
    if folder == 'training':  # what was trained is not lost
        assert re.search(r'Saved .*iter_\d.pth; once that is mended, --resume goes on', str(error.value))
        victim.write_bytes(whole)
        assert train(cfg, resume=True)['meta']['iter'] == 4
    if folder == 'validation':
        cfg.test_dataloader.num_workers = workers
        with pytest.raises(DataError, match=f'^cannot read sample 2, .*{victim.name}'):
            build_runner(cfg).test()


@pytest.mark.parametrize(('loader', 'delay'), (('train', 0), ('train', 0.5), ('val', 0)))
def test_a_dead_worker_names_its_file(loader, delay, demo_data, tmp_path):
    """Whatever the main process does meanwhile."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers=2, **{'val_dataloader.num_workers': 2})
    runner = build_runner(cfg)
    folder, last = ('training', 4) if loader == 'train' else ('validation', 1)

    class Killer(Hook):

        def before_train(self, runner):
            dataset = getattr(runner, f'{loader}_dataloader').dataset
            while hasattr(dataset, 'inner'):
                dataset = dataset.inner
            read = type(dataset).__getitem__

            def kill(self, index):
                if index == last:
                    time.sleep(delay)
                    os.kill(os.getpid(), signal.SIGKILL)
                return read(self, index)

            dataset.__class__ = type('Killing', (type(dataset), ), dict(__getitem__=kill))

    runner.register_hook(Killer())
    runner.register_hook(At(1, lambda _: time.sleep(1)))
    victim = sorted((demo_data / 'images' / folder).iterdir())[last].name
    with pytest.raises(DataError, match=f'a worker of the {loader}_dataloader died .*{victim}'):
        runner.train()


def test_a_loader_of_a_built_data_set(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    runner = build_runner(cfg)
    dataset = runner.val_dataloader.dataset.inner
    loader = runner.build_dataloader({**cfg.val_dataloader, 'dataset': dataset})
    assert len(list(loader.dataset)) == len(dataset) == 3
