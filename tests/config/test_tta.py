"""Tests with ``--tta``: the views of each framework, what a config sets itself, and the same merged by hand."""
import copy

import pytest
import torch
from mmengine.registry import DATASETS, MODELS, init_default_scope

from helpers.models import randomise
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import make_config
from helpers.segmentors import let_many_classes_win
from helpers.tools import run_tool
from xcit_dense.config.testing import _augmented, set_tta
from xcit_dense.errors import ConfigError
from xcit_dense.train import build_runner

RATIOS = (1, 0.75, 1.25)
LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackDetInputs', meta_keys=('img_id', 'ori_shape'))


def test_views_of_a_detector():
    """The flip comes before boxes and padding: mmdet undoes it in the image without padding."""
    steps = _augmented([LOAD, dict(type='Resize', scale=(1333, 800), keep_ratio=True), dict(
        type='LoadAnnotations', with_bbox=True), dict(type='Pad', size=(640, 320)), PACK], RATIOS)
    assert [step['type'] for step in steps] == ['LoadImageFromFile', 'TestTimeAug']
    sizes, flips, annotations, pad, pack = steps[1]['transforms']
    assert [step['scale'] for step in sizes] == [(1333, 800), (1000, 600), (1666, 1000)]  # the plain one first
    assert all(step['keep_ratio'] for step in sizes)
    assert [step['prob'] for step in flips] == [0, 1]
    assert annotations == [dict(type='LoadAnnotations', with_bbox=True)] and pad[0]['size'] == (800, 400)
    assert pack[0]['meta_keys'] == ('img_id', 'ori_shape', 'flip', 'flip_direction')


def test_sizes_of_any_step():
    for resize, sizes in (
            ([dict(type='mmdet.Resize', scale_factor=2.)],
             [dict(type='mmdet.Resize', scale_factor=factor) for factor in (2., 1.5, 2.5)]),
            ([dict(type='Resize', scale=64)], [dict(type='Resize', scale=scale) for scale in (64, 48, 80)])):
        load, views = _augmented([LOAD, *resize, PACK], RATIOS)
        assert views['transforms'][0] == sizes and load == LOAD
    for other in ([], [dict(type='ResizeToMultiple')]):  # only flipped
        load, views = _augmented([LOAD, *other, PACK], RATIOS)
        assert load == LOAD and [step['prob'] for step in views['transforms'][0]] == [0, 1]
        assert len(views['transforms']) == len(other) + 2


def test_a_config_may_have_its_own(demo_data, tmp_path):
    """Otherwise boxes are merged as the model merges its own."""
    def changed(**changes):
        cfg = make_config(TINY_CONFIG, demo_data, tmp_path, **changes)
        set_tta(cfg)
        return cfg

    own = dict(type='DetTTAModel', tta_cfg=dict(nms=dict(type='soft_nms'), max_per_img=7))
    cfg = changed(tta_pipeline=[LOAD, dict(type='TestTimeAug', transforms=[[PACK]])], tta_model=own)
    assert cfg.test_dataloader.dataset.pipeline == cfg.tta_pipeline
    model = make_config(TINY_CONFIG, demo_data, tmp_path).model
    assert cfg.model == dict(type='MaskTTAModel', tta_cfg=own['tta_cfg'], module=model)  # which merges masks too
    cfg = changed(tta_model=dict(type='Own'))
    assert cfg.model.type == 'Own' and cfg.test_dataloader.dataset.pipeline[1].type == 'TestTimeAug'
    cfg = changed(**{'model.test_cfg.rcnn.max_per_img': 17, 'model.test_cfg.rcnn.nms.iou_threshold': 0.31})
    assert cfg.model.tta_cfg == dict(max_per_img=17, nms=dict(type='nms', iou_threshold=0.31))
    cfg = changed(**{'model.test_cfg': dict(_delete_=True, max_per_img=50)})  # without NMS
    assert cfg.model.tta_cfg.nms.iou_threshold == 0.5
    for options, words in (({'default_scope': 'other', 'model': dict(_delete_=True, type='Other')}, "'Other'"),
                           ({'test_dataloader.dataset.pipeline': []}, 'no pipeline')):
        cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
        cfg.merge_from_dict(options)
        with pytest.raises(ConfigError, match=words):
            set_tta(cfg)


def plain_and_merged(cfg, model, ratios):
    """The predictions of a model for each view of the first test image, without `TestTimeAug`, and the merged one."""
    pipeline, plain = cfg.test_dataloader.dataset.pipeline, []
    place = next((place for place, step in enumerate(pipeline) if step.type == 'Resize'), len(pipeline) - 2)
    for ratio in ratios:
        for prob in (0., 1.):
            steps = copy.deepcopy(pipeline)
            if ratio != 1:
                steps[place].scale = tuple(round(side * ratio) for side in steps[place].scale)
            steps.insert(place + 1, dict(type='RandomFlip', prob=prob))
            data = DATASETS.build(dict(cfg.test_dataloader.dataset, pipeline=steps))[0]
            plain += model.test_step({name: [value] for name, value in data.items()})
    set_tta(cfg)
    data = DATASETS.build(cfg.test_dataloader.dataset)[0]
    merged, = MODELS.build(dict(cfg.model, module=model)).test_step(
        {name: [[value] for value in values] for name, values in data.items()})
    return plain, merged


@torch.no_grad()
@pytest.mark.parametrize('mode', ('whole', 'slide'))
def test_a_segmentor_equals_merging_by_hand(mode, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    next(step for step in cfg.test_dataloader.dataset.pipeline if step.type == 'Resize').scale = (64, 64)
    if mode == 'slide':
        cfg.model.test_cfg = dict(mode='slide', crop_size=(64, 64), stride=(64, 64))
    init_default_scope('mmseg')
    model = let_many_classes_win(randomise(MODELS.build(cfg.model)).eval())
    plain, merged = plain_and_merged(cfg, model, (1, 0.5, 0.75, 1.25, 1.5, 1.75))
    scores = [sample.seg_logits.data.softmax(0) for sample in plain]
    wanted = torch.stack(scores).mean(0)
    assert len(scores) == 12 and not torch.equal(scores[0], scores[1])
    assert (wanted - scores[0]).abs().max() > 0.01  # the views differ
    torch.testing.assert_close(merged.seg_logits.data, wanted)
    assert torch.equal(merged.pred_sem_seg.data[0], merged.seg_logits.data.argmax(0))


@torch.no_grad()
def test_a_classifier_equals_merging_by_hand(class_folders, tmp_path):
    pytest.importorskip('mmpretrain')
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path)
    init_default_scope('mmpretrain')
    (first, second), merged = plain_and_merged(cfg, randomise(MODELS.build(cfg.model)).eval(), (1, ))
    torch.testing.assert_close(merged.pred_score, (first.pred_score + second.pred_score) / 2)


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_the_tool_merges_with_all_other_options(config, demo_data, tmp_path, call_tool):
    """Drawing, a report, bfloat16, a fused model, batches of images that differ in size; not of an exported file."""
    runner = build_runner(make_config(config, demo_data, tmp_path))
    meta = dict(dataset_meta=runner.train_dataloader.dataset.metainfo)
    torch.save(dict(state_dict=runner.model.state_dict(), meta=meta), tmp_path / 'w.pth')  # of an untrained model
    done = run_tool('test.py', config, tmp_path / 'w.pth', '--data-root', demo_data, '--work-dir', tmp_path, '--tta',
                    '--show-dir', tmp_path / 'shown', '--report', tmp_path / 'report', '--dtype', 'bfloat16',
                    '--cfg-options', 'test_dataloader.batch_size=2')
    assert '--tta merges the predictions' in done.stdout
    assert len([*(tmp_path / 'shown').rglob('*.jpg')]) == 3
    code, message = call_tool('test.py', config, tmp_path / 'm.onnx', '--data-root', demo_data, '--tta')
    assert code == 1 and message.startswith('error: --tta, --knn, --linear, --dtype')
