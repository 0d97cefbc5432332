"""The configs with heads that the authors have not published: as the frameworks' own, number by number."""
import pytest
from mmengine.config import Config

from helpers.refusals import stock
from xcit_dense.config.check.keys import changes
from xcit_dense.config.loading import load_config

#: The config, the one it follows, and the number of maps that the head takes.
SOURCES = {
    'dino_xcit_s12_p16_coco': ('mmdet/dino/dino-4scale_r50_8xb2-12e_coco', 3),
    'deformable_detr_xcit_s12_p16_coco': ('mmdet/deformable_detr/deformable-detr_r50_16xb2-50e_coco', 3),
    'atss_xcit_s12_p16_coco': ('mmdet/atss/atss_r50_fpn_1x_coco', 3),
    'condinst_xcit_s12_p16_coco': ('mmdet/condinst/condinst_r50_fpn_ms-poly-90k_coco_instance', 3),
    'mask2former_xcit_s12_p16_coco': ('mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco', 4),
    'mask2former_xcit_s12_p16_ade20k': ('mmseg/mask2former/mask2former_r50_8xb2-160k_ade20k-512x512', 4)}
#: Keys that mean the same where they differ: defaults that one of the two writes out, and loops of this package.
EQUAL = ('.model.num_feature_levels', '.auto_scale_lr.enable', '.val_evaluator.format_only', '.train_cfg.type',
         '.model.data_preprocessor.pad_mask', '.with_mask', '.im2col_step', '.num_workers', '.data_root',
         '.reduce_zero_label', '.data_prefix.seg', '.train_dataloader.sampler.type')
#: ATSS and CondInst have heads of the frameworks, and the authors' schedule and images for COCO.
AUTHORS = 'atss_xcit_s12_p16_coco', 'condinst_xcit_s12_p16_coco'
NORMS = {f'.optim_wrapper.paramwise_cfg.custom_keys.norm{number}.{part}': dict(lr_mult=0.1, decay_mult=0.)
         for number in (1, 2, 3) for part in ('weight', 'bias')}


def plain(value):
    """Return a part of a config with lists for tuples, without where files are read."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key != 'backend_args'}
    return [*map(plain, value)] if isinstance(value, (list, tuple)) else value


@pytest.mark.skipif(not stock('mmdet').is_dir(), reason='the forks ship no stock configs')
@pytest.mark.parametrize('name', SOURCES)
def test_a_config_follows_the_frameworks(name):
    (source, maps), ours = SOURCES[name], load_config(name, pretrained=False)
    framework, _, path = source.partition('/')
    theirs = Config.fromfile(stock(framework, f'{path}.py'))
    keys = ['model'] if name in AUTHORS else [
        'model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr', 'train_dataloader',
        'val_dataloader', 'val_evaluator']
    wanted, found = ({key: plain(cfg.to_dict()[key]) for key in keys} for cfg in (theirs, ours))
    if isinstance(wanted.get('param_scheduler'), dict):
        wanted['param_scheduler'] = [wanted['param_scheduler']]
    different = {key: new for key, _, new in changes(wanted, found, '')
                 if not key.startswith('.model.backbone.') and not key.endswith(EQUAL)}
    channels = [key for key in different if key.endswith('.in_channels')]
    assert [different.pop(key) for key in channels] == [[384] * maps]
    different.pop('.model.neck.start_level', None)  # the levels begin at stride 8
    assert different == ({} if name in AUTHORS else NORMS)
    assert ours.model.backbone.get('out_strides', (4, 8, 16, 32)) == (4, 8, 16, 32)[-maps:]


@pytest.mark.parametrize('name', SOURCES)
def test_patch_8_differs_in_the_backbone_only(name):
    first, second = (load_config(one, pretrained=False) for one in (name, name.replace('_p16_', '_p8_')))
    assert {key for key, *_ in changes(first.to_dict(), second.to_dict(), '')} == {'.model.backbone.arch'}
