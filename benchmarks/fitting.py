"""Train fitted configs and plain recipes for the same time, on generated data that no rule was tuned on.

python -m benchmarks.fitting FOLDER [--kinds NAME ...] [--minutes N] [--seeds N]
"""
import argparse
import colorsys
import json
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

DETECTION, SEGMENTATION = 'maskrcnn_xcit_n12_p16_small', 'semfpn_xcit_n12_p16_small'
#: The metric of a config, and its factor in the table.
_METRICS = {DETECTION: ('coco/bbox_mAP', 100), SEGMENTATION: ('mIoU', 1)}
_VALIDATION, _SIDES = 24, (3, 4, 0, 5, 6)  # 0 is an ellipse


class Kind(NamedTuple):
    """Data of one kind; lengths are in pixels."""
    images: int
    width: int
    height: int
    #: The shortest and longest objects, and how many are in an image.
    sizes: tuple
    objects: tuple
    classes: int = 1
    #: Width of an object by its length; None: as its form has it.
    thin: float = None
    grey: bool = False
    #: Whether the frequency of a class falls with its number.
    rare: bool = False
    config: str = DETECTION
    #: By class, if they differ: the share of the objects, and what to put in place of ``sizes`` and ``thin``.
    by_class: tuple = ()


KINDS = dict(
    dots=Kind(60, 400, 400, (8, 14), (60, 100), grey=True),
    few=Kind(20, 320, 240, (40, 120), (1, 5), 3),
    many_images=Kind(2000, 160, 160, (20, 60), (1, 4), 10),
    forty=Kind(400, 320, 320, (30, 80), (3, 10), 40, rare=True),
    bars=Kind(100, 480, 360, (50, 180), (4, 12), 2, thin=0.06),
    big=Kind(40, 2000, 1500, (100, 400), (3, 8), 4),
    cracks=Kind(80, 512, 384, (80, 300), (1, 3), 1, thin=0.02, grey=True, config=SEGMENTATION),
    land=Kind(200, 256, 256, (40, 150), (3, 8), 6, rare=True, config=SEGMENTATION),
    # after resizing, the medians of the classes are 57, 31 and 12 pixels
    mixed=Kind(205, 640, 480, (), (9, 18), 3, grey=True, by_class=(
        (0.08, dict(sizes=(220, 320))), (0.85, dict(sizes=(96, 168))), (0.07, dict(sizes=(34, 48))))),
    # scratches are in one image of a hundred or less
    roads=Kind(200, 320, 320, (), (3, 6), 3, config=SEGMENTATION, by_class=(
        (0.7, dict(sizes=(60, 150))), (0.298, dict(sizes=(150, 250), thin=0.03)),
        (0.002, dict(sizes=(80, 160), thin=0.012)))))


def draw(kind, rng):
    """Return an image (H, W, 3) uint8, and its objects as class and outline (n, 2) in pixels, the last on top."""
    size = kind.width, kind.height
    coarse = rng.normal(size=(kind.height // 20 + 2, kind.width // 20 + 2, 3)).astype(np.float32)
    picture = 120 + 18 * cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
    picture += rng.normal(size=picture.shape).astype(np.float32) * 6
    weights = np.array([share for share, _ in kind.by_class] or
                       1 / np.arange(1, kind.classes + 1) ** (1.3 if kind.rare else 0))
    objects = []
    for _ in range(rng.integers(kind.objects[0], kind.objects[1] + 1)):
        label = int(rng.choice(kind.classes, p=weights / weights.sum()))
        own = kind._replace(**kind.by_class[label][1]) if kind.by_class else kind
        length = rng.uniform(*own.sizes)
        radii = np.array([1, own.thin or rng.uniform(0.7, 1)]) * length / 2
        turns = np.arange(_SIDES[label % len(_SIDES)] or 20) * 2 * np.pi
        turns = turns / len(turns) + (np.pi / 4 if len(turns) == 4 else 0)
        turn = rng.uniform(0, np.pi)
        outline = np.stack([np.cos(turns), np.sin(turns)], 1) * radii
        outline = outline @ [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]] + rng.uniform(0, 1, 2) * size
        outline = np.clip(outline.round(), 0, np.subtract(size, 1)).astype(np.int32)
        if np.ptp(outline, 0).min() < 2:
            continue
        hue = (label * 0.38 + rng.uniform(-0.02, 0.02)) % 1
        colour = np.array(colorsys.hsv_to_rgb(hue, 0.65, rng.uniform(0.75, 1))) * 255
        if kind.grey:
            colour = np.full(3, (210, 40)[label % 2] + rng.uniform(-15, 15))
        layer = np.zeros(picture.shape[:2], np.uint8)
        cv2.fillPoly(layer, [outline], 1)
        picture[layer > 0] = colour + rng.normal(size=(int(layer.sum()), 3)) * 10
        objects.append((label, outline))
    if kind.grey:
        picture[:] = picture.mean(2, keepdims=True)
    return picture.clip(0, 255).astype(np.uint8), objects


def write(root, name):
    """Write the data of a kind, in COCO's layout or as folders of images and label maps."""
    kind = KINDS[name]
    for stream, (short, split, count) in enumerate((('train', 'training', kind.images),
                                                    ('val', 'validation', _VALIDATION))):
        is_seg = kind.config == SEGMENTATION
        folder = root / 'images' / split if is_seg else root / f'{short}2017'
        maps = root / 'annotations' / (split if is_seg else '')
        for place in (folder, maps):
            place.mkdir(parents=True, exist_ok=True)
        content = dict(images=[], annotations=[], categories=[
            dict(id=number, name=f'class {number}') for number in range(1, kind.classes + 1)])
        for number in range(1, count + 1):
            picture, objects = draw(kind, np.random.default_rng((zlib.crc32(name.encode()), stream, number)))
            cv2.imwrite(str(folder / f'{number:04d}.jpg'), picture, [cv2.IMWRITE_JPEG_QUALITY, 95])
            labels = np.zeros(picture.shape[:2], np.uint8)
            content['images'].append(dict(id=number, file_name=f'{number:04d}.jpg', height=kind.height,
                                          width=kind.width))
            for label, outline in objects:
                cv2.fillPoly(labels, [outline], label + 1)
                low, high = outline.min(0), outline.max(0) + 1
                content['annotations'].append(dict(
                    id=len(content['annotations']) + 1, image_id=number, category_id=label + 1, iscrowd=0,
                    segmentation=[outline.ravel().tolist()], bbox=[*low.tolist(), *(high - low).tolist()],
                    area=float(cv2.contourArea(outline))))
            if is_seg:
                cv2.imwrite(str(maps / f'{number:04d}.png'), labels)
        if is_seg:
            names = ['ground', *(category['name'] for category in content['categories'])]
            (root / 'classes.txt').write_text('\n'.join(names))
        else:
            (maps / f'instances_{short}2017.json').write_text(json.dumps(content))


def train(root, name, minutes, seed, fits, core):
    """Train in one thread on one core; return the best metric in percent, and the wall-clock seconds of the run."""
    kind, work_dir = KINDS[name], root / f'{name}_{"fitted" if fits else "recipe"}_{seed}'
    result = work_dir / 'result.json'
    if not result.exists():
        work_dir.mkdir(exist_ok=True)
        command = ['taskset', '-c', core, sys.executable, '-m', 'xcit_dense', 'train', kind.config, '--data-root',
                   root / 'data' / name, '--work-dir', work_dir, '--overwrite', '--minutes', minutes,
                   '--seed', seed, '--workers', 0, *([] if fits else ['--no-fit'])]
        start = time.monotonic()
        with (work_dir / 'printed.txt').open('w') as file:
            subprocess.run([*map(str, command)], stdout=file, stderr=subprocess.STDOUT, check=True,
                           env=dict(os.environ, OMP_NUM_THREADS='1'))
        seconds, (metric, factor) = time.monotonic() - start, _METRICS[kind.config]
        lines = [json.loads(line) for path in work_dir.rglob('scalars.json') for line in path.read_text().splitlines()]
        best = max(line[metric] for line in lines if metric in line)
        result.write_text(json.dumps([best * factor, seconds]))
    return json.loads(result.read_text())


def main():
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='for the data and the trainings; those that are there are kept')
    parser.add_argument('--kinds', nargs='+', default=[*KINDS], choices=KINDS)
    parser.add_argument('--minutes', type=float, default=8, help='of each training (default: %(default)g)')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--cores', type=int, nargs='+', default=[0, 1], help='one training on each (default: 0 1)')
    args = parser.parse_args()
    for name in args.kinds:
        if not (args.folder / 'data' / name).exists():
            write(args.folder / 'data' / name, name)
    jobs = [(name, seed, fits) for seed in range(args.seeds) for name in args.kinds for fits in (False, True)]
    random.Random(0).shuffle(jobs)
    jobs.sort(key=lambda job: job[1])  # one seed after the other
    cores, results = [*args.cores], {}

    def run(job):
        core = cores.pop()
        try:
            name, seed, fits = job
            results[job] = train(args.folder, name, args.minutes, seed, fits, core)
            print(*job, *results[job], flush=True)
        finally:
            cores.append(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        [*pool.map(run, jobs)]
    print('| data | recipe | fitted |\n|---|---|---|')
    for name in args.kinds:
        cells = [[results[name, seed, fits][0] for seed in range(args.seeds)] for fits in (False, True)]
        print(f'| {name} |', ' | '.join(f'{statistics.median(cell):.1f} ({min(cell):.1f} to {max(cell):.1f})'
                                        for cell in cells), '|')


if __name__ == '__main__':
    main()
