"""Large images, some classes at a time."""
import pytest
import torch
from mmseg.structures import SegDataSample

from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.for_mmseg import LowMemoryEncoderDecoder
from xcit_dense.predict.predictor import build_predictor


def test_large_images_are_predicted_with_some_classes_at_a_time(trained_segmentor, demo_data, monkeypatch):
    """The same labels as mmseg's, through padding, a flip and both resizes."""
    cfg = load_config(TINY_SEG_CONFIG, data_root=str(demo_data), pretrained=False)
    take_classes(cfg)
    model = build_predictor(cfg, trained_segmentor[0]).model
    assert isinstance(model, LowMemoryEncoderDecoder) and model.decode_head.out_channels == 6
    images = torch.randn(2, 3, 64, 96)
    torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    with torch.no_grad():  # every class's mean score is 0, so that several win, whatever was drawn
        model.decode_head.conv_seg.bias -= model.encode_decode(images, [dict(img_shape=(64, 96))]).mean((0, 2, 3))

    def predict():
        samples = [SegDataSample(metainfo=dict(ori_shape=shape, img_shape=(60, 90), pad_shape=(64, 96),
                                               img_padding_size=(0, 6, 0, 4), flip=flip, flip_direction='horizontal'))
                   for shape, flip in (((120, 181), True), ((57, 80), False))]
        return model.predict(images, samples)

    with torch.no_grad():
        wanted = predict()
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
        got = predict()
    for a, b in zip(got, wanted, strict=True):
        assert 'seg_logits' in b and 'seg_logits' not in a
        assert len(b.pred_sem_seg.data.unique()) > 1
        assert torch.equal(a.pred_sem_seg.data, b.pred_sem_seg.data)


@pytest.mark.parametrize('mode, scores, split', (
    ('whole', 6 * 64 * 96, False), ('whole', 6 * 64 * 96 - 1, True), ('slide', 1000, False)))
def test_only_large_images_that_are_predicted_whole_are_split(mode, scores, split, trained_segmentor, monkeypatch):
    """Others are mmseg's, with their scores: what fits, and windows, whose scores are summed up."""
    model = build_predictor(load_config(TINY_SEG_CONFIG, pretrained=False), trained_segmentor[0]).model
    model.test_cfg.update(mode=mode, crop_size=(32, 32), stride=(32, 32))
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', scores)
    sample = SegDataSample(metainfo=dict(ori_shape=(60, 90), img_shape=(64, 96), pad_shape=(64, 96)))
    with torch.no_grad():
        found, = model.predict(torch.randn(1, 3, 64, 96), [sample])
    assert ('seg_logits' in found) != split and found.pred_sem_seg.data.shape == (1, 60, 90)


def test_the_first_of_equal_scores_wins_as_in_mmseg(trained_segmentor, monkeypatch):
    """Also where the equal ones lie in different parts: class 2 and 3 of 6, three at a time."""
    model = build_predictor(load_config(TINY_SEG_CONFIG, pretrained=False), trained_segmentor[0]).model
    scores = torch.tensor([0., 1, 2, 2, 0, 2]).view(1, 6, 1, 1).expand(1, 6, 16, 24)
    monkeypatch.setattr(model.decode_head, 'forward', lambda maps: scores)
    monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 3 * 64 * 96)
    sample = SegDataSample(metainfo=dict(ori_shape=(64, 96), img_shape=(64, 96), pad_shape=(64, 96)))
    found, = model.predict(torch.zeros(1, 3, 64, 96), [sample])
    assert 'seg_logits' not in found and (found.pred_sem_seg.data == 2).all()
