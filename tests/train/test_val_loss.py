"""Losses on the validation data: what they are, and that the training does not notice them."""
import copy
import json
import re
import shutil

import cv2
import mmcv
import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, MODELS
from mmseg.models.decode_heads import FPNHead
from torch.nn import functional as F

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train
from helpers.tools import as_in_a_process_of_its_own
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import set_val_loss
from xcit_dense.errors import ConfigError, Stopped
from xcit_dense.report.curves import read_curves
from xcit_dense.train import build_runner, val_loss
from xcit_dense.train.resuming import isolated_random_state
from xcit_dense.train.val_loss import ValLossHook

pytestmark = pytest.mark.filterwarnings('ignore')

#: Samplers that take all candidates, so that the losses by hand need no random numbers.
TAKE_ALL = {f'model.train_cfg.{part}.sampler': dict(type='RandomSampler', num=10**6, pos_fraction=1.0, neg_pos_ub=-1,
                                                    add_gt_as_proposals=part == 'rcnn') for part in ('rpn', 'rcnn')}
EMA = dict(custom_hooks=[dict(type='EMAHook', momentum=0.5)])
COUNTING = {'model.decode_head.type': 'CountingHead'}


def validated(config, data, work_dir, *hooks, **changes):
    """Train with validation losses; return the lines of the log that have them, and the newest checkpoint."""
    cfg = make_config(config, data, work_dir, **changes)
    set_val_loss(cfg)
    checkpoint = train(cfg, *hooks)
    return lines_of(work_dir), checkpoint


def lines_of(work_dir):
    files = sorted(work_dir.glob('*/vis_data/scalars.json'))
    return [values for file in files for values in map(json.loads, file.read_text().splitlines())
            if 'val/loss' in values]


class Measured(Hook):
    """The losses of each image by a function of the validated model and the image, which another pipeline makes."""
    priority = 'LOWEST'  # an average takes the place of the weights

    def __init__(self, function, **pipeline):
        self.function, self.pipeline, self.results = function, pipeline, []

    def before_val_epoch(self, runner):
        self.kept = {*runner.message_hub.log_scalars}
        model, data = copy.deepcopy(runner.model).eval(), DATASETS.build(
            dict(runner.cfg.val_dataloader.dataset, **self.pipeline))
        with torch.no_grad(), torch.random.fork_rng():
            self.results.append([self.function(model, data[index]) for index in range(len(data))])


def assert_logged(lines, wanted):
    """Compare the lines of validations with losses by hand, which are means over images."""
    for line, found in zip(lines, wanted, strict=True):
        terms = {name: np.mean([float(each[name]) for each in found]) for name in found[0]}
        assert {name for name in line if name.startswith('val/')} == {'val/loss', *(f'val/{name}' for name in terms)}
        for name, value in terms.items():
            assert line[f'val/{name}'] == pytest.approx(value, rel=1e-5), name
        assert line['val/loss'] == pytest.approx(sum(terms.values()), rel=1e-5)


def test_losses_of_a_detector_are_those_of_the_training_pipeline(root, tmp_path):
    """Of images of which one has no objects; boxes are those of the resized images, and nothing is drawn at random."""
    path = root / 'annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    first = content['images'][0]['id']
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] != first]
    path.write_text(json.dumps(content))

    def by_hand(model, data):
        sample = data['data_samples']
        assert max(sample.img_shape) == 96 and sample.gt_instances.masks.height == sample.img_shape[0]
        losses = model.loss(*model.data_preprocessor(pseudo_collate([data]), False).values())
        return {name: sum(value) if isinstance(value, list) else value for name, value in losses.items()
                if 'loss' in name}

    hand = Measured(by_hand, pipeline=[
        dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
        dict(type='Resize', scale=(96, 96), keep_ratio=True), dict(type='PackDetInputs')])
    lines, _ = validated(TINY_CONFIG, root, tmp_path / 'run', hand, **TAKE_ALL, **{'train_cfg.max_epochs': 1})
    assert set(hand.results[0][0]) == {'loss_rpn_cls', 'loss_rpn_bbox', 'loss_cls', 'loss_bbox', 'loss_mask'}
    assert_logged(lines, hand.results)


@pytest.mark.parametrize('padding', ({}, {'model.data_preprocessor.test_cfg': dict(size_divisor=128)}))
def test_losses_of_a_segmentor_are_those_of_its_maps(padding, root, tmp_path):
    """And of the averaged weights that are evaluated. The map is resized with the image and padded like it; labels are
    lowered by one, and some pixels are ignored."""
    for path in sorted((root / 'annotations/validation').iterdir()):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        labels[:20] = 255
        cv2.imwrite(str(path), labels)

    def by_hand(model, data):
        norm = model.data_preprocessor
        image = mmcv.imrescale(data['inputs'].permute(1, 2, 0).numpy(), (96, 96))
        labels = mmcv.imrescale(data['data_samples'].gt_sem_seg.data[0].numpy().astype(np.uint8), (96, 96),
                                interpolation='nearest')
        assert set(np.unique(labels)) > {255}
        image = (torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1).float() - norm.mean) / norm.std
        extra = (0, 128 - labels.shape[1], 0, 128 - labels.shape[0]) if padding else (0, 0, 0, 0)
        image = F.pad(image, extra, value=norm.pad_val)
        labels = F.pad(torch.from_numpy(labels).long(), extra, value=255)
        scores = F.interpolate(model.decode_head(model.extract_feat(image[None])), labels.shape, mode='bilinear')
        losses = F.cross_entropy(scores, labels[None], ignore_index=255, reduction='none')
        return {'decode.loss_ce': losses.mean()}

    hand = Measured(by_hand, pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
                                       dict(type='PackSegInputs')])
    lines, _ = validated(TINY_SEG_CONFIG, root, tmp_path, hand, **{
        f'{name}_dataloader.dataset.reduce_zero_label': True for name in ('train', 'val', 'test')}, **padding, **EMA)
    assert_logged(lines, hand.results)
    assert 'val/mIoU' in hand.kept and 'val/val/loss' not in hand.kept  # of the validation before


def test_losses_of_a_classifier_are_means_over_images(class_folders, tmp_path):
    """In batches of four and two images, of three sizes, the first with two of each; nothing is mixed."""
    pytest.importorskip('mmpretrain')
    root = shutil.copytree(class_folders, tmp_path / 'data')
    for path, width in zip(sorted(root.glob('val/*/*.png')), (40, 33, 40, 58, 33, 40), strict=True):
        cv2.imwrite(str(path), cv2.resize(cv2.imread(str(path)), (width, 40)))

    def by_hand(model, data):
        inputs, sample = model.data_preprocessor(pseudo_collate([data]))['inputs'], data['data_samples']
        return model.loss(inputs, [sample.set_gt_score(F.one_hot(sample.gt_label[0], 3).float())])['loss']

    hand = Measured(by_hand)
    steps = [step for step in load_config(TINY_CLS_CONFIG).test_pipeline if step.type != 'CenterCrop']
    lines, _ = validated(TINY_CLS_CONFIG, root, tmp_path / 'run', hand, **{
        'val_dataloader.batch_size': 4, 'val_dataloader.dataset.pipeline': steps})
    assert [line['val/loss'] for line in lines] == pytest.approx([np.mean(each) for each in hand.results], rel=1e-5)


@MODELS.register_module()
class CountingHead(FPNHead):
    """A head whose loss draws random numbers, and keeps a statistic, also in validation."""
    def __init__(self, **options):
        super().__init__(**options)
        self.register_buffer('seen', torch.zeros(()))
        self.fails, self.poison = (), ()

    def loss_by_feat(self, scores, samples):
        losses = super().loss_by_feat(scores, samples)
        name = samples[0].img_path.rpartition('/')[2]
        self.seen += 1
        noise = torch.rand(()) + float(np.random.rand())
        if not self.training and self.fails is None:
            return {}
        if not self.training and name in self.fails:
            raise ZeroDivisionError('no pixels')
        if not self.training and name in self.poison:
            noise = float('nan')
        return losses | dict(loss_noise=self.seen * noise)


def counted_config(data, work_dir):
    cfg = make_config(TINY_SEG_CONFIG, data, work_dir, **COUNTING, **EMA, **{
        'default_hooks.checkpoint': dict(save_best='val/loss')})
    set_val_loss(cfg)
    return cfg


@pytest.fixture(scope='module')
def whole(demo_data, tmp_path_factory):
    """Work dir and last checkpoint of a run with a counting head that nothing stopped."""
    folder = tmp_path_factory.mktemp('whole')
    return folder, train(counted_config(demo_data, folder))


def test_an_image_draws_the_same_numbers_in_every_validation(whole):
    """They depend on the image only; what a loss counts in a validation, the training and the next do not see."""
    lines, noise = lines_of(whole[0]), []
    for number in range(3):
        with isolated_random_state(0, number):
            noise.append(float(torch.rand(())) + float(np.random.rand()))
    for line, trained in zip(lines, (2, 4), strict=True):
        wanted = np.mean([(trained + place) * value for place, value in enumerate(noise, 1)])
        assert line['val/decode.loss_noise'] == pytest.approx(wanted, rel=1e-6)
    losses = {line['step']: line['val/loss'] for line in lines}  # by which the best checkpoint is chosen
    assert [path.name for path in whole[0].glob('best_*')] == [f'best_val_loss_iter_{min(losses, key=losses.get)}.pth']


def test_stopped_while_they_are_measured_and_resumed_is_the_same(whole, demo_data, tmp_path, monkeypatch):
    """At the last image."""
    compute, calls, cfg = ValLossHook._terms, [], counted_config(demo_data, tmp_path)

    def stop(*args):
        calls.append(1)
        if len(calls) == 3:
            terminate(None)
        return compute(*args)

    monkeypatch.setattr(ValLossHook, '_terms', stop)
    with as_in_a_process_of_its_own(), pytest.raises(Stopped, match='after iteration 2. Saved'):
        train(cfg)
    assert len(calls) == 3
    assert_same_run(train(cfg, resume=True), whole[1])
    for line, wanted in zip(lines_of(tmp_path), lines_of(whole[0]), strict=True):
        assert {name: line[name] for name in line if 'time' not in name} == {
            name: wanted[name] for name in wanted if 'time' not in name}


def spoiled(data, work_dir, **attributes):
    """Like `validated`, with a head whose losses of some images cannot be used once the training has begun."""
    return validated(TINY_SEG_CONFIG, data, work_dir, At(1, lambda runner: vars(
        runner.model.decode_head).update(attributes)), **COUNTING)


def test_the_training_goes_on_after_a_loss_that_is_not_finite(demo_data, tmp_path):
    lines, checkpoint = spoiled(demo_data, tmp_path, poison=['000000000002.jpg'])
    assert checkpoint['meta']['iter'] == 4 and read_curves(tmp_path)['val/decode.loss_ce']
    assert all(np.isnan(line['val/loss']) and line['val/decode.loss_ce'] > 0 for line in lines)


@pytest.mark.parametrize('fails, told', (
    (['000000000002.jpg'], '1 batch without .* images/validation/000000000002.jpg: ZeroDivisionError: no pixels'),
    (None, '3 batches without .* EncoderDecoder returns no losses in eval mode')))
def test_images_without_a_loss_are_left_out_with_a_warning(fails, told, demo_data, tmp_path, capfd):
    lines, checkpoint = spoiled(demo_data, tmp_path, fails=fails)
    assert checkpoint['meta']['iter'] == 4 and len(lines) == 2
    assert all(np.isnan(line['val/loss']) == (fails is None) for line in lines)
    said = re.findall(r'WARNING - (.* validation loss.*)', ''.join(capfd.readouterr()))
    assert re.search(told.replace('out .* ', 'out a validation loss, such as .*'), said[0])


def test_the_best_checkpoint_by_a_loss_that_is_not_measured(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint': dict(save_best='val/loss')})
    with pytest.raises(ConfigError, match='save_best: there is no metric val/loss. Metrics: aAcc, mIoU, mAcc'):
        train(cfg)


def loss_of_validation(cfg):
    set_val_loss(cfg)
    with as_in_a_process_of_its_own():
        return build_runner(cfg).val()['val/loss']


def test_images_are_shared_out_to_the_processes_and_count_once(demo_data, tmp_path, monkeypatch):
    """Of three, one process has the first and the last, and the other the second and, so that it computes as often,
    the first. Where a process has batches of four sizes, all compute four times."""
    cfg, losses, calls, found = make_config(TINY_SEG_CONFIG, demo_data, tmp_path), val_loss._losses, [], []
    monkeypatch.setattr(val_loss, '_losses', lambda *args: calls.append(1) or losses(*args))
    for process, most in (((0, 1), 1), ((0, 2), 4), ((1, 2), 4)):
        monkeypatch.setattr(val_loss, 'get_dist_info', lambda process=process: process)
        monkeypatch.setattr(val_loss, 'all_gather_object', lambda own, most=most: [own, most][:1 + (own == 1)])
        found.append(loss_of_validation(copy.deepcopy(cfg)))
    assert found[0] == pytest.approx((2 * found[1] + found[2]) / 3, rel=1e-6) and found[1] != found[2]
    assert len(calls) == 3 + 2 * 4 + 2 * 4


def test_wrapped_data_sets(demo_data, tmp_path):
    """Means over all images of all data sets, however often; here in a validation without a training."""
    plain, wrapped = (make_config(TINY_SEG_CONFIG, demo_data, tmp_path) for _ in range(2))
    inner = wrapped.val_dataloader.dataset
    wrapped.val_dataloader.dataset = dict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=2, dataset=inner), copy.deepcopy(inner)])
    assert loss_of_validation(wrapped) == pytest.approx(loss_of_validation(plain), rel=1e-6)
