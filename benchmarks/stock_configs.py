"""Build, train for a step and predict with each stock config of mmdet and mmsegmentation.

    python -m benchmarks.stock_configs --out stock.json             # all: see docs/other_projects.md
    python -m benchmarks.stock_configs mmdet --only 'dcn|vfnet'

Each different model is built once, without pretrained weights, in a process of its own, and gets two random images of
128 x 128 pixels with boxes, masks and label maps. Configs whose model is equal share the result.
"""
import argparse
import importlib
import json
import os
import re
import sys
import traceback
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from xcit_dense.compat.internals import stock_configs
from xcit_dense.data.datasets import dicts_in

#: Height and width of images; larger for models with more queries than such images have tokens.
SIDE, MANY_QUERIES = 128, 300
#: How processes start, as autograd may have run here, and after how many seconds one is ended.
CONTEXT, LIMIT = get_context('forkserver'), 300
#: Words of errors about packages, weights and files that are not there, and about trackers that mmdet trains in parts.
ABSENT = re.compile(  # not any error that names pip: that of a missing operator of mmcv does too, and is no excuse
    r'fairscale|Detectron2|requirements/\w+.txt|(skimage|lap|motmetrics) is not installed|pip install sklearn|'
    'huggingface|bert-base|URLError|No such file|does not exist|san_head|Please train `detector` and `reid`')


def find(framework, pattern=''):
    """Return the stock configs of a framework by their paths under configs/, and the errors of those not read."""
    from mmengine.config import Config
    root, names = stock_configs(framework)
    found, unread = {}, {}
    for path in sorted(names):
        name = f'{framework}/{path}'
        if not re.search(pattern, name):
            continue
        try:
            cfg = Config.fromfile(root / path)
        except Exception as error:  # of any kind: it stands in the table
            unread[name] = f'{type(error).__name__}: {error}'
            continue
        if 'model' in cfg:
            if 'data_preprocessor' in cfg:
                cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)  # as mmengine's runner does
            found[name] = cfg
    return found, unread


def without_weights(model):
    """Take away all that is read from files or the network, and what needs several processes, in place."""
    for node in [*dicts_in(model)]:
        for key, value in node.items():
            kind = value.get('type') if isinstance(value, dict) else None
            if kind == 'Pretrained' or key == 'init_cfg' and 'checkpoint' in (value or ()) or (
                    key in ('pretrained', 'teacher_ckpt') and isinstance(value, str)):
                node[key] = None
            elif key == 'pretrained' and value is True:  # of timm
                node[key] = False
            elif key == 'norm_cfg' and kind in ('SyncBN', 'MMSyncBN'):
                value['type'] = 'BN'
    return model


def values_of(model, name):
    """Return all values of a key, at any depth."""
    return [node[name] for node in dicts_in(model) if name in node]


def detection_batch(model, count=2):
    """Return a batch of mmdet with boxes, masks, label maps and proposals."""
    import numpy as np
    import torch
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData, PixelData
    classes = min([value for value in values_of(model, 'num_classes') if isinstance(value, int) and value > 0] + [80])
    rng, samples = np.random.default_rng(0), []
    for number in range(count):
        corners = rng.uniform(4, 60, (6, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 60, (6, 2))], 1).astype(np.float32)
        masks = np.zeros((6, SIDE, SIDE), np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int), strict=True):
            mask[y1:y2, x1:x2] = 1
        objects = InstanceData(bboxes=torch.from_numpy(boxes), labels=torch.from_numpy(rng.integers(0, classes, 6)),
                               masks=BitmapMasks(masks, SIDE, SIDE))
        if (model.get('bbox_head') or {}).get('type') in ('RTMDetHead', 'RTMDetSepBNHead'):
            del objects.masks  # its assigner would take them for tensors
        sample = DetDataSample(metainfo=dict(
            img_id=number, img_path='', img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE), scale_factor=(1., 1.),
            flip=False, flip_direction=None, border=[0, SIDE, 0, SIDE], batch_input_shape=(SIDE, SIDE),
            homography_matrix=np.eye(3, dtype=np.float32)))
        sample.gt_instances, sample.ignored_instances = objects, objects[:0]
        sample.gt_sem_seg = PixelData(sem_seg=torch.from_numpy(rng.integers(0, classes, (1, SIDE, SIDE))))
        if 'rpn_head' not in model:
            sample.proposals = InstanceData(bboxes=objects.bboxes, scores=torch.ones(6))
        samples.append(sample)
    return dict(inputs=_images(rng, count), data_samples=samples)


def segmentation_batch(model, count=2):
    """Return a batch of mmsegmentation with label maps, and edges for the models that learn them."""
    import numpy as np
    import torch
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample
    head = model['decode_head'][-1] if isinstance(model['decode_head'], (list, tuple)) else model['decode_head']
    rng, samples = np.random.default_rng(0), []
    for _ in range(count):
        blocks = rng.integers(0, head.get('num_classes', 2), (SIDE // 16, SIDE // 16)).repeat(16, 0).repeat(16, 1)
        sample = SegDataSample(metainfo=dict(img_path='', img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE),
                                             pad_shape=(SIDE, SIDE), scale_factor=(1., 1.), flip=False))
        sample.gt_sem_seg = PixelData(data=torch.from_numpy(blocks[None]))
        sample.gt_edge_map = PixelData(data=torch.from_numpy(blocks[None] % 2))
        sample.gt_depth_map = PixelData(data=torch.rand(1, SIDE, SIDE) + 1)
        samples.append(sample)
    channels = len(model['data_preprocessor']['mean'])  # two images in one, to find changes
    return dict(inputs=_images(rng, count, channels=channels), data_samples=samples)


def classification_batch(kind, count=4):
    """Return a batch of mmpretrain, or of mmdet for a model that tells apart the same things in different images."""
    import numpy as np
    from mmdet.structures import ReIDDataSample
    from mmpretrain.structures import DataSample
    is_reid = kind == 'BaseReID'
    samples = [(ReIDDataSample if is_reid else DataSample)().set_gt_label(number // 2) for number in range(count)]
    size = (256, 128) if is_reid else (SIDE, SIDE)
    return dict(inputs=_images(np.random.default_rng(0), count, size), data_samples=samples)


def _images(rng, count, size=None, channels=3):
    import torch
    return [torch.from_numpy(rng.integers(0, 256, (channels, *(size or (SIDE, SIDE))), dtype='uint8'))
            for _ in range(count)]


def batches(framework, cfg):
    """Return a batch to train with and one to predict with."""
    kind = cfg['type']
    if framework == 'mmseg':
        return segmentation_batch(cfg), segmentation_batch(cfg, 1)
    from mmdet.testing import demo_track_inputs
    if kind in ('BaseReID', 'ImageClassifier'):
        return classification_batch(kind), classification_batch(kind, 1)
    if kind in ('ByteTrack', 'OCSORT'):  # detectors in training, trackers in prediction
        return detection_batch(cfg), demo_track_inputs(image_shapes=(3, SIDE, SIDE), num_frames=1)
    if kind in ('QDTrack', 'DeepSORT', 'StrongSORT', 'MaskTrackRCNN', 'Mask2FormerVideo'):
        masks = kind in ('MaskTrackRCNN', 'Mask2FormerVideo')
        shape = dict(batch_size=1, image_shapes=(3, SIDE, SIDE), num_classes=1 + masks)
        return (demo_track_inputs(num_frames=2, key_frames_inds=[0], with_mask=masks, **shape),
                demo_track_inputs(num_frames=1, **shape))
    train = detection_batch(cfg)
    if kind in ('SoftTeacher', 'SemiBaseDetector'):
        train = {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in train.items()}
    return train, detection_batch(cfg, 1)


def try_model(framework, scope, model):
    """Return how far a model gets ('build', 'train', 'predict' or 'done'), the error, and mmcv's operators it calls."""
    import torch
    from mmengine.logging import MessageHub
    from mmengine.registry import MODELS, init_default_scope
    global SIDE
    least = [256 if model.get('num_queries', 0) > MANY_QUERIES else 128]
    least += [size for size in values_of(model, 'input_size') if isinstance(size, int)]  # of SSD
    if 'LRASPPHead' in values_of(model, 'type'):
        least.append(512)
    SIDE = max(least)
    if model.get('backbone', {}).get('type') in ('BEiT', 'MAE'):
        model['backbone']['img_size'] = SIDE, SIDE  # they take no others
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.chdir(stock_configs(framework)[0].parent)  # teachers are named by configs/...
    called = record_operators()
    step, error = 'build', ''
    try:
        init_default_scope(scope)
        preprocessor = model.get('data_preprocessor') or {}
        if 'size' in preprocessor:
            preprocessor['size'] = (SIDE, SIDE)
        preprocessor.pop('batch_augments', None)  # they enlarge or need a runner
        net = MODELS.build(without_weights(model))
        net.init_weights()
        train, predict = batches(framework, model)
        step = 'train'
        net.train()
        for count in ('epoch', 'iter'):  # some heads ask for them
            MessageHub.get_current_instance().update_info(count, 0)
        loss, _ = net.parse_losses(net(**net.data_preprocessor(train, True), mode='loss'))
        if loss.requires_grad:
            loss.backward()
        if not torch.isfinite(loss):
            raise ArithmeticError(f'the loss is {loss.item()}')
        step = 'predict'
        net.eval()
        with torch.no_grad():
            if len(net(**net.data_preprocessor(predict, False), mode='predict')) != 1:
                raise ValueError('not one prediction of one image')
        step = 'done'
    except Exception as found:  # of any kind: it stands in the table
        place = [line.strip() for line in traceback.format_exc().splitlines() if 'File "' in line][-1]
        error = f'{type(found).__name__}: {found}'[:600] + f' @{place}'
    return dict(step=step, error=error, operators=sorted(called))


def record_operators():
    """Return a set into which the name of each operator goes that mmcv calls, where this package provides it."""
    called, kind = set(), type(sys.modules['mmcv._ext'])
    find = getattr(kind, '__getattr__', None)  # a compiled module has none

    def recorded(module, name):
        called.add(name)
        return find(module, name)

    if find:
        kind.__getattr__ = recorded
    return called


def _send(pipe, *words):
    import xcit_dense  # noqa: F401 - registers models and operators
    warnings.simplefilter('ignore')
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    pipe.send(try_model(*words))


def run(words):
    """Return the result of a (framework, scope, model), from a process of its own."""
    mine, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_send, args=(theirs, *words))
    process.start()
    theirs.close()
    try:
        result = mine.recv() if mine.poll(LIMIT) else dict(step='build', error=f'takes {LIMIT} s', operators=[])
    except EOFError:
        result = dict(step='build', error='the process was ended', operators=[])
    process.kill()
    process.join()
    return result


def survey(found, processes=2):
    """Return the result of each config by name."""
    jobs, names, results = {}, defaultdict(list), {}
    for name, cfg in found.items():
        key = json.dumps([cfg.get('default_scope'), cfg.model.to_dict()], default=str, sort_keys=True)
        jobs.setdefault(key, (name.partition('/')[0], cfg.get('default_scope'), cfg.model))
        names[key].append(name)
    CONTEXT.set_forkserver_preload(['xcit_dense', 'mmdet', 'mmseg'])
    with ThreadPoolExecutor(processes) as pool:
        for key, result in zip(jobs, pool.map(run, jobs.values()), strict=True):
            results.update(dict.fromkeys(names[key], result))
            print(f'{len(results)}/{len(found)}: {names[key][0]} {result["step"]} {result["error"][:150]}', flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('frameworks', nargs='*', default=['mmdet', 'mmseg'])
    parser.add_argument('--only', default='', metavar='PATTERN')
    parser.add_argument('--out', type=Path)
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    os.environ['HF_HUB_OFFLINE'] = '1'  # without the network, an answer at once
    import xcit_dense  # noqa: F401  (with it, mmcv's operators are there)
    found, results = {}, {}
    for framework in args.frameworks:
        importlib.import_module(f'{framework}.models')
        importlib.import_module(f'{framework}.testing' if framework == 'mmdet' else 'mmseg.structures')
        configs, unread = find(framework, args.only)
        found.update(configs)
        results.update({name: dict(step='read', error=error, operators=[]) for name, error in unread.items()})
    results.update(survey(found))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1, sort_keys=True))
    for framework in args.frameworks:
        of = {name: result for name, result in results.items() if name.startswith(framework)}
        done = sum(result['step'] == 'done' for result in of.values())
        absent = sum(bool(ABSENT.search(result['error'])) for result in of.values())
        print(f'{framework}: {done} of {len(of)} build, train and predict, and {absent} lack what is not here')


if __name__ == '__main__':
    main()
