"""What TensorBoard, Weights & Biases and MLflow hold after a training, read with their own packages."""
import io
import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import CASES, At, assert_same_run, die, make_config, terminate, train, whole_run
from helpers.tools import environment, python, run_tool
from xcit_dense.config.loggers import LOGGERS, set_loggers
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.report import loggers
from xcit_dense.report.loggers_hook import LoggersHook, close_loggers
from xcit_dense.report.snapshots import Snapshots
from xcit_dense.train import build_runner


def config_of(config, data, work_dir, names, workers=0, **changes):
    cfg = make_config(config, data, work_dir, workers, **changes)
    set_loggers(cfg, names)
    return cfg


def events_of(work_dir):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    events = accumulator.EventAccumulator(str(work_dir / 'tensorboard'), dict(scalars=0, images=0, tensors=0))
    events.Reload()
    return events


def scalars_of(work_dir):
    events = events_of(work_dir)
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()['scalars']}


def steps_of(work_dir):
    return {name: [step for step, _ in points] for name, points in scalars_of(work_dir).items()}


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
    """By the file of each part of a run: its id, its config, and what each row has."""
    from wandb.proto.wandb_internal_pb2 import Record
    parts = {}
    for file in sorted(Path(work_dir).glob('wandb/offline-run-*/run-*.wandb')):
        config, rows = {}, []
        for record in map(Record.FromString, records_of(file.read_bytes())):
            if record.HasField('config'):
                config.update({item.key: json.loads(item.value_json) for item in record.config.update if item.key})
            if record.HasField('history'):
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json)
                             for item in record.history.item})
        parts[file.stem.removeprefix('run-'), file.parent.name] = config, rows
    return parts


def stop_at(iteration, cfg):
    """Train until a signal, and close the loggers as the tool does."""
    stopped = []
    with pytest.raises(Stopped):
        train(cfg, At(iteration, lambda runner: (terminate(runner), stopped.append(runner))))
    close_loggers(*stopped)


def warnings_of(text):
    return [line for line in text.splitlines() if 'The training continues' in line]


@pytest.mark.parametrize(('config', 'evaluated', 'metric'), [
    (TINY_CONFIG, [3, 6], 'coco/bbox_mAP'), (TINY_SEG_CONFIG, [2, 4], 'val/mIoU')])
def test_tensorboard_has_the_curves_the_config_and_pictures(config, evaluated, metric, demo_data, tmp_path,
                                                                capfd):
    pytest.importorskip('tensorboard')
    cfg = config_of(config, demo_data, tmp_path, ['tensorboard'])
    train(cfg)
    assert f'tensorboard      tensorboard --logdir {tmp_path}/tensorboard\n' in ''.join(capfd.readouterr())
    found, events = scalars_of(tmp_path), events_of(tmp_path)
    lines = [json.loads(line) for line in next(tmp_path.glob('*/vis_data/scalars.json')).read_text().splitlines()]
    wanted = [(line['step'], pytest.approx(line['loss'])) for line in lines if 'loss' in line]
    assert found['train/loss'] == wanted and len(wanted) == evaluated[-1]
    assert [value for _, value in found['train/lr']] == [pytest.approx(line['lr']) for line in lines if 'lr' in line]
    # iterations, also where mmengine counts epochs
    assert [step for step, _ in found[metric]] == evaluated
    assert found[metric][-1][1] == pytest.approx(lines[-1][metric.removeprefix('val/')])
    assert "model = dict(" in events.Tensors('config/text_summary')[0].tensor_proto.string_val[0].decode()
    names = [f'validation/{number}_{number:012d}' for number in (1, 2, 3)]
    assert events.Tags()['images'] == names  # all images of this small data set
    for name in names:
        pictures = events.Images(name)
        assert [picture.step for picture in pictures] == evaluated
        size = Image.open(io.BytesIO(pictures[0].encoded_image_string)).size
        image = Image.open(demo_data / f'val2017/{name[-12:]}.jpg')
        assert size == (2 * image.width, image.height)  # two side by side


@pytest.mark.parametrize('end', (terminate, die))
def test_a_resumed_run_continues_the_curves(end, demo_data, tmp_path):
    """What is repeated after a stop replaces what was there."""
    pytest.importorskip('tensorboard')
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['tensorboard'])
    with pytest.raises((Stopped, RuntimeError)):
        train(cfg, At(3, end, where='after_train_iter'))
    assert steps_of(tmp_path)['train/loss'][:2] == [1, 2]
    train(cfg, resume=True)
    steps = steps_of(tmp_path)
    assert steps['train/loss'] == [1, 2, 3, 4]
    assert steps['val/mIoU'] in ([2, 4], [2, 2, 4])  # the evaluation after a checkpoint is not in it


def test_a_new_run_in_the_folder_starts_new_curves(demo_data, tmp_path):
    pytest.importorskip('tensorboard')
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['tensorboard'])
    train(cfg)
    train(cfg)
    assert steps_of(tmp_path)['train/loss'] == [1, 2, 3, 4]
    assert len(list((tmp_path / 'tensorboard').iterdir())) == 2


def test_wandb_has_the_curves_the_config_and_pictures(offline_wandb, demo_data, tmp_path):
    cfg = config_of(TINY_CONFIG, demo_data, tmp_path, ['wandb'])
    stop_at(4, cfg)
    (name, _), = wandb_rows(tmp_path)
    train(cfg, resume=True)
    parts = wandb_rows(tmp_path)
    assert [key for key, _ in parts] == [name, name]  # one run
    (config, first), (_, second) = parts.values()
    assert config['model']['backbone']['type'] == 'XCiT' and config['seed' if 'seed' in config else 'randomness']
    rows = first + second
    assert [row['iteration'] for row in rows if 'train/loss' in row] == [1, 2, 3, 4, 5, 6]
    assert [row['iteration'] for row in rows if 'coco/bbox_mAP' in row] == [3, 6]
    assert [row['iteration'] for row in rows if 'validation/2_000000000002' in row] == [3, 6]
    assert len(list(tmp_path.glob('wandb/offline-run-*/files/media/images/validation/*.png'))) == 6


@pytest.mark.integration
def test_wandb_without_a_server_logs_offline(tmp_path, monkeypatch):
    pytest.importorskip('wandb')
    for name, value in dict(WANDB_BASE_URL='http://127.0.0.1:9', WANDB_API_KEY='a' * 40, HOME=str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    said = python(f'from xcit_dense.report import loggers\nloggers.print_log = lambda text, **_: print(text)\n'
                  f'from mmengine.config import Config\nlogger = loggers.WandB({str(tmp_path)!r}, False, 0)\n'
                  'print(logger.open(Config(dict(a=1))))\nlogger.scalars({"a": 1.}, 3)\nlogger.close(True)')
    name, = {key for key, _ in wandb_rows(tmp_path)}
    assert 'http://127.0.0.1:9 cannot be reached' in said and 'This training is logged offline' in said
    assert f'offline; to upload it: wandb sync {tmp_path}/wandb/offline-run-*-{name}\n' in said
    (_, rows), = wandb_rows(tmp_path).values()
    assert rows[0]['iteration'] == 3


def test_mlflow_has_the_curves_the_config_and_pictures(mlflow_store, demo_data, tmp_path, monkeypatch):
    uri, client = mlflow_store
    monkeypatch.setenv('MLFLOW_TRACKING_URI', uri)
    cfg = config_of(TINY_CONFIG, demo_data, tmp_path, ['mlflow'])
    stop_at(4, cfg)
    run, = client.search_runs([client.get_experiment_by_name(loggers.PROJECT).experiment_id],
                              f"tags.mlflow.runName = '{tmp_path.name}'")
    assert run.info.status == 'KILLED'
    train(cfg, resume=True)
    name = run.info.run_id
    run = client.get_run(name)
    assert run.info.status == 'FINISHED'
    assert run.data.params['model.backbone.type'] == 'XCiT'
    assert [metric.step for metric in client.get_metric_history(name, 'train/loss')] == [1, 2, 3, 4, 5, 6]
    assert [metric.step for metric in client.get_metric_history(name, 'coco/bbox_mAP')] == [3, 6]
    assert 'config.py' in [item.path for item in client.list_artifacts(name)]
    pictures = [item.path for item in client.list_artifacts(name, 'images') if item.path.endswith('.png')]
    assert len(pictures) == 6


@pytest.mark.slow
def test_mlflow_without_a_server_logs_into_the_work_dir(tmp_path, monkeypatch):
    mlflow = pytest.importorskip('mlflow')
    pytest.importorskip('sqlalchemy')
    monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
    logger, store = loggers.MLflow(tmp_path, False, 0), f'sqlite:///{tmp_path}/mlflow.db'
    place = logger.open(Config(dict(a=dict(b=[1, 2]), c=[dict(d='e' * 600)])))
    logger.close(True)
    assert place == f'mlflow ui --backend-store-uri {store}'
    run, = mlflow.MlflowClient(store).search_runs(['1'])
    assert run.data.params == {'a.b': '[1, 2]', 'c.0.d': 'e' * 500}


@pytest.mark.parametrize('name', ('iterations', pytest.param('epochs_workers', marks=pytest.mark.slow)))
def test_loggers_change_no_bit_of_a_training(name, mlflow_store, offline_wandb, demo_data, tmp_path,
                                             tmp_path_factory, monkeypatch, capfd):
    monkeypatch.setenv('MLFLOW_TRACKING_URI', mlflow_store[0])
    config, workers, changes = CASES[name]
    cfg = config_of(config, demo_data, tmp_path, tuple(LOGGERS), workers, **changes)
    stop_at(3, cfg)
    assert_same_run(train(cfg, resume=True), whole_run(name, demo_data, tmp_path_factory))
    assert not warnings_of(''.join(capfd.readouterr()))


class _Faulty(loggers.Logger):
    title = 'Faulty'
    fails, calls = '', []

    def __init__(self, *args):
        super().__init__(*args)
        type(self).calls = []

    def _call(self, name):
        np.random.rand(3)  # as packages do
        self.calls.append(name)
        if name == self.fails:
            raise ValueError('not written\nSQL: ...') from OSError(28, 'No space left on device')

    def open(self, cfg):
        self._call('open')
        return 'here'

    def scalars(self, values, step):
        self._call('scalars')

    def picture(self, *args):
        self._call('picture')

    def close(self, finished):
        self._call('close')


@pytest.mark.parametrize('method', ('open', 'scalars', 'picture', 'close'))
def test_a_logger_that_fails_is_one_warning(method, demo_data, tmp_path, tmp_path_factory, monkeypatch, capfd):
    monkeypatch.setitem(loggers.KINDS, 'faulty', _Faulty)
    monkeypatch.setattr(_Faulty, 'fails', method)
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['faulty'])
    assert_same_run(train(cfg), whole_run('iterations', demo_data, tmp_path_factory))
    warning, = warnings_of(''.join(capfd.readouterr()))
    assert ('Faulty failed: ValueError: not written ([Errno 28] No space left on device). The training continues '
            'without it') in warning
    assert _Faulty.calls.count(method) == 1 and _Faulty.calls[-1] == method


def test_a_stop_while_a_logger_opens_is_no_warning(demo_data, tmp_path, monkeypatch, capfd):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(loggers.KINDS, 'faulty', type('Slow', (_Faulty, ), dict(open=stop, calls=_Faulty.calls)))
    runner = build_runner(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['faulty']))
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    close_loggers(runner)
    assert not warnings_of(''.join(capfd.readouterr())) and 'close' not in loggers.KINDS['faulty'].calls


def test_a_full_disk_is_a_warning(demo_data, tmp_path, capfd):
    pytest.importorskip('tensorboard')

    def fill(runner):
        file, = (tmp_path / 'tensorboard').iterdir()
        file.unlink()
        file.symlink_to('/dev/full')

    train(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['tensorboard']), At(2, fill))
    warning, = warnings_of(''.join(capfd.readouterr()))
    assert 'TensorBoard failed: OSError: [Errno 28] No space left on device' in warning


def test_a_folder_that_cannot_be_written_is_a_warning(demo_data, tmp_path, capfd):
    pytest.importorskip('tensorboard')
    (tmp_path / 'tensorboard').write_text('a file')
    train(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['tensorboard']))
    warning, = warnings_of(''.join(capfd.readouterr()))
    assert 'TensorBoard failed: FileExistsError' in warning


def test_a_server_that_does_not_answer_is_a_warning(demo_data, tmp_path, monkeypatch, capfd):
    pytest.importorskip('mlflow')
    monkeypatch.setenv('MLFLOW_TRACKING_URI', 'http://127.0.0.1:9')
    monkeypatch.setenv('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '0')
    train(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['mlflow']))
    warning, = warnings_of(''.join(capfd.readouterr()))
    assert 'MLflow failed: ' in warning and '127.0.0.1' in warning


def test_pictures_that_cannot_be_drawn_are_a_warning(demo_data, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(loggers.KINDS, 'faulty', _Faulty)
    monkeypatch.setattr(Snapshots, '_draw', lambda *_: [][0])
    train(config_of(TINY_SEG_CONFIG, demo_data, tmp_path, ['faulty']))
    warning, = warnings_of(''.join(capfd.readouterr()))
    assert 'cannot draw validation images: IndexError' in warning
    assert 'picture' not in _Faulty.calls and _Faulty.calls.count('scalars') == 6  # 4 iterations, 2 evaluations


def test_the_handful_is_spread_and_stays(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.val_dataloader.dataset.indices = [0, 1, 2] * 7
    cfg.val_dataloader.batch_size = 4
    snapshots = Snapshots(build_runner(cfg))
    snapshots._draw = lambda sample: ()
    samples = [SimpleNamespace(cpu=lambda i=i: SimpleNamespace(img_path=f'/x/{i}.jpg')) for i in range(21)]
    for _ in range(2):
        snapshots.restart()
        found = [name for first in range(0, 21, 4) for name, in snapshots.drawn(samples[first:first + 4])]
        assert found == [f'validation/{number}_{i}' for number, i in enumerate((0, 4, 8, 12, 16, 20), 1)]


def test_classified_images_have_the_names_on_them(class_folders, tmp_path, monkeypatch):
    pytest.importorskip('mmpretrain')
    seen = []
    monkeypatch.setitem(loggers.KINDS, 'seen', type('Seen', (_Faulty, ), dict(
        picture=lambda self, *args: seen.append(args))))
    train(config_of(TINY_CLS_CONFIG, class_folders, tmp_path, ['seen']))
    names, pictures, captions, steps = zip(*seen, strict=True)
    assert len(seen) == 12 and len(set(names)) == 6 and set(steps) == {3, 6}
    assert captions[0].startswith('truth: blue; predicted: ') and pictures[0].shape == (40, 48, 3)
    assert (pictures[0][:9, :2] == pictures[0][0, 0]).all()  # the chip of a name; the rest is noise


@pytest.mark.slow
def test_only_the_first_process_logs(two_processes, demo_data, tmp_path):
    pytest.importorskip('tensorboard')
    first, second = two_processes.run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir',
                                           tmp_path, '--log', 'tensorboard')
    assert len(list(tmp_path.glob('tensorboard/*'))) == 1
    assert steps_of(tmp_path)['train/loss'] == [1, 2, 3, 4]
    assert not warnings_of(first.stdout + second.stdout)


def test_wrong_names(call_tool):
    code, message = call_tool('train', TINY_SEG_CONFIG, '--log', 'tensorflow')
    assert code == 1
    assert message == 'error: --log accepts tensorboard, wandb, mlflow; got \'tensorflow\'; did you mean tensorboard?'
    with pytest.raises(ConfigError, match="accepts tensorboard, wandb, mlflow; got 'visdom'"):
        LoggersHook(['visdom'])


def test_other_tools_need_no_package(demo_data, tmp_path, monkeypatch):
    pytest.importorskip('tensorboard')
    run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--log', 'tensorboard')
    config = tmp_path / TINY_SEG_CONFIG.name
    assert "loggers=[" in config.read_text()
    for name in ('tensorboard', 'torch.utils.tensorboard'):
        monkeypatch.setitem(sys.modules, name, None)
    run_tool('test.py', config, tmp_path, '--work-dir', tmp_path / 'test')
    run_tool('plot_curves.py', tmp_path)
    image = next((demo_data / 'images').rglob('*.jpg'))
    run_tool('predict.py', config, tmp_path, image, '--out', tmp_path / 'out')
    # a training from that config too: a warning, as the option was not given
    again = tmp_path / 'again'
    done = run_tool('train.py', config, '--work-dir', again)
    assert 'TensorBoard failed: ' in done.stdout


KILLED = '''
import os, signal, sys
sys.path[:0] = {path!r}
from helpers.runs import CASES, At, train
from mmengine.config import Config
from xcit_dense.config.loading import load_config
cfg = load_config({config!r})
train(cfg, At(3, lambda _: os.kill(os.getpid(), signal.SIGKILL)))
'''


@pytest.mark.integration
def test_a_killed_run_continues_the_curves(demo_data, tmp_path, offline_wandb):
    pytest.importorskip('tensorboard')
    cfg = config_of(TINY_SEG_CONFIG, demo_data, tmp_path / 'run', ['tensorboard', 'wandb'],
                    **{'default_hooks.checkpoint.interval': 2})
    cfg.dump(tmp_path / 'config.py')
    code = KILLED.format(path=sys.path, config=str(tmp_path / 'config.py'))
    done = subprocess.run([sys.executable, '-c', code], env=environment(), timeout=300, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert steps_of(tmp_path / 'run')['train/loss'][:2] == [1, 2]
    train(cfg, resume=True)
    assert steps_of(tmp_path / 'run')['train/loss'] == [1, 2, 3, 4]
    assert len({key for key, _ in wandb_rows(tmp_path / 'run')}) == 1
