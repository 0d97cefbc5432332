"""Training of UperNet and Semantic FPN with different backbones, measured as that of Mask R-CNN is."""
import torch
from mmengine.structures import PixelData

from xcit_dense.config.loading import get_config

from .detector import BACKBONES, Task, build_with

#: Those of mmseg are set as in its own UperNet configs, on one GPU.
_BACKBONES = BACKBONES | {
    'swin_t': (dict(type='SwinTransformer', drop_path_rate=0.3), [96, 192, 384, 768]),
    'resnet50': (dict(type='ResNetV1c', depth=50, norm_cfg=dict(type='BN'), contract_dilation=True, style='pytorch'),
                 [256, 512, 1024, 2048]),
}


def build_segmentor(backbone, channels):
    """Build the UperNet of ``upernet_xcit_s12_p8_ade20k`` with another backbone, and its optimiser.

    Args:
        backbone: Config of the backbone.
        channels: Channels of its maps.
    """
    cfg = get_config('upernet_xcit_s12_p8_ade20k', pretrained=False)
    for head, width in ((cfg.model.decode_head, channels), (cfg.model.auxiliary_head, channels[2])):
        head.update(in_channels=width, norm_cfg=dict(type='BN'))
    cfg.model.data_preprocessor.update(size=None, size_divisor=1)  # images keep the size that is measured
    return build_with(cfg, backbone)


def build_semantic_fpn(backbone, channels):
    """Build the Semantic FPN of ``semfpn_xcit_s12_p8_ade20k`` with another backbone, and its optimiser; as above."""
    cfg = get_config('semfpn_xcit_s12_p8_ade20k', pretrained=False)
    cfg.model.neck.in_channels = channels
    cfg.model.decode_head.norm_cfg = dict(type='BN')
    cfg.model.data_preprocessor.update(size=None, size_divisor=1)
    return build_with(cfg, backbone)


def make_label_maps(batch, image):
    """Return random images with label maps, like a batch from mmseg's data loader."""
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    inputs, samples = [], []
    for _ in range(batch):
        sample = SegDataSample(metainfo=dict(img_shape=image, ori_shape=image))
        sample.gt_sem_seg = PixelData(data=torch.randint(150, (1, *image), generator=generator))
        inputs.append(torch.randint(256, (3, *image), dtype=torch.uint8, generator=generator))
        samples.append(sample)
    return dict(inputs=inputs, data_samples=samples)


UPERNET = Task(_BACKBONES, build_segmentor, make_label_maps)
SEMANTIC_FPN = Task(_BACKBONES, build_semantic_fpn, make_label_maps)
