"""Every line of the look at data and config: data that causes it, and data that does not."""
import pytest
from mmengine.config import Config

from helpers.boxes import RETINA, SEG, band, config_for, write_boxes, write_maps
from helpers.paths import SMALL_CONFIG
from xcit_dense.config.fit import Look, _look_at_length, describe_fit, look
from xcit_dense.config.length import shorten_warm_up

#: Nothing is remarkable at the 192 pixels of the small config.
USUAL = [(192, 192, [('a', 40, 40), ('a', 24, 20), ('b', 60, 50)])] * 12
#: One object in twenty is small.
MIXED = [(192, 192, [('a', 40, 40)] * 19 + [('b', 6, 6)])] * 12
SCALES = 'model__rpn_head__anchor_generator__scales'
RCNN, RPN, PROPOSALS = (f'model__{part}__max_per_img' for part in (
    'test_cfg__rcnn', 'test_cfg__rpn', 'train_cfg__rpn_proposal'))


def looked(root, images=USUAL, name=SMALL_CONFIG, length=100, batch=8, **options):
    return look(config_for(write_boxes(root, *images), name, **options), length, batch)


def only(found, *words):
    """The only warning has all of these words."""
    line, = found.warnings
    assert all(word in line for word in words), line
    return True


def test_data_that_fits(tmp_path):
    full = [('a', 24, 20)] * 2 + [('b', 50, 60)] * 3
    cfg = config_for(write_boxes(tmp_path, *USUAL, (192, 192, full)))
    found = look(cfg, 100, 8)
    assert found.warnings == [] and found.data == '41 objects in 13 images' and found.facts == dict(
        objects="median 40 pixels after resizing, 2.5 tokens, that of the class 'a' 21.9 (80% have 21.9 to 54.8); "
                'median 3 per image, 5 at most',
        anchors='71% of the boxes have an anchor with an IoU of 0.7 or more (centred); median of the best IoU 0.77')
    cfg.model.backbone = dict(type='ResNet', depth=50)
    assert 'token' not in look(cfg, 100, 8).facts['objects']  # of another backbone they are not known


def many(side, a, b, box=24):
    """Return 101 images: most have one object, 99% so many at most, and one has more."""
    one, usual = [('a', box, box)], [('a', box, box)] * a + [('b', box, box)] * b
    return [(side, side * 3 // 4, objects) for objects in [one] * 60 + [usual] * 40 + [usual + one * 3]]


@pytest.mark.parametrize('images, options, words', (
    # twelve pixels of 384 become six: a token of sixteen needs eight; small images show no more
    (many(384, 1, 1, 12), {SCALES: [1.5]}, ("the class 'a' has 6 pixels", '0.38 tokens', '--image-size 256')),
    (many(128, 1, 1, 4), {SCALES: [1.5]}, ('has 6 pixels', 'enlarged 1.5 times, and larger', 'patch 8')),
    # of one class among many large objects, too
    (MIXED, {SCALES: [1.5, 6]}, ("the median object of the class 'b' has 6 pixels", '--image-size')),
    # thin ones lie between the points
    ([(192, 192, [('a', 40, 40), ('b', 4, 24)])] * 12, dict(name='condinst_xcit_n12_p16_small'), (
        "50% of the boxes of the class 'b' have no point of model.bbox_head, whose finest stride is 8 pixels: use "
        '--image-size 288', )),
    ([(192, 192, [('a', 40, 40)] * 8 + [('a', 3, 3)] * 2 + [('b', 40, 40)])] * 12, dict(
        name='condinst_xcit_n12_p16_small', model__bbox_head__strides=[(8, 8)]), (
            "17% of the boxes of the class 'a' have no point", '288')),
    ([(96, 96, [('a', 12, 2), ('b', 12, 12)])] * 12, dict(name='condinst_xcit_n12_p16_small'), (
        'images are enlarged 2 times, and larger images would show no more; use a finer level (start_level of the neck',
    )),
    # a head that also learns boxes between points
    ([(192, 192, [('a', 40, 40), ('b', 4, 24)])] * 12, dict(
        name='condinst_xcit_n12_p16_small', model__bbox_head__type='YOLOXHead'), ()),
    (USUAL, {SCALES: [24]}, ("boxes of the class 'a': 100% of them have no anchor with an IoU of 0.3", 'measure 96 to '
                             '1.54e+03 pixels, ', '80% of these boxes 21.9 to 40', 'model.rpn_head.anchor_generator',
                             'docs/fitting.md')),
    (USUAL, dict(name=RETINA, model__bbox_head__anchor_generator__ratios=[9.0]),
     ('anchors do not fit', 'model.bbox_head.anchor_generator')),
    # between the anchors of two levels
    ([(192, 192, [('a', 27, 27), ('b', 40, 40)])] * 12, {SCALES: [2.4]}, (
        "boxes of the class 'a': 50% of them have no anchor with an IoU of 0.51", )),
    # thirty objects, and twice as many proposals
    (many(192, 17, 13), {RCNN: 30, RPN: 60, PROPOSALS: 60}, ()),
    (many(192, 17, 13), {RCNN: 29}, ('30 objects', 'model.test_cfg.rcnn.max_per_img = 29')),
    (many(192, 23, 21), {RPN: 87}, ('44 objects', 'need 88 proposals', 'model.test_cfg.rpn.max_per_img = 87: use '
                                    '--cfg-options model.test_cfg.rpn.max_per_img=150')),
    (many(192, 17, 13), {PROPOSALS: 59}, ('30 objects', 'model.train_cfg.rpn_proposal.max_per_img = 59')),
    (many(192, 17, 13), dict(name=RETINA, model__test_cfg__max_per_img=30), ()),
    (many(192, 17, 13), dict(name=RETINA, model__test_cfg__max_per_img=29), ('test_cfg.max_per_img = 29', )),
    (many(192, 17, 13), dict(name=RETINA, model__rpn_head__num_proposals=29), ('rpn_head.num_proposals = 29', )),
    # images with a class that has one percent of the objects
    ([(192, 192, [('a', 40, 40)])] * 110 + [(192, 192, [('a', 24, 24)] * 26 + [('b', 30, 30)] * 10)], {RCNN: 30}, (
        '90% of the images with a class have up to 36 objects, which need 36 detections', )),
    # COCO's mAP counts a hundred
    (many(192, 90, 10), {RCNN: 300, RPN: 300, PROPOSALS: 300}, ()),
    (many(192, 91, 10), {RCNN: 300, RPN: 300, PROPOSALS: 300}, ('mAP', '101')),
    ([*USUAL, (7, 99, [('a', 5, 9)])], {}, ('1 image ', 'min_size', 'train_dataloader.dataset.filter_cfg.min_size=1'))))
def test_lines_about_objects(images, options, words, tmp_path):
    found = looked(tmp_path, images, length=10**5, classes_from_data=True, **options)
    assert only(found, *words) if words else not found.warnings


def test_a_finer_backbone_is_advised_where_there_is_one(tmp_path):
    small = [(64, 64, [('a', 1, 1)])] * 12
    for patch, advice in ((16, '; use a backbone with patch 8 (p8): four times the tokens'), (8, '')):
        found = looked(tmp_path, small, model__backbone__arch=f'nano_12_p{patch}', **{SCALES: [0.75]})
        assert found.warnings[0].endswith('would show no more' + advice)


@pytest.mark.parametrize('name, most, queries', (
    ('deformable_detr', 'model.test_cfg.max_per_img', 'model.num_queries'),
    ('mask2former', 'model.test_cfg.max_per_image', 'model.panoptic_head.num_queries')))
def test_a_query_finds_one_object(name, most, queries, tmp_path):
    """The advice has both, as frameworks fail where the first is beyond the second."""
    images = [(192, 192, [('a', 24, 24), ('b', 24, 24)] * 30)] * 12
    assert only(looked(tmp_path, images, f'{name}_xcit_n12_p16_small', 10**5), f'{most}=100 {queries}=100')
    for few in (30, 60):
        found = looked(tmp_path, images, f'{name}_xcit_n12_p16_small', 10**5, **{
            most.replace('.', '__'): 100, queries.replace('.', '__'): few})
        assert only(found, f'{queries} = 30: use', f'{queries}=100') if few < 60 else not found.warnings


def test_classes_with_few_objects(tmp_path):
    for total, counts, words in (
            (12, (10, 10, 10), ()), (12, (10, 9, 10), ("the class 'rare' has", 'fewest: 9', '--suggest repeats')),
            (9, (8, 8, 8), ()), (12, (6, 9, 4), ("3 classes 'last', 'less', 'rare' have", 'fewest: 4', 'repeats')),
            (12, (0, 9, 0), ("'less', 'last', 'rare'", 'fewest: 0', 'repeats')),
            (12, (10, 0, 10), ("'rare'", 'remove classes'))):
        added = dict(zip(('less', 'rare', 'last'), counts, strict=True))
        images = [(*size, [*objects, *[(name, 30, 30) for name, count in added.items() if place < count]])
                  for place, (*size, objects) in enumerate(USUAL[:total])]
        cfg = config_for(write_boxes(tmp_path, *images, classes=('a', 'b', 'less', 'rare', 'last')))
        found = look(cfg, 100, 8)
        assert only(found, *words) if words else not found.warnings
        cfg.fitted = []
        assert 'repeats' not in str(look(cfg, 100, 8).warnings)


def test_large_steps_and_short_runs(tmp_path):
    assert not looked(tmp_path, batch=12).warnings
    assert only(looked(tmp_path, batch=16), '16 images', 'only 12', '--batch-size 3')
    assert not looked(tmp_path, length=50, param_scheduler__0__end=50).warnings
    assert only(looked(tmp_path, length=49), '294 iterations', '--epochs 21')
    assert not looked(tmp_path, length=49, timed=['--minutes']).warnings  # as short as it was asked for
    cfg = config_for(write_boxes(tmp_path, *USUAL))
    assert only(look(cfg, images=5), '18 iterations', '--epochs 334')
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=3, dataset=cfg.train_dataloader.dataset)
    assert only(look(cfg, images=5), '48 iterations', '--epochs 125')
    small = [(384, 384, [('a', 12, 12)] * 3)] * 12  # larger ones would take longer
    assert '--epochs' in (lines := looked(tmp_path, small, length=49).warnings)[0]
    assert not any('--image-size' in line for line in lines)
    assert any('--image-size' in line for line in looked(tmp_path, small).warnings)


@pytest.mark.parametrize('end, share', ((100, None), (101, '101 of the 400'), (400, '400 of the 400'), (401, None)))
def test_a_long_warm_up(end, share):
    """The check of schedules reports a warm-up that ends beyond the run."""
    for by_epoch in (False, True):
        cfg, found = Config(dict(train_cfg=dict(max_epochs=400 if by_epoch else 40), param_scheduler=[
            dict(type='LinearLR', by_epoch=by_epoch, begin=0, end=end)])), []
        _look_at_length(cfg, 1 if by_epoch else 10, None, None, found)
        assert [share in line and 'param_scheduler.0.end=40' in line for line in found] == [True] * bool(share)


@pytest.mark.parametrize('end, length, plain, converted', (
    (2, 5, 2, 1), (4, 5, 2, 1), (4, 15, 2, 1), (300, 1000, 100, 100)))
def test_no_warm_up_becomes_so_short_that_it_never_ends(end, length, plain, converted):
    """The look names the same end as the suggestion and `--epochs` set; mmengine's schedulers need two steps."""
    for convert, kept in ((False, plain), (True, converted)):
        cfg, found = Config(dict(train_cfg=dict(max_epochs=length), param_scheduler=[
            dict(type='LinearLR', start_factor=0.1, convert_to_iter_based=convert, begin=0, end=end)])), []
        _look_at_length(cfg, 1000, None, None, found)
        assert not found if kept == end else f'param_scheduler.0.end={kept}' in found[0]
        assert shorten_warm_up(cfg, 1000).startswith('the warm-up takes a tenth') == (kept != end)
        assert cfg.param_scheduler[0].end == kept


def test_thin_and_rare_classes_of_label_maps(tmp_path):
    large, small = (192, 192), [band(20, size=(192, 192))] * 9
    cfg = config_for(write_maps(tmp_path, *small, *small[:3]), SEG)
    found = look(cfg, 12, 8)
    assert not found.warnings
    assert found.facts['labels'] == ("the thinnest class 'b' is 20 pixels wide after resizing, 1.2 tokens; "
                                     "the rarest class 'b' has 10.42% of the pixels")
    thin = band(4, size=large)
    thin[:, 40:43] = 2
    cfg = config_for(write_maps(tmp_path / 'thin', *[thin] * 12, names=('a', 'b', 'c')), SEG)
    cfg.val_dataloader.dataset.pipeline[1].scale = (96, 96)
    assert only(look(cfg, 12, 8), "2 classes 'b', 'c' are", '1.5 pixels: use --image-size 256')
    cfg = config_for(write_maps(tmp_path / 'rare', *small, band(20, 0, large)), SEG)
    assert look(cfg, 10, 8).warnings == [
        "the class 'b' has fewer than 10 images to learn from (the fewest: 9): add more"]
    cfg.train_cfg.max_iters = 299
    cfg.param_scheduler = None
    assert any('--iterations 1000' in line for line in look(cfg, 12, 8).warnings)


def test_suggestions_are_for_configs_that_do_not_fit_themselves():
    found = Look(dict(objects='small'), ['too small'])
    assert describe_fit(Config(), found)[''].endswith(':\n  too small\n--suggest prints a config that fits')
    lines = describe_fit(Config(dict(fitted=[dict(key='a.b', before=1, after=2, why='larger')])), found)
    assert lines[''].endswith('too small') and lines['objects']
    assert lines['fitted'] == 'to the data (--no-fit keeps the recipe):\n  a.b  1 -> 2  (larger)'
    for was in ({}, dict(fitted_to='9 images')):
        assert describe_fit(Config(dict(was, fitted=[])), Look({}, [], '9 images')) == dict(
            fitted='the recipe fits the data')
    assert describe_fit(Config(dict(fitted=[])), found)['fitted'] == 'nothing was changed'
    of_other = describe_fit(Config(dict(fitted=[], fitted_to='9 images')), Look({}, [], '8 images'))['fitted']
    assert of_other.startswith('to 9 images, which is not this data')
