"""The check of configs on all configs of the frameworks: as they are, as a run dumps them, and with XCiT."""
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from helpers.refusals import look_at, look_with_xcit, stock

#: What is broken: words of the error, and the beginnings of the paths. What lacks parts of a run is a base of others.
BROKEN = dict(mmdet=(
    ('missing;', 'centernet/centernet_tta common/ deepsort/ glip/odinw/override_category grounding_dino/odinw/override_'
     'category mm_grounding_dino/odinw/override_category qdtrack/qdtrack_faster-rcnn_r50_fpn_4e_base '
     'retinanet/retinanet_tta rtmdet/rtmdet_tta sort/sort_ strongsort/ yolox/yolox_tta'),
    ('MOTChallengeMetrics', 'bytetrack/bytetrack_yolox_x_8xb4-80e_crowdhuman-mot20train '
     'bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot20train'),
    ('No such file', 'bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot17halftrain_test-mot17test'),
    ('does not exist', 'sort/faster-rcnn_r50_fpn_8xb2-'), ('by_epoch', 'solov2/solov2-light_r'),
    ('num_classes', 'cascade_rpn/cascade-rpn_r50-caffe_fpn_1x_coco'),  # has no default
    ('eval_mode', 'pascal_voc/faster-rcnn_r50_fpn_1x_voc0712-cocofmt'),  # of another metric
    ('force_grad_on_level', 'v3det/fcos_swinb_fpn_8x4')), mmseg=())
#: What is silently ignored: variables that a base has already used, keys of version 2, a factor of another name.
LEFT_OUT = dict(mmdet=(
    ('test_pipeline', 'bytetrack/bytetrack_yolox_x_8xb4-80e_crowdhuman-mot20train_test-mot20test '
     'bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot20train_test-mot20test '
     'strongsort/yolox_x_8xb4-80e_crowdhuman-mot20train_test-mot20test'),
    ('max_iters', 'simple_copy_paste/mask-rcnn_r50_fpn_rpn-2conv_4conv1fc_syncbn-all_32xb2-ssj-90k '
     'simple_copy_paste/mask-rcnn_r50_fpn_rpn-2conv_4conv1fc_syncbn-all_32xb2-ssj-scp-90k'),
    ('cudnn_benchmark', 'legacy_1.x/ssd300_coco_v1 openimages/ssd300_ pascal_voc/ssd300_ pascal_voc/ssd512_ '
     'pisa/ssd300_ pisa/ssd512_ ssd/ssd300_ ssd/ssd512_ wider_face/ssd300_'),
    ('optimizer_config', 'guided_anchoring/ga-fast-rcnn_r50-caffe_fpn_1x_coco')), mmseg=(
    ('wd_mult', 'dnlnet/dnl_r'), ('fp16', 'mae/mae-base_upernet'), ('runner', 'mobilenet_v3/'),
    ('norm_cfg', 'swin/swin-tiny-patch4-window7_upernet_1xb8-20k_levir-256x256')))
#: What does not fit XCiT as the backbone, in addition: necks that pass maps on, a fifth map, no convolutions.
NOT_FOR_XCIT = dict(mmdet=(('out_channels[:len(in_channels)]', 'legacy_1.x/ssd300 pisa/ssd300'), ), mmseg=(
    ('in_index = 4', 'bisenetv2/bisenetv2_fcn'), ('self.in_channels == self.channels', 'cgnet/cgnet_fcn'),
    ('auxiliary_head.in_channels', 'fastfcn/fastfcn_r50-d32_jpu')))


@pytest.mark.slow
@pytest.mark.parametrize('framework', BROKEN)
def test_only_broken_configs_are_refused(framework, monkeypatch):
    """And what a run of one would dump passes like the config; so does XCiT in a config of each family of models."""
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')  # some constructors ask for files of a language model
    root = stock(framework)
    paths = sorted(path for path in root.rglob('*.py') if '_base_' not in path.parts)
    if not paths:
        pytest.skip(f'no configs of {framework}')
    with ProcessPoolExecutor(2, get_context('spawn'), torch.set_num_threads, (1, )) as pool:
        found = _in_processes(pool, look_at, paths, root)
        families = {family: root / name for name, (errors, *_, family) in sorted(found.items(), reverse=True)
                    if family and not any('missing;' in line for line in errors)}
        on_xcit = _in_processes(pool, look_with_xcit, sorted(families.values()), root)
    on_xcit = {name: lines for name, lines in on_xcit.items() if lines is not None}
    _compare({name: errors for name, (errors, *_) in found.items()}, BROKEN[framework])
    _compare({name: hints for name, (_, hints, *_) in found.items()}, LEFT_OUT[framework])
    assert not {name: dumped for name, (*_, dumped, _) in found.items() if dumped}
    _compare({name: errors for name, (errors, _) in on_xcit.items()}, BROKEN[framework] + NOT_FOR_XCIT[framework],
             NOT_FOR_XCIT[framework])
    _compare({name: hints for name, (_, hints) in on_xcit.items()}, LEFT_OUT[framework], ())
    assert len(on_xcit) > 30


def _in_processes(pool, function, paths, root):
    """Return the result of a function for each file, by its path below the root."""
    found = pool.map(function, paths, chunksize=4)
    return dict(zip([path.relative_to(root).as_posix() for path in paths], found, strict=True))


def _compare(found, known, wanted=None):
    """Compare the lines of each config with those that are known by the beginning of its path."""
    wrong = {name: lines for name, lines in found.items() if lines and not any(
        name.startswith(tuple(starts.split())) and words in ' '.join(lines) for words, starts in known)}
    assert not wrong, '\n'.join(f'{name}: {lines}' for name, lines in wrong.items())
    missed = [start for _, starts in (known if wanted is None else wanted) for start in starts.split()
              if not any(lines and name.startswith(start) for name, lines in found.items())]
    assert not missed  # a list of today's, so that it is not longer than it must be
