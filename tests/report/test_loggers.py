"""What TensorBoard and Weights & Biases hold after a training, read with their own packages."""
import io
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.paths import TINY_CLS_CONFIG, TINY_SEG_CONFIG
from helpers.runs import CASES, At, assert_same_run, make_config, terminate, train, whole_run
from helpers.tools import environment, python, run_tool
from xcit_dense.config.options import add_hook
from xcit_dense.errors import Stopped
from xcit_dense.report import hooks, loggers
from xcit_dense.report.hooks import LoggersHook, Snapshots, close_loggers
from xcit_dense.train import build_runner

METHODS = 'open', 'scalars', 'picture', 'close'
#: Of the training that is `logged`.
STEPS = {'train/loss': [1, 2, 3, 4], 'train/lr': [1, 2, 3, 4], 'val/mIoU': [2, 4]}


def config_of(config, data, work_dir, names, workers=0, **changes):
    cfg = make_config(config, data, work_dir, workers, **changes)
    add_hook(cfg, 'LoggersHook', loggers=names)
    return cfg


def events_of(work_dir):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    events = accumulator.EventAccumulator(str(work_dir / 'tensorboard'), dict(scalars=0, images=0, tensors=0))
    events.Reload()
    return events


def steps_of(work_dir):
    events = events_of(work_dir)
    return {name: [event.step for event in events.Scalars(name)] for name in events.Tags()['scalars']}


def records_of(data):
    """The records in a file of LevelDB's log format, after a header of 7 bytes."""
    place, parts, block = 7, b'', 2**15
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack('<IHB', data[place:place + 7])
        place += 7 + length
        parts += data[place - length:place]
        if kind in (1, 4):  # whole, or the last part of one
            yield parts
            parts = b''


def wandb_rows(work_dir):
    """By the file of each part of a run: its id, its config, what each row has, and the code of its end."""
    from wandb.proto.wandb_internal_pb2 import Record
    parts = {}
    for file in sorted(Path(work_dir).glob('wandb/offline-run-*/run-*.wandb')):
        config, rows, code = {}, [], None
        for record in map(Record.FromString, records_of(file.read_bytes())):
            if record.HasField('config'):
                config.update({item.key: json.loads(item.value_json) for item in record.config.update if item.key})
            if record.HasField('history'):
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json)
                             for item in record.history.item})
            if record.HasField('exit'):
                code = record.exit.exit_code
        parts[file.stem.removeprefix('run-'), file.parent.name] = config, rows, code
    return parts


def warnings_of(work_dir):
    return [line for log in work_dir.glob('*/*.log') for line in log.read_text().splitlines()
            if 'The training continues' in line]


@pytest.fixture(scope='module')
def logged(demo_data, tmp_path_factory):
    """A training with all loggers, stopped after 3 iterations and resumed; and what was logged by then."""
    pytest.importorskip('tensorboard')
    wandb = pytest.importorskip('wandb')
    work_dir = tmp_path_factory.mktemp('logged')
    cfg = config_of(TINY_SEG_CONFIG, demo_data, work_dir, list(loggers.KINDS), **CASES['iterations'])
    stopped = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('WANDB_MODE', 'offline')
        with pytest.raises(Stopped):
            train(cfg, At(3, lambda runner: (terminate(runner), stopped.append(runner))))
        close_loggers(*stopped)  # as the tool does
        before = wandb_rows(work_dir)
        content = train(cfg, resume=True)
        wandb.teardown()
    return SimpleNamespace(work_dir=work_dir, before=before, content=content)


def test_loggers_change_no_bit_of_a_training(logged, demo_data, tmp_path_factory):
    assert_same_run(logged.content, whole_run('iterations', demo_data, tmp_path_factory))
    assert not warnings_of(logged.work_dir)


def test_tensorboard_has_the_curves_the_config_and_pictures(logged, demo_data):
    work_dir, events = logged.work_dir, events_of(logged.work_dir)
    logs = ''.join(log.read_text() for log in work_dir.glob('*/*.log'))
    assert f'tensorboard      tensorboard --logdir {work_dir}/tensorboard\n' in logs
    lines = [json.loads(line) for log in sorted(work_dir.glob('*/vis_data/scalars.json'))
             for line in log.read_text().splitlines()]
    for name, steps in STEPS.items():
        assert [event.step for event in events.Scalars(name)] == steps
        assert [event.value for event in events.Scalars(name)] == pytest.approx([
            line[name.partition('/')[2]] for line in lines if name.partition('/')[2] in line])
    assert "type='XCiT'" in events.Tensors('config/text_summary')[0].tensor_proto.string_val[0].decode()
    names = [f'validation/{number}_{number:012d}' for number in (1, 2, 3)]
    assert events.Tags()['images'] == names  # all images of this small data set
    for name in names:
        pictures = events.Images(name)
        assert [picture.step for picture in pictures] == [2, 4]
        size = Image.open(io.BytesIO(pictures[0].encoded_image_string)).size
        image = Image.open(demo_data / f'val2017/{name[-12:]}.jpg')
        assert size == (2 * image.width, image.height)  # two side by side


def test_wandb_has_the_curves_the_config_and_pictures(logged):
    parts = wandb_rows(logged.work_dir)
    assert len(logged.before) == 1 and len(parts) == 2 and len({name for name, _ in parts}) == 1  # one run
    config = next(iter(parts.values()))[0]
    assert config['model']['backbone']['type'] == 'XCiT' and config['randomness']['seed'] == 3
    rows = [row for _, rows, _ in parts.values() for row in rows]
    assert [code for _, _, code in parts.values()] == [1, 0]  # stopped, and finished
    for name, steps in {**STEPS, 'validation/2_000000000002': [2, 4]}.items():
        assert [row['iteration'] for row in rows if name in row] == steps
    assert len(list(logged.work_dir.glob('wandb/offline-run-*/files/media/images/validation/*.png'))) == 6


def test_a_resumed_run_continues_the_curves(tmp_path):
    """What is repeated after a stop replaces what was there; a new run in the folder starts new curves."""
    pytest.importorskip('tensorboard')
    for number, (start, logs, steps) in enumerate((
            (0, (1, 2, 3), [1, 2, 3]), (2, (3, 4), [1, 2, 3, 4]), (0, (1, 2), [1, 2]))):
        logger = loggers.TensorBoard(tmp_path, start, None)
        logger.open(Config())
        for step in logs:
            logger.scalars({'train/loss': float(number)}, step)
        logger.close(True)
        assert steps_of(tmp_path)['train/loss'] == steps


@pytest.mark.integration
def test_wandb_without_a_server_logs_offline(tmp_path, monkeypatch):
    pytest.importorskip('wandb')
    for name, value in dict(WANDB_BASE_URL='http://127.0.0.1:9', WANDB_API_KEY='a' * 40, WANDB_PROJECT='mine',
                            HOME=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    said = python(f'from xcit_dense.report import loggers\nloggers.print_log = lambda text, **_: print(text)\n'
                  f'from mmengine.config import Config\nlogger = loggers.WandB({str(tmp_path)!r}, 0, "abc")\n'
                  'print(logger.open(Config(dict(a=1))), logger._run.project)\n'
                  'logger.scalars({"a": 1.}, 3)\nlogger.close(True)')
    assert [key for key, _ in wandb_rows(tmp_path)] == ['abc']  # the run that it would have continued
    assert 'Weights & Biases: ' in said and 'This training is logged offline' in said
    assert f'offline; to upload it: wandb sync {tmp_path}/wandb/offline-run-*-abc mine\n' in said
    (_, rows, _), = wandb_rows(tmp_path).values()
    assert rows[0]['iteration'] == 3


def add_logger(monkeypatch, kind, fails='', **functions):
    """Add a kind of logger, of which one method may fail; return the list of the calls of the others."""
    calls = []

    def call(name):
        np.random.rand(3)  # as packages do
        calls.append(name)
        if name == fails:
            raise ValueError('not written\nSQL: ...')
        return 'here'

    functions = {**{name: lambda *_, name=name: call(name) for name in METHODS}, **functions, 'title': f'A {kind}'}
    monkeypatch.setitem(loggers.KINDS, kind, type(kind, (loggers.Logger, ), functions))
    return calls


def test_a_logger_that_fails_is_one_warning(demo_data, tmp_path, tmp_path_factory, monkeypatch):
    calls = {name: add_logger(monkeypatch, name, name) for name in METHODS}
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path, list(METHODS))
    assert_same_run(train(cfg), whole_run('iterations', demo_data, tmp_path_factory))
    for name, said in zip(('open', 'scalars', 'picture', 'close'), warnings_of(tmp_path), strict=True):
        assert f'A {name} failed: ValueError: not written. The training continues without it' in said
        assert calls[name].count(name) == 1 and calls[name][-1] == name


def test_a_full_disk_and_a_logger_that_is_gone_are_warnings(demo_data, tmp_path, monkeypatch):
    """So are pictures that cannot be drawn; a stop while a logger opens is none."""
    pytest.importorskip('tensorboard')

    def fill(runner):
        file, = (tmp_path / 'tensorboard').iterdir()
        file.unlink()
        file.symlink_to('/dev/full')

    calls = add_logger(monkeypatch, 'quiet')
    monkeypatch.setattr(Snapshots, '_draw', lambda *_: [][0])
    train(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['tensorboard', 'mlflow', 'quiet']), At(2, fill))
    gone, disk, pictures = warnings_of(tmp_path)
    assert 'there is no logger mlflow, only tensorboard, wandb' in gone
    assert 'TensorBoard failed: OSError: [Errno 28] No space left on device' in disk
    assert 'Drawing of validation images failed: IndexError' in pictures
    assert 'picture' not in calls and calls.count('scalars') == 6  # 4 iterations, 2 evaluations

    calls = add_logger(monkeypatch, 'slow', open=Mock(side_effect=KeyboardInterrupt))
    runner = build_runner(config_of(TINY_SEG_CONFIG, demo_data, tmp_path / 'stopped', ['slow']))
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    close_loggers(runner)
    assert not warnings_of(tmp_path / 'stopped') and 'close' not in calls


def test_the_handful_is_spread_and_stays(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.val_dataloader.dataset.indices = [0, 1, 2] * 7
    cfg.val_dataloader.batch_size = 4
    snapshots, runner = Snapshots(), build_runner(cfg)
    snapshots._draw = lambda sample: ()
    samples = [SimpleNamespace(cpu=lambda i=i: SimpleNamespace(img_path=f'/x/{i}.jpg')) for i in range(21)]
    for _ in range(2):
        snapshots.begin(runner)
        found = [name for first in range(0, 21, 4) for name, _ in snapshots.drawn(samples[first:first + 4])]
        assert found == [f'validation/{number}_{i}' for number, i in enumerate((0, 4, 8, 12, 16, 20), 1)]


def test_large_pictures_are_made_smaller():
    snapshots, picture = Snapshots(), np.zeros((900, 1500, 3), np.uint8)
    snapshots._reader = SimpleNamespace(load=lambda path: dict(img=picture))
    snapshots._draw_sample = lambda picture, sample: np.concatenate([picture, picture], 1)
    assert snapshots._draw(SimpleNamespace(img_path='a')).shape == (480, 1600, 3)


def test_a_classifier_is_logged_by_iterations_with_the_names_on_its_images(class_folders, tmp_path, monkeypatch):
    """Where mmengine counts epochs."""
    pytest.importorskip('mmpretrain')
    seen, steps = [], {}
    add_logger(monkeypatch, 'seen', picture=lambda self, *args: seen.append(args), scalars=lambda self, values, step: [
        steps.setdefault(name, []).append(step) for name in values])
    train(config_of(TINY_CLS_CONFIG, class_folders, tmp_path, ['seen']))
    assert steps['train/loss'] == [1, 2, 3, 4, 5, 6] and steps['accuracy/top1'] == [3, 6]
    names, pictures, places = zip(*seen, strict=True)
    assert len(seen) == 12 and len(set(names)) == 6 and set(places) == {3, 6}
    assert pictures[0].shape == (40, 48, 3)


@pytest.fixture
def no_tensorboard(monkeypatch):
    for name in ('tensorboard', 'torch.utils.tensorboard'):
        monkeypatch.setitem(sys.modules, name, None)


def test_a_logger_that_is_missing_or_misspelt_stops_before_the_start(no_tensorboard, demo_data, tmp_path, call_tool):
    code, message = call_tool('train', TINY_SEG_CONFIG, '--log', 'tensorflow')
    assert code == 2 and "invalid choice: 'tensorflow' (choose from" in message
    code, message = call_tool('train', TINY_SEG_CONFIG, '--data-root', demo_data, '--log', 'tensorboard', '--work-dir',
                              tmp_path / 'run')
    assert code == 1 and 'pip install tensorboard' in message and not (tmp_path / 'run').exists()


def test_other_tools_need_no_package(no_tensorboard, trained_segmentor, demo_data, tmp_path):
    config = tmp_path / 'config.py'
    config_of(TINY_SEG_CONFIG, demo_data, tmp_path / 'run', ['tensorboard']).dump(config)
    assert 'loggers=[' in config.read_text()
    run_tool('test.py', config, trained_segmentor[0], '--work-dir', tmp_path / 'test')
    image = next((demo_data / 'images').rglob('*.jpg'))
    run_tool('predict.py', config, trained_segmentor[0], image, '--out', tmp_path / 'out')
    # a training from that config too: a warning, as the option was not given
    assert 'TensorBoard failed: ' in run_tool('train.py', config, '--work-dir', tmp_path / 'again').stdout


@pytest.mark.integration
def test_a_killed_run_continues_the_curves(demo_data, tmp_path, offline_wandb):
    pytest.importorskip('tensorboard')
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path / 'run', ['tensorboard', 'wandb'],
                    **{'default_hooks.checkpoint.interval': 2})
    cfg.dump(tmp_path / 'config.py')
    code = ('import os\nfrom helpers.runs import At, train\nfrom xcit_dense.config.loading import load_config\n'
            f'train(load_config({str(tmp_path / "config.py")!r}), At(3, lambda _: os.kill(os.getpid(), 9)))')
    done = subprocess.run([sys.executable, '-c', code], env=environment(), timeout=300, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert steps_of(tmp_path / 'run')['train/loss'][:2] == [1, 2]
    train(cfg, resume=True)
    assert steps_of(tmp_path / 'run')['train/loss'] == [1, 2, 3, 4]
    assert len({key for key, _ in wandb_rows(tmp_path / 'run')}) == 1


def test_a_branch_of_a_run_in_another_folder_is_another_run(tmp_path, monkeypatch):
    given = []
    monkeypatch.setitem(loggers.KINDS, 'seen', lambda work_dir, step, run: given.append((step, run)) or SimpleNamespace(
        open=lambda cfg: ''))
    for folder, is_resumed, is_first in ((tmp_path, True, True), (tmp_path / 'before', True, True),
                                         (tmp_path.parent, True, True), (tmp_path, False, True),
                                         (tmp_path, True, False)):
        monkeypatch.setattr(hooks, 'is_first_process', lambda is_first=is_first: is_first)
        infos = dict(seen_run=('abc', str(folder)))
        LoggersHook(['seen', 'seen']).before_train(SimpleNamespace(
            message_hub=SimpleNamespace(runtime_info=infos), visualizer=SimpleNamespace(add_scalars=None), iter=7,
            work_dir=tmp_path, cfg=Config(), _resume=is_resumed))
    assert given == [(7, 'abc'), *[(7, None)] * 3]
