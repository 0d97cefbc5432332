"""Segmentors with changed parameters, and mmseg's own predictions for images."""
import torch
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from helpers.models import randomise
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.predict.tiles import scores_of

#: Two scores that are closer may swap.
TIE = 1e-4


def segmentor(config=TINY_SEG_CONFIG, **options):
    """Return a segmentor of a config, in evaluation mode; ``options`` change its model by dotted key."""
    cfg = load_config(config, cfg_options={f'model.{key.replace("__", ".")}': value for key, value in options.items()},
                      pretrained=False)
    init_default_scope('mmseg')
    return let_many_classes_win(randomise(MODELS.build(cfg.model)).eval())


def let_many_classes_win(model):
    """Give the classes of a segmentor scores with the same mean that differ by some units."""
    layer = model.decode_head.conv_seg
    torch.nn.init.normal_(layer.weight)
    with torch.no_grad():
        logits = model.decode_head(model.extract_feat(torch.randn(1, 3, 96, 96)))
        logits = logits[0] if isinstance(logits, tuple) else logits
        factor = 2 / logits.std((0, 2, 3))
        layer.weight *= factor.view(-1, 1, 1, 1)
        layer.bias.copy_((layer.bias - logits.mean((0, 2, 3))) * factor)
    return model


def predicted(model, images, size=None):
    """Return mmseg's samples for RGB images (B, H, W, 3), uint8; the labels have their ``size`` before a resize."""
    images = torch.as_tensor(images)
    shape = tuple(images.shape[1:3])
    samples = [SegDataSample(metainfo=dict(ori_shape=tuple(size or shape), img_shape=shape)) for _ in images]
    inputs = [image.flip(2).permute(2, 0, 1) for image in images]  # as mmcv reads them
    with torch.no_grad():
        return model.test_step(dict(inputs=inputs, data_samples=samples))


def check_labels(found, samples, classes=2, threshold=None):
    """Compare ``labels`` and ``scores`` with samples of so many classes; a head of one channel has a threshold."""
    labels, seen = torch.as_tensor(found['labels']).long(), set()
    for i, sample in enumerate(samples):
        wanted, logits = sample.pred_sem_seg.data[0].long(), sample.seg_logits.data
        if len(logits) == 1:
            clear = (logits[0] - threshold).abs() > TIE
        else:
            best = logits.topk(2, dim=0).values
            clear = best[0] - best[1] > TIE
        assert labels[i].shape == wanted.shape
        assert torch.equal(labels[i][clear], wanted[clear])
        assert clear.float().mean() > 0.99
        if 'scores' in found:
            scores = torch.as_tensor(scores_of(logits, wanted[None]))
            assert (torch.as_tensor(found['scores'][i]) - scores).abs()[clear].max() < 1e-4
        seen |= set(wanted.unique().tolist())
    assert len(seen) >= classes
