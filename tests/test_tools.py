"""The tools as a user runs them: train, resume, test, predict, plot."""
import json
import re
import shutil

import cv2
import pytest
import torch
from conftest import MAIN_CONFIG, ROOT, SAMPLES, SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG, run_tool
from pycocotools.coco import COCO

from xcit_dense.train.curves import read_curves
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
    log = min(work_dir.glob('*/*.log'))  # other tests go on in the folder
    for text in (output, log.read_text()):
        assert text.count('param_scheduler.1 (CosineAnnealingLR) ends at 6, beyond the run of 2 epochs') == 1


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
    assert f'error: nothing to resume: no checkpoint in {tmp_path}' in done.stdout
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
    assert 'LR is set based on batch size of 8 and the current batch size is 2' in done.stdout
    # 1e-3 for batch 8, a quarter of it, at the start of the warm-up
    for name in ('lr', 'base_lr'):
        assert read_curves(tmp_path)[name][0][1] == pytest.approx(1e-3 / 4 * 0.01)


def test_testing_prints_the_table_draws_and_checks(trained, demo_data, tmp_path):
    work_dir, _ = trained
    done = run_tool('test.py', TINY_CONFIG, work_dir, '--data-root', demo_data, '--work-dir', tmp_path, '--show-dir',
                    tmp_path / 'pictures', '--at-least', 'coco/bbox_mAP=-1')
    assert done.stdout.count('Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all') == 2
    log, = tmp_path.glob('*/*.log')  # tells all, the console what matters
    for text in ('FuseHook', 'System environment:', "type='XCiT'"):
        assert text in log.read_text() and text not in done.stdout
    pictures = sorted((tmp_path / 'pictures').iterdir())
    assert len(pictures) == 3
    truth = COCO(str(demo_data / 'annotations/instances_val2017.json')).imgs[1]
    assert cv2.imread(str(pictures[0])).shape[:2] == (truth['height'], truth['width'] * 2)  # side by side
    done = run_tool('test.py', TINY_CONFIG, work_dir, '--data-root', demo_data, '--work-dir', tmp_path,
                    '--at-least', 'coco/bbox_mAP=1.1', check=False)
    assert done.returncode == 1 and 'below the 1.1 asked for' in done.stdout


def test_checkpoint_of_another_model_is_refused(trained, demo_data, tmp_path):
    done = run_tool('test.py', SMALL_CONFIG, trained[0], '--data-root', demo_data, '--work-dir', tmp_path, check=False)
    assert done.returncode == 1
    assert re.search(r'error: .*epoch_2\.pth does not fit the model', done.stdout)
    assert 'Traceback' not in done.stdout


def test_prediction_writes_pictures_and_coco_results(trained, demo_data, tmp_path):
    work_dir, _ = trained
    out = tmp_path / 'out'
    done = run_tool('predict.py', TINY_CONFIG, work_dir, demo_data / 'val2017', '--out', out, '--score-thr', 0,
                    '--cfg-options', 'model.test_cfg.rcnn.score_thr=0', cwd=tmp_path)
    assert '3 pictures' in done.stdout
    image = cv2.imread(str(demo_data / 'val2017/000000000001.jpg'))
    picture = cv2.imread(str(out / '000000000001.jpg'))
    assert picture.shape == image.shape and (picture != image).any()
    records = json.loads((out / 'results.json').read_text())
    truth = COCO(str(demo_data / 'annotations/instances_val2017.json'))
    loaded = truth.loadRes(str(out / 'results.json'))  # COCO's own reader takes it
    assert len(loaded.anns) == len(records) > 0
    for record in records:
        info = truth.imgs[record['image_id']]
        assert record['file_name'] == info['file_name']
        assert record['category_name'] == truth.cats[record['category_id']]['name']
        assert record['segmentation']['size'] == [info['height'], info['width']]
        x, y, width, height = record['bbox']
        assert 0 <= x <= x + width <= info['width'] + 1e-3 and 0 <= y <= y + height <= info['height'] + 1e-3


def test_results_carry_the_category_ids_of_the_data(trained, demo_data, tmp_path):
    checkpoint = torch.load(trained[0] / 'epoch_2.pth', weights_only=False)
    meta = checkpoint['meta']['dataset_meta']
    assert tuple(meta['category_ids']) == (1, 2, 3, 4, 5)
    meta['category_ids'] = (10, 20, 30, 40, 50)
    torch.save(checkpoint, tmp_path / 'other.pth')
    run_tool('predict.py', TINY_CONFIG, tmp_path / 'other.pth', demo_data / 'val2017', '--out', tmp_path,
             '--cfg-options', 'model.test_cfg.rcnn.score_thr=0')
    records = json.loads((tmp_path / 'results.json').read_text())
    assert records and all(meta['classes'][r['category_id'] // 10 - 1] == r['category_name'] for r in records)


def test_prediction_goes_on_past_a_broken_image_and_names_it(trained, demo_data, tmp_path):
    images = tmp_path / 'images'
    (images / 'deep').mkdir(parents=True)
    (images / 'a.jpg').write_bytes(b'no image')
    (images / 'deep/b.png').write_bytes(cv2.imencode('.png', cv2.imread(
        str(demo_data / 'val2017/000000000001.jpg')))[1].tobytes())
    done = run_tool('predict.py', TINY_CONFIG, trained[0], images, '--out', tmp_path / 'out',
                    check=False)
    assert done.returncode == 1
    assert '1 of 2 images could not be read' in done.stdout and 'a.jpg' in done.stdout
    assert (tmp_path / 'out/deep/b.jpg').is_file() and (tmp_path / 'out/results.json').is_file()


@pytest.mark.parametrize('out, words', (('images', 'would overwrite them'), ('out', 'one name but for the suffix')))
def test_prediction_overwrites_nothing(out, words, trained, demo_data, tmp_path):
    (tmp_path / 'images').mkdir()
    for suffix in ('jpg', 'JPG'):
        shutil.copy(demo_data / 'val2017/000000000001.jpg', tmp_path / f'images/a.{suffix}')
    done = run_tool('predict.py', TINY_CONFIG, trained[0], 'images', '--out', out, cwd=tmp_path, check=False)
    assert done.returncode == 1 and words in done.stdout and 'Traceback' not in done.stdout
    assert sorted(p.name for p in (tmp_path / 'images').iterdir()) == ['a.JPG', 'a.jpg']


@pytest.mark.parametrize('tool, args, words', (
    ('train.py', ['configs/nothing.py'], 'there is no config'),
    ('train.py', [MAIN_CONFIG, '--data-root', 'nowhere'], 'missing'),
    ('test.py', [SMALL_CONFIG, 'no.pth', '--data-root', '{data}'], 'there is no file'),
    ('test.py', [SMALL_CONFIG, 'no.pth', '--data-root', '{data}', '--at-least', 'mAP'], "got 'mAP'"),
    ('predict.py', [MAIN_CONFIG, 'no.pth', '{data}', '--out', 'x'], 'there is no file'),
    ('predict.py', [MAIN_CONFIG, 'no.pth', 'nowhere', '--out', 'x'], 'there is no image or folder'),
    ('plot_curves.py', ['nowhere'], 'there is no log'),
))
def test_mistakes_end_in_one_message(tool, args, words, demo_data, tmp_path, monkeypatch, call_tool):
    monkeypatch.chdir(tmp_path)
    code, message = call_tool(tool, *(demo_data if a == '{data}' else a for a in args))
    assert code == 1 and message.startswith('error: ') and words in message


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_slurm_without_a_gpu_is_refused(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--launcher', 'slurm',
                    check=False)
    assert done.returncode == 1 and 'error: --launcher slurm needs GPUs' in done.stdout
    assert 'Traceback' not in done.stdout


def test_weights_that_cannot_be_fetched_name_the_switch_and_the_place(demo_data, tmp_path):
    done = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--cfg-options',
                    'model.backbone.init_cfg.type=Pretrained',
                    'model.backbone.init_cfg.checkpoint=xcit://small_12_p8_384_dist',
                    env=dict(TORCH_HOME=str(tmp_path / 'torch'), https_proxy='http://127.0.0.1:9'), check=False)
    assert done.returncode == 1
    assert '--no-pretrained' in done.stdout and 'Traceback' not in done.stdout
    assert f'{tmp_path}/torch/hub/checkpoints/xcit_small_12_p8_384_dist.pth' in done.stdout


def test_measuring_prints_what_it_saw(demo_data, tmp_path):
    out = tmp_path / 'measured.json'
    done = run_tool('measure.py', TINY_CONFIG, '--data-root', demo_data, '--iterations', 4, '--images', 2, '--out', out)
    result = json.loads(out.read_text())
    assert result['backbone_errors']['float32'] < 5e-6 and result['backbone_errors']['float32 gradient'] < 5e-5
    assert result['backbone_errors']['autocast bfloat16'] < 0.1
    assert len(result['training']['losses']) == 4 and result['training']['seconds_per_iteration'] > 0
    assert 0.1 < result['training']['peak_memory_gib'] < 8
    assert f'loss {result["training"]["losses"][0]:.3f} to' in done.stdout


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


def test_tools_run_without_the_checkout_as_working_folder(tmp_path):
    assert tmp_path != ROOT
    run_tool('make_demo_data.py', tmp_path / 'data', '--train', 1, '--val', 1, '--size', 48, cwd=tmp_path)
    assert (tmp_path / 'data/annotations/instances_val2017.json').is_file()


@pytest.mark.parametrize('readable', (0, 1))
def test_prediction_lists_all_that_cannot_be_read(readable, trained, demo_data, tmp_path, call_tool):
    images, out = tmp_path / 'images', tmp_path / 'out'
    images.mkdir()
    names = [f'broken_{i}.jpg' for i in range(7)]
    for name in names:
        (images / name).write_bytes(b'no image')
    if readable:
        shutil.copy(demo_data / 'val2017/000000000001.jpg', images)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], images, '--out', out)
    assert code == 1 and message.startswith(f'error: 7 of {7 + readable} images could not be read; wrote ')
    assert [line.strip() for line in message.splitlines()[1:]] == [str(images / name) for name in names]
    if readable:
        assert '; wrote 1 pictures and ' in message
        assert {p.name for p in out.iterdir()} == {'000000000001.jpg', 'results.json'}
    else:
        assert '; wrote nothing. ' in message and not out.exists()


@pytest.mark.parametrize('out', ('file', 'file/out', '/proc/out'))  # the last is closed to root too
def test_prediction_names_a_folder_that_cannot_be_written(out, trained, demo_data, tmp_path, monkeypatch, call_tool):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], demo_data / 'val2017', '--out', out)
    assert code == 1 and message.startswith(f'error: cannot write into {out}: ') and len(message.splitlines()) == 1


def test_a_label_map_that_cannot_be_written_is_no_success(trained_segmentor, demo_data, tmp_path, call_tool):
    taken = tmp_path / 'labels/000000000001.png'
    taken.mkdir(parents=True)
    code, message = call_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0],
                              demo_data / 'images/validation/000000000001.jpg', '--out', tmp_path)
    assert code == 1 and message.startswith('error: cannot write into') and str(taken) in message
