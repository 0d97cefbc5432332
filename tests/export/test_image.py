"""What the graph does with an image, compared with mmdet's and mmseg's preprocessors."""
import pytest
import torch
from mmdet.models import DetDataPreprocessor
from mmdet.structures import DetDataSample
from mmengine.model import BaseDataPreprocessor
from mmseg.models import SegDataPreProcessor
from mmseg.structures import SegDataSample
from torch.export import Dim

from xcit_dense.errors import ConfigError
from xcit_dense.export.preprocessing import Preprocessing

NORM = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
SIZES = ((1, 1), (31, 64), (64, 65), (70, 33))


def of_framework(preprocessor, image):
    """What the model gets of RGB images (B, H, W, 3), which mmcv reads as BGR."""
    inputs = [x.flip(2).permute(2, 0, 1) for x in image]
    kind = SegDataSample if isinstance(preprocessor, SegDataPreProcessor) else DetDataSample
    samples = [kind(metainfo=dict(img_shape=x.shape[1:])) for x in inputs]
    return preprocessor(dict(inputs=inputs, data_samples=samples))['inputs']


@pytest.mark.parametrize('kind, options', [
    (SegDataPreProcessor, dict(NORM, bgr_to_rgb=True, size=(512, 512))),
    (SegDataPreProcessor, dict(NORM, pad_val=-1.5, test_cfg=dict(size_divisor=32))),
    (SegDataPreProcessor, {}),
    (DetDataPreprocessor, dict(NORM, bgr_to_rgb=True, pad_size_divisor=32, pad_value=3, pad_mask=True)),
    (DetDataPreprocessor, dict(mean=[100], std=[50], rgb_to_bgr=True)),
    (DetDataPreprocessor, dict(pad_size_divisor=16)),
])
def test_images_are_as_the_framework_makes_them(kind, options):
    """Mean and deviation are told of red, green and blue."""
    preprocessor = kind(**options)
    ours = Preprocessing(preprocessor)
    sizes = ({1: Dim.DYNAMIC, 2: Dim.DYNAMIC}, )
    traced = torch.export.export(ours, (torch.zeros(2, 50, 41, 3, dtype=torch.uint8), ), dynamic_shapes=sizes).module()
    for size in SIZES:
        image = torch.randint(0, 256, (2, *size, 3), dtype=torch.uint8)
        wanted = of_framework(preprocessor, image)
        assert torch.equal(ours(image), wanted)
        assert torch.equal(traced(image), wanted)
    for name, fresh in (('mean', 0), ('std', 1)):
        values = options.get(name, [fresh])
        values = values * 3 if len(values) == 1 else values if 'bgr_to_rgb' in options else values[::-1]
        assert getattr(ours, name).flatten().tolist() == pytest.approx(values)


class Own(SegDataPreProcessor):

    def forward(self, data, training=False):
        return super().forward(data, training)


@pytest.mark.parametrize('preprocessor, words', (
    (BaseDataPreprocessor(), 'data_preprocessor.*BaseDataPreprocessor'), (Own(), 'data_preprocessor.*Own'),
    (None, 'data_preprocessor.*NoneType'), (SegDataPreProcessor(test_cfg=dict(size=(64, 48))), 'size=.64, 48'),
    (SegDataPreProcessor(mean=[0.] * 4, std=[1.] * 4), '4 channels')))
def test_one_of_another_kind_is_named(preprocessor, words):
    with pytest.raises(ConfigError, match=words):
        Preprocessing(preprocessor)
