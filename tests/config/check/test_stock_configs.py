"""The check of configs on all that the frameworks bring: it refuses those alone that are broken."""
import resource
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest

from helpers.refusals import refusal
from xcit_dense.config.check.trial import isolate

NO_RUN = 'lacks parts of a run: it is a base of others, or for testing'
NO_BASE = 'names a _base_ that is not there'
OLD = 'has a key of version 2, which nothing reads'
#: What is broken, by the beginning of the config's path, and what the refusal says.
BROKEN = {
    'mmdet': {
        'bytetrack/bytetrack_yolox_x_8xb4-80e_crowdhuman-mot20train': ('MOTChallengeMetrics', 'a type misspelt'),
        'bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot20train': ('MOTChallengeMetrics', 'a type misspelt'),
        'bytetrack/bytetrack_yolox_x_8xb4-amp-80e_crowdhuman-mot17halftrain_test-mot17test': ('No such file', NO_BASE),
        'cascade_rpn/cascade-rpn_r50-caffe_fpn_1x_coco': ('num_classes', 'lacks an argument that has no default'),
        'centernet/centernet_tta': ('not there', NO_RUN),
        'common/': ('not there', NO_RUN),
        'deepsort/': ('not there', NO_RUN),
        'glip/odinw/override_category': ('not there', NO_RUN),
        'grounding_dino/odinw/override_category': ('not there', NO_RUN),
        'guided_anchoring/ga-fast-rcnn_r50-caffe_fpn_1x_coco': ('optimizer_config', OLD),
        'mm_grounding_dino/odinw/override_category': ('not there', NO_RUN),
        'pascal_voc/faster-rcnn_r50_fpn_1x_voc0712-cocofmt': ('eval_mode', 'an argument of another metric'),
        'qdtrack/qdtrack_faster-rcnn_r50_fpn_4e_base': ('not there', NO_RUN),
        'retinanet/retinanet_tta': ('not there', NO_RUN),
        'rtmdet/rtmdet_tta': ('not there', NO_RUN),
        'solov2/solov2-light_r': ('by_epoch', 'an argument that the loop of its type does not take'),
        'sort/faster-rcnn_r50_fpn_8xb2-': ('does not exist', NO_BASE),
        'sort/sort_': ('not there', NO_RUN),
        'strongsort/': ('not there', NO_RUN),
        'v3det/fcos_swinb_fpn_8x4': ('force_grad_on_level', 'an argument that the neck does not take'),
        'yolox/yolox_tta': ('not there', NO_RUN),
    },
    'mmseg': {
        'dnlnet/dnl_r': ('wd_mult', 'a factor of another name, which changes nothing'),
        'mae/mae-base_upernet': ('fp16', OLD),
        'mobilenet_v3/': ('runner', OLD),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize('framework', BROKEN)
def test_only_broken_configs_are_refused(framework):
    spec = find_spec(framework)
    root = Path(spec.submodule_search_locations[0], '.mim/configs') if spec else Path()
    paths = sorted(path for path in root.rglob('*.py') if '_base_' not in path.parts) if spec else []
    if not paths:
        pytest.skip(f'no configs of {framework} in {root}')
    start = _seconds()
    with ProcessPoolExecutor(2, get_context('spawn'), isolate) as pool:
        refusals = dict(zip(paths, pool.map(refusal, paths, chunksize=8), strict=True))
    seconds = _seconds() - start
    names = {path.relative_to(root).as_posix(): text for path, text in refusals.items() if text}
    wrong = {name: text for name, text in names.items()
             if not any(name.startswith(start) and words in text for start, (words, _) in BROKEN[framework].items())}
    assert not wrong, '\n'.join(f'{name}: {text}' for name, text in wrong.items())
    missed = [start for start in BROKEN[framework] if not any(name.startswith(start) for name in names)]
    assert not missed  # a list of today's, so that it is not longer than it must be
    assert seconds < 120, f'{len(paths)} configs took {seconds:.0f} seconds of a core'


def _seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # whatever else the machine does
    return used.ru_utime + used.ru_stime
