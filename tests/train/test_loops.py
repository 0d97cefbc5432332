"""The training loops: what is due, random numbers, what is told; images in a batch are predicted as alone."""
import multiprocessing
import os
import re
import signal
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.structures import InstanceData

from helpers.models import assert_equal, randomise
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.rank_dump import PoisonHook
from helpers.runs import NO_VALIDATION, SOURCES, At, disturb, draw, make_config, short_config, stop_after, train
from xcit_dense._utils.processes import ignore_signal
from xcit_dense.data.batches import files_of
from xcit_dense.errors import ConfigError, DataError, LossError, OutOfMemory
from xcit_dense.train import DenseCheckpointHook, build_runner, loops
from xcit_dense.train.loops import DenseEpochLoop
from xcit_dense.train.resuming import isolated_random_state, random_state, set_random_state
from xcit_dense.weights import newest_checkpoint, read_checkpoint

#: Heights and widths: the third is padded like the first, the fifth is the first turned.
SIZES = (96, 64), (32, 128), (90, 61), (32, 128), (64, 96)


@pytest.mark.parametrize('begin, interval, last, wanted', (
    (1, 1, 3, [1, 2, 3]), (1, 2, 6, [2, 4, 6]), (1, 4, 6, [4, 6]), (3, 1, 5, [3, 4, 5]), (4, 4, 9, [4, 8, 9]),
    (5, 4, 9, [8, 9]), (1, 10, 3, [3]), (5, 1, 3, [])))
def test_validation_is_due(begin, interval, last, wanted):
    """From its first unit on, at every interval counted from the start, and at the end."""
    loop = SimpleNamespace(val_begin=begin, val_interval=interval)
    assert [i for i in range(1, last + 1) if DenseEpochLoop._due(loop, i, last)] == wanted


@pytest.mark.parametrize('iterations, wanted', ((None, (5, 35)), (1, (1, 1)), (7, (1, 7)), (8, (2, 8)), (40, (5, 35))))
def test_a_run_ends_with_its_iterations(iterations, wanted, monkeypatch):
    monkeypatch.setattr(loops, 'ResumableLoader', lambda loader, seed: loader)
    loader = torch.utils.data.DataLoader(torch.arange(7))
    runner = SimpleNamespace(seed=0, build_dataloader=lambda loader, *_: loader, cfg={})
    loop = DenseEpochLoop(runner, loader, max_epochs=5, max_iters=iterations)
    assert (loop.max_epochs, loop.max_iters) == wanted


def test_an_infinite_loss_is_found():
    with pytest.raises(loops._BadLoss) as bad:
        loops._checked(lambda losses: (sum(losses.values()), losses))(dict(a=torch.tensor(-torch.inf)))
    assert bad.value.args[0] == dict(a=-torch.inf)


def test_too_little_memory_tells_the_batch():
    samples = [SimpleNamespace(img_path=name) for name in ('a.jpg', 'b.jpg')]
    batch = dict(inputs=[torch.empty(3, 4, 5), torch.empty(3, 60, 70)], data_samples=samples)
    text = loops._describe_memory(RuntimeError('no room\nmore'), batch, 12)
    assert re.search('iteration 12:.* 2 images .*4x5, 60x70 pixels.*a.jpg, b.jpg.*: no room. .*with_cp=True', text)
    views = dict(inputs=[torch.empty(5, 3, 8, 7), torch.empty(5, 3, 4, 6)])
    for batch, words in ((views, '5 images (8x7, 4x6 pixels'), (None, '0 images (unknown sizes'),
                         (dict(data_samples=[object()]), '0 images (unknown sizes')):
        assert words in loops._describe_memory(RuntimeError(), batch, 1) and files_of(batch) == ['unknown']
    for error, found in ((torch.OutOfMemoryError(), True), (RuntimeError("x can't allocate memory y"), True),
                         (RuntimeError('other'), False)):
        assert loops.is_out_of_memory(error) == found


def test_a_loss_that_is_no_number_stops_the_run(demo_data, tmp_path):
    """And what the run set up goes with it: the handlers of signals, and the look at the loss."""
    runner = build_runner(make_config(TINY_SEG_CONFIG, demo_data, tmp_path))
    before, seen = handlers(), []
    for hook in (PoisonHook(rank=0, iteration=3, heal=True), At(1, lambda _: seen.extend(handlers()))):
        runner.register_hook(hook)
    with pytest.raises(LossError, match=r'iteration 3: the loss is not finite\. [^:]*loss_ce nan.*; images: .*\.\w+, '):
        runner.train()
    assert seen == [runner.train_loop._note_signal] * 2 and handlers() == before
    assert 'parse_losses' not in vars(runner.model)
    state = read_checkpoint(newest_checkpoint(tmp_path))['state_dict']
    assert all(value.isfinite().all() for value in state.values())
    changed = [name for name, value in runner.model.named_parameters() if not torch.equal(value, state[name])]
    assert changed == ['backbone.patch_embed.proj.0.0.weight']  # what the hook spoilt: no step was done


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def sleep_until_ended(folder):
    (folder / f'asleep_{os.getpid()}').touch()
    time.sleep(20)  # a failed test must end too


def test_children_of_a_run_can_be_ended(demo_data, tmp_path):
    """Such as the pool of a metric, which waits for them; also just started, and where Ctrl-C reached them too."""
    codes = []

    def end_children(_):
        pool = multiprocessing.get_context('fork').Pool(2)
        workers = list(pool._pool)
        pool.map_async(sleep_until_ended, [tmp_path] * 2, chunksize=1)
        end = time.monotonic() + 60
        while len(list(tmp_path.glob('asleep_*'))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(workers[0].pid, signal.SIGINT)
        pool.terminate()
        codes.extend(worker.exitcode for worker in workers)
        noted = signal.signal(signal.SIGTERM, ignore_signal)  # as while it saves
        for _ in range(5):
            pid = os.fork() or time.sleep(5) or os._exit(0)
            os.kill(pid, signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        signal.signal(signal.SIGTERM, noted)

    train(short_config(demo_data, tmp_path, iterations=1), At(1, end_children))
    assert codes == [-signal.SIGTERM] * 7


@pytest.mark.parametrize(('iteration', 'where', 'said'), (
    (2, 'before_train_iter', 'iteration 2: out of memory .* 2 images .*with_cp=True'),
    (3, 'before_val_iter', 'validation after iteration 2: .*memory.* a smaller val_dataloader.batch_size')))
def test_out_of_memory_says_what_helps(iteration, where, said, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(OutOfMemory, match=said):
        train(cfg, At(iteration, lambda _: torch.empty(2**50), where=where))


def test_wrong_options_are_named(demo_data, tmp_path):
    with pytest.raises(ConfigError, match='bad_loss'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'no'}))
    with pytest.raises(ConfigError, match='on_write_error'):
        DenseCheckpointHook(on_write_error='no')
    for name, value in dict(filename_tmpl='kept/{}.pth', out_dir=str(tmp_path), backend_args=dict(backend='local'),
                            file_client_args=dict(backend='disk'), published_keys=['state_dict']).items():
        with pytest.raises(ConfigError, match=f'{name}.*--work-dir DIR'):
            DenseCheckpointHook(**{name: value})


@pytest.mark.parametrize('drawn', (0, 1))  # of 1 a normal number is kept
def test_isolated_numbers_change_nothing_outside(drawn):
    for _ in range(drawn):
        draw()
    state = random_state()
    wanted = [draw() for _ in range(700)]  # both twisters turn over, and the state is not theirs
    set_random_state(state)
    with pytest.raises(ZeroDivisionError), isolated_random_state(1, 2, 3):
        disturb()
        _ = 1 / 0
    assert [draw() for _ in range(700)] == wanted


def test_isolated_numbers_depend_on_every_seed_number_alone():
    def inside(*seed):
        with isolated_random_state(*seed):
            return draw()

    first = inside(1, 2, 3)
    disturb()
    assert inside(1, 2, 3) == first  # a normal number that was kept outside is none inside
    others = [inside(*seed) for seed in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1), (1, 2, 2**40))]
    for name in SOURCES:
        assert len({numbers[name] for numbers in (first, *others)}) == 1 + len(others), name


@pytest.mark.parametrize('resumed', (False, True))
def test_what_hooks_save_in_validation_is_where_the_training_stands(resumed, demo_data, tmp_path):
    """With the random numbers of before, and not to be validated again."""
    states, cfg = {}, make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.max_iters': 2})

    class Save(Hook):
        def before_val(self, runner):
            states['before'] = random_state()
            disturb()

        def after_val_epoch(self, runner, metrics):
            states['saved'] = runner.train_loop.state_dict()

    if resumed:
        kept = stop_after(2, cfg)['training']['loops'][0]
        assert kept['validated'] is None
        disturb()
    train(cfg, Save(), resume=resumed)
    assert_equal(states['saved']['random'], kept['random'] if resumed else states['before'], 'random')
    assert states['saved']['validated'] == 2


def test_a_resumed_run_that_saves_before_it_trains(demo_data, tmp_path, monkeypatch):
    """Its first image cannot be read: the random numbers are those of the checkpoint still."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **NO_VALIDATION)
    kept = stop_after(1, cfg)['training']['loops'][0]
    path = newest_checkpoint(tmp_path)
    path.rename(tmp_path / 'kept.pth')

    monkeypatch.setattr(BaseDataset, '__getitem__', None)
    with pytest.raises(DataError, match='Saved .*iter_1.pth'):
        train(cfg, At(2, lambda _: disturb(), where='before_train'), resume=True)
    assert_equal(read_checkpoint(path)['training']['loops'][0], kept, 'training')


def values_of(sample):
    """Return all that was predicted for an image, as a list of tensors."""
    if 'pred_score' in sample:
        return [sample.pred_score]
    found = sample.pred_instances if 'pred_instances' in sample else sample.seg_logits
    order = found.scores.argsort(descending=True) if isinstance(found, InstanceData) else slice(None)
    return [value[order].double() if torch.is_tensor(value) else value for value in found.values()]


@pytest.mark.parametrize('config, options', (
    (TINY_CONFIG, {'model.type': 'FasterRCNN', 'model.roi_head.mask_roi_extractor': None,
                   'model.roi_head.mask_head': None}),  # mmdet pastes masks in float32
    (TINY_SEG_CONFIG, {'model.decode_head.num_classes': 5}), (TINY_CLS_CONFIG, {})), ids=('det', 'seg', 'cls'))
def test_an_image_in_a_batch_has_the_result_that_it_has_alone(config, options, demo_data, class_folders, tmp_path):
    data = class_folders if config == TINY_CLS_CONFIG else demo_data
    cfg = make_config(config, data, tmp_path, **options)
    model = randomise(build_runner(cfg).model).double().eval()
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]
    kind = dict(mmpretrain='DataSample', mmdet='DetDataSample', mmseg='SegDataSample')[cfg.default_scope]
    kind = getattr(import_module(f'{cfg.default_scope}.structures'), kind)

    def predict(step, *places):
        samples = [kind(metainfo=dict(img_shape=(h, w), ori_shape=(h * 2, w * 3), scale_factor=(1 / 3, 1 / 2)))
                   for h, w in (SIZES[i] for i in places)]
        with torch.no_grad():
            found = getattr(model, step)(dict(inputs=[images[i] for i in places], data_samples=samples))
        return [values_of(sample) for sample in found]

    wanted, counts = [predict('val_step', place)[0] for place in range(len(SIZES))], []
    model.backbone.register_forward_hook(lambda _, args, __: counts.append(len(args[0])))
    for step in ('val_step', 'test_step'):
        for got, values in zip(predict(step, *range(len(SIZES))), wanted, strict=True):
            assert values[0].numel() and len(got) == len(values)
            for a, b in zip(got, values, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    assert counts == ([2, 2, 1] if cfg.default_scope == 'mmdet' else [1, 2, 1, 1]) * 2  # one size stays together
