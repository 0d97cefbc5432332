"""Configs that fit the data: they can be read, their changes take effect, and nothing else changes."""
import re

import pytest
from mmengine.config import Config

from helpers.boxes import RETINA, SEG, band, config_for, write_boxes, write_maps
from helpers.paths import ROOT, SMALL_CONFIG
from xcit_dense.config.check import check_config
from xcit_dense.config.fit import look
from xcit_dense.config.fit.fitting import fit, fit_length, suggest, write_config
from xcit_dense.config.length import shorten_warm_up
from xcit_dense.config.loading import load_config
from xcit_dense.config.settings import Settings
from xcit_dense.errors import ConfigError, DataError

#: As many images, of objects that fit, as the 6 epochs of the small config need for a thousand iterations.
USUAL = [(192, 192, [('a', 40, 40), ('a', 24, 20), ('b', 60, 50)])] * 1340
#: Stained nuclei: many small objects.
NUCLEI = [(450, 420, [('a', 12, 12), ('b', 10, 11), ('a', 15, 12)] * 30)] * 40


def suggested(tmp_path, images, name=SMALL_CONFIG, settings=None, root=None, **options):
    """Return the text for some boxes, and the config that it is with the data."""
    root = root or write_boxes(tmp_path / 'data', *images)
    text = suggest(config_for(root, name, **options), name, 'the tests', settings)
    path = tmp_path / 'suggested.py'
    path.write_text(text)
    return text, load_config(path, data_root=str(root), pretrained=False)


def test_nothing_changes_where_all_fits(tmp_path, monkeypatch):
    text, cfg = suggested(tmp_path, USUAL)
    lines = [line for line in text.splitlines() if line and not line.startswith('#')]
    assert lines == [f"_base_ = 'xcit_dense::{SMALL_CONFIG.name}'"]
    steps = dict(train_dataloader__batch_size=4, optim_wrapper__accumulative_counts=2)
    with monkeypatch.context() as patch:
        patch.setenv('WORLD_SIZE', '2')
        fit(cfg := config_for(tmp_path / 'data', **steps))
    assert cfg.optim_wrapper.optimizer.lr == 0.0012  # of 48 objects, not 32
    _, cfg = suggested(tmp_path, [*USUAL, (6, 90, [('a', 5, 9)])])  # small images are not left out
    assert cfg.train_dataloader.dataset.filter_cfg.min_size == 1
    assert cfg.train_dataloader.dataset.filter_cfg.filter_empty_gt


def test_many_small_objects(tmp_path):
    text, cfg = suggested(tmp_path, NUCLEI)
    scales = {step.scale for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader)
              for step in loader.dataset.pipeline if step.type == 'Resize'}
    (scale, ), model = scales, cfg.model
    assert scale[0] == scale[1] and 448 <= scale[0] <= 512
    assert (model.test_cfg.rcnn.max_per_img, model.test_cfg.rpn.max_per_img) == (100, 250)
    assert model.train_cfg.rpn_proposal.nms_pre >= model.train_cfg.rpn_proposal.max_per_img == 250
    assert model.train_cfg.rpn.sampler.num == 256 and model.train_cfg.rcnn.sampler.num == 128
    assert cfg.train_dataloader.batch_size == cfg.auto_scale_lr.base_batch_size == 2
    assert cfg.train_cfg.max_epochs == 50 and cfg.param_scheduler[1].end == 50
    assert cfg.param_scheduler[0].end == 50  # of a thousand iterations
    assert cfg.optim_wrapper.optimizer.lr == 0.0015
    check_config(cfg)
    assert look(config_for(tmp_path / 'data', tmp_path / 'suggested.py'), 20, 2).warnings == []
    assert '# train_dataloader.batch_size  8 -> 2  (larger images' in text
    text, _ = suggested(tmp_path, NUCLEI, settings=Settings(lr=0.5), optim_wrapper__optimizer__lr=0.5)
    assert 'lr=0.5' in text  # a rate of the user's does not rise with the objects


def test_a_detector_of_one_stage(tmp_path):
    text, cfg = suggested(tmp_path, NUCLEI, RETINA, classes_from_data=True)
    assert cfg.model.bbox_head.anchor_generator.octave_base_scale < 4
    assert 'pipeline' not in text  # at 800 pixels the objects are large enough
    assert 'init_cfg' not in text and 'num_classes' not in text  # what the options of a run change
    assert cfg.train_cfg.max_epochs == 50 and cfg.param_scheduler[1].milestones == [38, 46]
    assert cfg.param_scheduler[0].end == 100 and cfg.default_hooks.checkpoint.interval == 5


def test_images_of_rare_classes_are_repeated(tmp_path):
    objects = [(name, 12, 12) for name in 'aab' * 8]
    root = write_boxes(tmp_path / 'data', *[(192, 192, [*objects, *[('rare', 12, 12)] * (place < 8)])
                                            for place in range(300)], classes=('a', 'b', 'rare'))
    text, cfg = suggested(tmp_path, None, root=root)
    dataset = cfg.train_dataloader.dataset
    assert dataset.type == 'ClassBalancedDataset' and dataset.dataset.type == 'CocoDataset' and "'rare'" in text
    assert dataset.dataset.data_root == str(root) and dataset.oversample_thr == 0.2397
    assert dataset.dataset.pipeline[2].scale[0] > 192
    check_config(cfg)


def test_images_are_not_enlarged_beyond_what_they_show(tmp_path):
    """By half at most, not to more than seven times the pixels, and not by less than 15 percent."""
    for side, box, wanted in ((192, 14, 192), (192, 13, 236), (160, 3, 240), (2000, 3, 508)):
        _, cfg = suggested(tmp_path, [(side, side, [('a', box, box), ('b', box, box)])] * 20)
        assert cfg.test_dataloader.dataset.pipeline[1].scale[0] == pytest.approx(wanted, abs=17)
    cfg = config_for(tmp_path / 'data', train_dataloader__batch_size=2)
    fit(cfg)  # a step cannot have fewer images, and at most twice the pixels
    assert cfg.test_dataloader.dataset.pipeline[1].scale[0] == pytest.approx(192 * 2 ** 0.5, abs=17)


def test_samples_are_for_the_usual_image_and_limits_for_the_fullest(tmp_path):
    images = [(256, 192, [('a', 20, 20), ('b', 24, 20)] * count) for count in (*[16] * 9, 110)]
    samples = dict.fromkeys([f'model__train_cfg__{part}__sampler__num' for part in ('rpn', 'rcnn')], 32)
    cfg = config_for(write_boxes(tmp_path, *images), model__train_cfg__rpn_proposal__nms_pre=5000,
                     model__test_cfg__rpn__nms_pre=300, **samples)
    fit(cfg)
    trained = cfg.model.train_cfg
    assert (trained.rpn.sampler.num, trained.rcnn.sampler.num) == (96, 96)  # of 32 objects
    assert [(part.max_per_img, part.nms_pre) for part in (trained.rpn_proposal, cfg.model.test_cfg.rpn)] == [
        (650, 5000), (650, 650)]  # of 220


def streets(root, width):
    return write_maps(root, *[band(width, size=(360, 480))] * 12)


def test_thin_classes_of_label_maps(tmp_path):
    text, cfg = suggested(tmp_path, None, SEG, root=streets(tmp_path / 'data', 4))
    train, test = cfg.train_dataloader.dataset.pipeline, cfg.test_dataloader.dataset.pipeline
    assert test[1].scale == train[2].scale == (480, 480) and train[3].crop_size == (384, 384)
    assert cfg.model.data_preprocessor.size == (384, 384) and cfg.train_dataloader.batch_size == 2
    check_config(cfg)
    _, thinner = suggested(tmp_path, None, SEG, root=streets(tmp_path / 'thinner', 2))
    assert thinner.model.decode_head.loss_decode[1].type == 'LabelledLovaszLoss'
    check_config(thinner)
    text, _ = suggested(tmp_path, None, SEG, root=streets(tmp_path / 'wide', 40))
    assert not any(word in text for word in ('LovaszLoss', 'pipeline'))
    assert 'batch_size' not in text.replace('base_batch_size', '')


@pytest.mark.parametrize('name, settings', (
    (ROOT / 'configs/fasterrcnn_xcit_n12_p16_small.py', dict(augment='strong', batch_size=4)),
    (SMALL_CONFIG, dict(augment='strong', image_size=256, epochs=9, lr=0.5, workers=0)),
    (SEG, dict(augment='light', image_size=256, iterations=100, batch_size=4))))
def test_settings_are_written_with_all_that_follows(name, settings, tmp_path):
    """Their effects on wrappers, intervals, schedulers and rates; also images that are mixed with others."""
    settings = Settings(**settings)
    root = streets(tmp_path / 'data', 40) if name == SEG else write_boxes(tmp_path / 'data', *USUAL[:40])
    cfg = load_config(name, data_root=str(root), settings=settings, pretrained=False)
    (tmp_path / 'suggested.py').write_text(text := suggest(cfg, name, 'the tests', settings))
    assert 'grows' not in text
    got = load_config(tmp_path / 'suggested.py', data_root=str(root), pretrained=False)
    batch = got.train_dataloader.batch_size
    if not settings.batch_size:
        got.train_dataloader.batch_size, got.auto_scale_lr = cfg.train_dataloader.batch_size, cfg.auto_scale_lr
    if settings.epochs or settings.iterations:
        shorten_warm_up(cfg, -(-40 // batch))
        assert got.param_scheduler == cfg.param_scheduler and got.train_cfg == cfg.train_cfg
    for part in ('train_dataloader', 'val_dataloader', 'auto_scale_lr', 'optim_wrapper'):
        assert got[part] == cfg[part], part
    if name == SEG:
        assert got.model.data_preprocessor == cfg.model.data_preprocessor


def test_rates_for_random_weights_alone_rise(tmp_path):
    root = write_boxes(tmp_path / 'data', *NUCLEI)
    weights = {'model.backbone.init_cfg': dict(type='Pretrained', checkpoint='x.pth')}
    for start in (dict(init_from='x.pth'), dict(cfg_options=dict(load_from='x.pth')), dict(cfg_options=weights), {}):
        text = suggest(load_config(SMALL_CONFIG, data_root=str(root), **start), SMALL_CONFIG, 'the tests')
        assert bool(re.search(r'\blr=', text)) == (not start)


def test_what_cannot_be_suggested(tmp_path):
    cfg = config_for(write_boxes(tmp_path, *NUCLEI[:2]))
    part = cfg.train_dataloader.dataset
    for dataset in dict(part, data_root='s3://bucket/'), dict(type='ConcatDataset', datasets=[part, part]):
        cfg.train_dataloader.dataset = dataset
        with pytest.raises(DataError, match='needs one training data set on a local disk'):
            suggest(cfg, SMALL_CONFIG, 'x')


@pytest.mark.parametrize('before, epoch_length, times, after', (
    (700, 70, 1, None), (700, 71, 1, 710), (700, 213, 3, 710), (20000, 50, 1, None), (20000, 40, 1, 16000),
    (20000, 1, 1, 1000)))
def test_the_length_of_runs_that_count_iterations(before, epoch_length, times, after):
    """The data is seen ten times at least, and four hundred times at most unless that is short."""
    cfg = Config.fromfile(SEG)
    cfg.train_cfg.max_iters = cfg.param_scheduler[1].end = before
    whys = fit_length(cfg, epoch_length, times)
    assert (after is not None) == bool(whys) and cfg.train_cfg.max_iters == (after or before)
    if after:
        assert cfg.train_cfg.val_interval == cfg.default_hooks.checkpoint.interval == after // (before // 175)
        assert [node['end'] for node in cfg.param_scheduler] == [50, after]


@pytest.mark.parametrize('before, epoch_length, after, interval', (
    (6, 100, 10, 3), (6, 1, 300, 30), (400, 1, 400, 3), (11, 100, 11, 3), (6, 40, 25, 3), (6, 25, 40, 4)))
def test_the_length_of_runs_that_count_epochs(before, epoch_length, after, interval):
    """A thousand iterations, and at most three hundred epochs, but not fewer than before; ten validations at most."""
    cfg = Config(dict(train_cfg=dict(max_epochs=before, val_interval=3)))
    assert bool(fit_length(cfg, epoch_length)) == (before != after) and cfg.train_cfg.max_epochs == after
    assert cfg.train_cfg.val_interval == interval


def test_the_text_of_a_config():
    values = {'a.b.c': (1, ), 'a.b.d': [dict(x='y', z=None)], 'a.f': dict(g=0.5, _delete_=True)}
    text = write_config('/base.py', values, ['title', 'word ' * 40])
    cfg = Config.fromstring(text.replace("_base_ = '/base.py'", ''), '.py')
    assert (cfg.a.b.c, cfg.a.b.d, cfg.a.f) == tuple(values.values())
    assert text.startswith('# title\n# word') and "\n_base_ = '/base.py'\n" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    with pytest.raises(ConfigError, match='can write only numbers'):
        write_config('/base.py', {'a': [dict(type=dict)]}, ['title'])
