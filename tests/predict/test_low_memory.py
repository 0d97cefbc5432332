"""Large images, some classes at a time."""
import pytest
import torch
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch.nn.functional import interpolate

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.for_mmseg import LowMemoryEncoderDecoder
from xcit_dense.predict.low_memory import _parts

SIZE = (64, 96)


def segmentor(classes=24, **head):
    """The tiny segmentor with more classes than are resized at a time at least, 16."""
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    init_default_scope(cfg.default_scope)
    cfg.model.decode_head.update(num_classes=classes, **head)
    return MODELS.build(cfg.model).eval()


def sample_of(shape=SIZE, **meta):
    return SegDataSample(metainfo=dict(dict(ori_shape=shape, img_shape=SIZE, pad_shape=SIZE), **meta))


def predict(model, images, *samples):
    with torch.no_grad():
        return model.predict(images, list(samples))


@pytest.mark.parametrize('align_corners', (False, True))
def test_large_images_are_predicted_with_some_classes_at_a_time(align_corners, monkeypatch):
    """The same labels as mmseg's, through padding, a flip and both resizes."""
    model = segmentor(align_corners=align_corners)
    assert isinstance(model, LowMemoryEncoderDecoder) and model.decode_head.out_channels == 24
    images = torch.randn(2, 3, *SIZE)
    torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    with torch.no_grad():  # every class's mean score is 0, so that several win with any random numbers
        model.decode_head.conv_seg.bias -= model.encode_decode(images, [dict(img_shape=SIZE)]).mean((0, 2, 3))

    def both():
        return predict(model, images, *(
            sample_of(shape, img_shape=(60, 90), img_padding_size=(0, 6, 0, 4), flip=flip, flip_direction='horizontal')
            for shape, flip in (((120, 181), True), ((40, 60), False))))

    wanted = both()
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
    got = both()
    for a, b in zip(got, wanted, strict=True):
        assert 'seg_logits' in b and 'seg_logits' not in a
        assert len(b.pred_sem_seg.data.unique()) > 1
        assert torch.equal(a.pred_sem_seg.data, b.pred_sem_seg.data)


@pytest.mark.parametrize('mode, scores, split', (
    ('whole', 24 * 64 * 96, False), ('whole', 24 * 64 * 96 - 1, True), ('slide', 1000, False)))
def test_only_large_images_that_are_predicted_whole_are_split(mode, scores, split, monkeypatch):
    """Others are mmseg's, with their scores: what fits, and windows, whose scores are summed up."""
    model = segmentor()
    model.test_cfg.update(mode=mode, crop_size=(32, 32), stride=(32, 32))
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', scores)
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of((60, 90)))
    assert ('seg_logits' in found) != split and found.pred_sem_seg.data.shape == (1, 60, 90)


def test_a_mode_that_mmseg_does_not_know_is_refused_by_it(monkeypatch):
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
    model = segmentor()
    model.test_cfg.mode = 'hole'
    with pytest.raises(AssertionError, match='hole'):
        predict(model, torch.randn(1, 3, *SIZE), sample_of())


@pytest.mark.parametrize('layout', (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize('size', ((120, 181), (40, 60)))
@pytest.mark.parametrize('classes, count', ((35, 1), (35, 16), (41, 20), (150, 40), (24, 17)))
def test_parts_are_resized_to_the_last_bit_as_the_whole(classes, count, size, layout):
    """So that pixels whose best classes differ by the last bit have the class of mmseg."""
    scores = torch.randn(2, classes, 16, 24).contiguous(memory_format=layout)
    parts = _parts(scores, count, small=sum(size) <= 128)
    assert len(parts) > 1 and min(part.shape[1] for part in parts) > 3
    assert max(part.shape[1] for part in parts) < max(count, 16) + 4

    def resize(x):  # once in the head and once to the size of the image
        for one in ((64, 96), size):
            x = interpolate(x, size=one, mode='bilinear')
        return x

    assert torch.equal(torch.cat([resize(part) for part in parts], 1), resize(scores))


@pytest.mark.parametrize('values, label', (
    ([0.] * 15 + [2, 2] + [0] * 7, 15), ([0.] * 23 + [float('nan')], 23), ([0., float('nan')] * 12, 1),
    ([float('-inf')] * 24, 0)))
def test_the_first_of_the_highest_scores_wins_as_in_mmseg(values, label, monkeypatch):
    """Also where they lie in different parts, and where a score is no number."""
    model = segmentor()
    scores = torch.tensor(values).view(1, 24, 1, 1).repeat(1, 1, 16, 24)
    monkeypatch.setattr(model.decode_head, 'forward', lambda maps: scores)
    for count in (2**28, 3 * 64 * 96):
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', count)
        found, = predict(model, torch.zeros(1, 3, *SIZE), sample_of())
        assert ('seg_logits' in found) == (count == 2**28) and (found.pred_sem_seg.data == label).all()


@pytest.mark.parametrize('owner, name', (
    ('head', 'predict'), ('head', 'predict_by_feat'), ('model', 'encode_decode'), ('model', 'whole_inference'),
    ('model', 'inference'), ('model', 'postprocess_result')))
def test_what_somebody_replaced_is_called_as_by_mmseg(owner, name, monkeypatch):
    """In a subclass or on the object: then all is left to mmseg."""
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
    model = segmentor()
    changed = model.decode_head if owner == 'head' else model
    theirs, calls = getattr(type(changed), name), []

    def noted(self, *args):
        calls.append(name)
        return theirs(self, *args)

    changed.__class__ = type('Theirs', (type(changed), ), {name: noted})
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of())
    assert calls == [name] and 'seg_logits' in found


def test_one_score_for_a_foreground_is_left_to_mmseg(monkeypatch):
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
    model = segmentor(2, out_channels=1, threshold=0.4)
    model.decode_head.forward = lambda maps: torch.linspace(-2, 2, 24).expand(1, 1, 16, 24)
    found, = predict(model, torch.randn(1, 3, *SIZE), sample_of())
    assert found.pred_sem_seg.data.unique().tolist() == [0, 1]
    assert torch.equal(found.pred_sem_seg.data, (found.seg_logits.data > 0.4).float())


def test_test_time_augmentation_has_the_scores_that_it_merges(monkeypatch):
    """Also of large images, of a model inside that was built before or is built with it."""
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
    images = [torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)]
    model = segmentor()
    outer = MODELS.build(dict(type='SegTTAModel', module=model))
    data = dict(inputs=[images, images], data_samples=[[sample_of(img_path='a')], [sample_of(img_path='a')]])
    with torch.no_grad():
        merged, = outer.test_step(data)
    assert merged.pred_sem_seg.data.shape[-2:] == SIZE
    assert model.keeps_scores and not segmentor().keeps_scores
