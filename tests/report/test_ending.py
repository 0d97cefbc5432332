"""What a training says of its validations and at its end, and the metric that it goes by."""
import re
import shlex
import time
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, Metrics, make_config, terminate, train
from helpers.tools import run_tool
from xcit_dense.config.loading import list_models, load_config, read_config
from xcit_dense.config.options import set_best
from xcit_dense.data.evaluators import key_metric
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.report import curves, ending
from xcit_dense.report.ending import EndingHook
from xcit_dense.train.saving import DenseCheckpointHook
from xcit_dense.train.startup import StartupHook


@pytest.mark.slow
def test_what_it_says_to_do_next_works_as_typed(demo_data, tmp_path, monkeypatch):
    """In a folder whose name has a space. The curves are drawn, and both commands read the best checkpoint."""
    monkeypatch.setattr(ending, 'plot_curves', curves.plot_curves)
    folder = tmp_path / 'my run'
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', folder, cwd=tmp_path).stdout
    best, = folder.glob('best_*.pth')
    assert re.search(rf'\nbest +mIoU [\d.]+ at iteration \d: {best.name}\n'
                     r'last +mIoU [\d.]+ at iteration 4: iter_4.pth\ncurves +my run/curves.png\n'
                     'the config may not fit the data:\n', done)
    assert (folder / 'curves.png').stat().st_size > 10000
    commands = [shlex.split(line)[3:] for line in done.partition('\nnext:\n')[2].splitlines()]
    assert [command[0] for command in commands] == ['test', 'predict']
    for tool, *args in commands:
        text = run_tool(f'{tool}.py', *args, cwd=tmp_path).stdout
        assert text.count(f'checkpoint of my run: best of 2 validations: {best.name}\n') == 1, tool
    assert (folder / 'report/report.html').is_file() and (folder / 'predictions/classes.json').is_file()


def test_each_validation_has_a_line_and_a_stop_forgets_none(demo_data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ending, 'plot_curves', curves.plot_curves)
    (tmp_path / 'curves.png').write_text('of a user')
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'train_cfg.max_iters': 5, 'train_cfg.val_interval': 1, 'default_hooks.checkpoint.interval': 5})
    set_best(cfg, patience=2)
    metrics = Metrics(1., 3., 2.5, 3.)
    with pytest.raises(Stopped):
        train(cfg, metrics, At(2, terminate))
    train(cfg, metrics, resume=True)
    text = capsys.readouterr().out
    assert re.findall(r'validation \d: .*?(?=; expected|\n)', text) == [
        'validation 1: mIoU 1', 'validation 2: mIoU 3, the best so far (before: 1 at iteration 1)',
        'validation 3: mIoU 2.5; the best so far: 3 at iteration 2',
        'validation 4: mIoU 3, as good as the best so far, 3 at iteration 2']
    assert re.search(r'validation 1: .*; expected end \d\d \w+ \d\d:\d\d, in \d+ minutes?\n', text)
    assert len(re.findall(r'validated in [\d.]+ s: model \d+%', text)) == 4
    assert len(re.findall(r'first iteration: [\d.]+ s with the start of the workers\n', text)) == 2
    assert text.count('\ntrained') == 1  # a run that is to go on has no end
    _, end = text.split('\ntrained ')
    assert end.startswith(' 4 iterations, stopped before 5\nbest     mIoU 3 at iteration 2: best_mIoU_iter_2.pth\n')
    assert 'curves   not drawn: plot_curves would overwrite' in end
    assert (tmp_path / 'curves.png').read_text() == 'of a user'
    found = curves.read_curves(tmp_path)
    assert found['val/mIoU'] == [(1, 1.), (2, 3.), (3, 2.5), (4, 3.)]
    assert [step for step, _ in found['loss']] == [1, 2, 3, 4]


def test_a_detector_goes_by_its_masks(trained):
    best, = trained[0].glob('best_*.pth')
    assert re.search(rf'best +coco/segm_mAP [\d.e-]+ at epoch {best.stem[-1]}: {best.name}\n', trained[1])
    assert re.search(r'trained +2 epochs \(6 iterations\)\n', trained[1])
    assert trained[1].count('validation 2: coco/segm_mAP') == 1 and 'misfit' not in trained[1]


def test_the_metric_of_each_config():
    """Those that read their classes from the data keep the best by it; the authors' recipes stay as they are."""
    found = {}
    for name in list_models():
        cfg = read_config(name)
        found[name], before = key_metric(cfg), 'save_best' in cfg.default_hooks.checkpoint
        set_best(cfg)
        assert not before and cfg.default_hooks.checkpoint.get('save_best') == (
            found[name] if cfg.get('classes_from_data') else None), name
    kinds = dict(maskrcnn='coco/segm_mAP', cascade='coco/segm_mAP', fasterrcnn='coco/bbox_mAP',
                 retinanet='coco/bbox_mAP', semfpn='mIoU', upernet='mIoU', segformer='mIoU', xcit='accuracy/top1',
                 atss='coco/bbox_mAP', condinst='coco/segm_mAP', deformable='coco/bbox_mAP', dino='coco/bbox_mAP',
                 mask2former='coco/segm_mAP')
    assert found == {name: None if '_dino' in name else 'mIoU' if name.endswith(('_ade20k', '_seg'))
                     else kinds[name.partition('_')[0]] for name in found}


@pytest.mark.parametrize('changes, wanted', (
    ({'default_hooks.checkpoint.save_best': ['aAcc', 'mIoU']}, 'aAcc'), ({'val_cfg': None}, None),
    ({'val_evaluator.iou_metrics': ['mDice']}, None), ({'val_evaluator.prefix': 'own'}, 'own/mIoU'),
    ({'default_hooks.checkpoint.save_best': 'auto'}, 'mIoU')))
def test_the_metric_of_a_changed_config(changes, wanted):
    cfg = load_config(TINY_SEG_CONFIG, cfg_options=changes)
    assert key_metric(cfg) == wanted
    if wanted is None:
        with pytest.raises(ConfigError, match='--patience needs a metric'):
            set_best(cfg, patience=3)


def runner_of(cfg, folder, infos, **others):
    return SimpleNamespace(cfg=cfg, work_dir=str(folder), iter=10, epoch=1, hooks=[],
                           message_hub=SimpleNamespace(runtime_info=infos),
                           train_loop=SimpleNamespace(max_iters=10), **others)


def test_without_validation_the_end_is_short(tmp_path):
    cfg, hook = read_config('xcit_n12_p16_dino_small'), StartupHook()
    hook.misfit = 'it does not fit'
    runner = runner_of(cfg, tmp_path, dict(last_ckpt='a/iter_10.pth'))
    runner.hooks = [hook]
    assert EndingHook().describe_end(runner).splitlines() == [
        'trained  10 iterations', 'last     iter_10.pth', f'curves   {tmp_path}/curves.png', 'it does not fit']


def test_the_best_that_the_resumed_run_left_elsewhere_has_its_path(tmp_path):
    """Only of one in the work dir is the name enough."""
    infos = dict(of_validations=[[5, 40.]], best_ckpt=str(tmp_path / 'before/best_iter_5.pth'))
    (tmp_path / 'run').mkdir()
    runner = runner_of(read_config('xcit_n12_p8_imagenet'), tmp_path / 'run', infos)
    assert f'at iteration 5: {tmp_path}/before/best_iter_5.pth\n' in EndingHook().describe_end(runner)
    (tmp_path / 'run/best_iter_5.pth').touch()
    infos['best_ckpt_accuracy/top1'] = infos.pop('best_ckpt')  # of one of several metrics
    assert 'at iteration 5: best_iter_5.pth\n' in EndingHook().describe_end(runner)


def test_a_classifier_classifies_next_and_what_is_not_kept_is_said(tmp_path):
    cfg = read_config('xcit_n12_p8_imagenet')
    runner = runner_of(cfg, tmp_path, dict(of_validations=[[5, 40.], [10, 30.]], last_ckpt='a/iter_10.pth'))
    text = EndingHook().describe_end(runner)
    assert ('best     accuracy/top1 40 at iteration 5, not kept: --cfg-options '
            'default_hooks.checkpoint.save_best=accuracy/top1 keeps it\n') in text
    assert re.search(f'xcit_dense test .*xcit_n12_p8_imagenet.py {tmp_path} --report\n', text)
    assert text.endswith(f'xcit_dense classify {tmp_path} IMAGES --out {tmp_path}/classified.json')
    runner.message_hub.runtime_info['of_validations'] = [[5, 40.]]
    cfg.default_hooks.checkpoint.update(save_best='of_a_user')  # by no rule that mmengine knows
    assert '\nbest ' not in EndingHook().describe_end(runner)
    cfg.default_hooks.checkpoint.update(rule='less')
    runner.message_hub.runtime_info['of_validations'] = [[5, 40.], [10, 30.], [15, 50.]]
    assert '\nbest     of_a_user 30 at iteration 10' in EndingHook().describe_end(runner)


def test_minus_one_is_no_result(tmp_path):
    """COCO's metrics have it without an object to compare with; of a detector that finds nothing mmdet has none."""
    cfg = read_config('maskrcnn_xcit_n12_p16_small')
    runner = runner_of(cfg, tmp_path, dict(of_validations=[[1, -1.]], last_ckpt='a/iter_10.pth'))
    text = EndingHook().describe_end(runner)
    assert 'best     none: the validation data has no object that can be evaluated\n' in text
    assert DenseCheckpointHook(save_best='coco/segm_mAP').save_best_of(None, {'coco/segm_mAP': -1.}) is None
    said = []
    runner = SimpleNamespace(_train_loop=SimpleNamespace(run=None), cfg=Config(), logger=SimpleNamespace(
        info=said.append))
    EndingHook().after_val_epoch(runner, {})
    assert said == ['validation: no metric; a detector that finds nothing has none']


def test_the_expected_end_counts_from_where_this_process_began(monkeypatch):
    hook, now = EndingHook(), time.mktime((2026, 1, 31, 23, 0, 0, 0, 0, -1))
    monkeypatch.setattr(ending, 'time', SimpleNamespace(
        time=lambda: now, strftime=time.strftime, localtime=lambda at=None: time.localtime(at or now)))
    runner = SimpleNamespace(iter=100, _train_loop=SimpleNamespace(max_iters=400, run=None), cfg=Config(), epoch=0)
    hook.after_val_epoch(runner, {'of a user': 'no number'})
    hook.before_train_epoch(runner)
    assert hook._expected_end(runner) == ''
    runner.iter, now = 200, now + 1800
    assert hook._expected_end(runner) == 'expected end 01 Feb 00:30, in 60 minutes'
    runner.iter = 399
    assert hook._expected_end(runner) == 'expected end 31 Jan 23:30, in 1 minute'
    hook.before_train_epoch(runner)  # a later epoch
    runner.iter = 400
    assert hook._expected_end(runner) == ''
