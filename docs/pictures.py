"""The pictures of README and docs, from the runs and the benchmark of figures.py."""
import csv
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import xcit_dense
from xcit_dense.draw import class_colours, draw_map, draw_objects

IMAGES = Path(__file__).resolve().parent / 'images'
REPORTS = IMAGES.parent / '_static/reports'
OURS, AUTHORS, OTHERS = '#d1495b', '#7d8894', '#c9ced4'
#: Validation images of the nuclei that the README shows, chosen for variety: microscopes and stains differ.
SHOWN = (1, 5, 8, 24)


def draw_all(cells, runs):
    """Draw every picture.

    Args:
        cells: What the benchmark measured.
        runs: Folder with the work dirs of the demos, of the nuclei and of the growth.
    """
    IMAGES.mkdir(exist_ok=True)
    draw_speed(cells).savefig(IMAGES / 'speed.png', dpi=120)
    for name, figure in (('nuclei', draw_nuclei(runs / 'nuclei')),
                         ('predictions', draw_predictions(runs / 'demo', runs / 'demo_seg'))):
        figure.savefig(IMAGES / f'{name}.jpg', dpi=100, pil_kwargs=dict(quality=88))
    shutil.copy(next((runs / 'growth').glob('growth_*.png')), IMAGES / 'growth.png')
    shutil.copy(sorted((runs / 'demo_cls/maps').glob('*.png'))[0], IMAGES / 'attention.png')
    copy_reports(runs / 'demo', runs / 'demo_seg')


def draw_speed(cells) -> Figure:
    """Draw time and memory of small 12 with both patches at 800 x 1280, beside other backbones."""
    panels = (('inference', 'seconds', 1, 'one image, s'), ('training', 'seconds', 1, 'training step, s'),
              ('training', 'saved_bytes', 2**30, 'kept for the backward pass, GiB'))
    names = {'ours': 'xcit_dense', 'authors': "the authors' form", 'swin_t': 'Swin-T', 'resnet50': 'ResNet-50'}
    colours = dict(ours=OURS, authors=AUTHORS)
    figure = Figure(figsize=(12.6, 3.6), layout='constrained')
    for axes, (mode, value, unit, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        place = 0
        for arch in ('small_12_p8', 'small_12_p16'):
            rows = {row['name']: row for cell in cells for row in cell['rows']
                    if (cell['arch'], cell['mode'], tuple(cell['image'])) == (arch, mode, (800, 1280))}
            for name in names:  # the others, which have no patch, once
                if value in rows.get(name, {}) and (name in colours or '16' in arch):
                    number = rows[name][value] / unit
                    axes.barh(place, number, 0.8, color=colours.get(name, OTHERS))
                    patch = f', {arch[9:]}' if name in colours else ''
                    axes.text(number, place, f' {number:.3g}  {names[name]}{patch}', va='center', fontsize='small')
                    place += 1
            place += 0.4
        axes.set(title=title, yticks=[])
        axes.invert_yaxis()
        axes.margins(x=0.75)
        axes.spines[['top', 'right', 'left']].set_visible(False)
    return figure


def _threshold(work_dir):
    """Return the score threshold with the best F1 in the report of a run: the median of its classes."""
    with Path(work_dir, 'report/per_class.csv').open(newline='') as file:
        return statistics.median(float(row['threshold']) for row in csv.DictReader(file) if row['threshold'])


def draw_nuclei(work_dir) -> Figure:
    """Draw some test images of the nuclei: what the model finds, and the components of its tokens."""
    detector, threshold = xcit_dense.load(work_dir), _threshold(work_dir)
    maps = sorted(Path(work_dir, 'maps').glob('*.npz'))
    images = Path(re.search(r"data_root='([^']+)'", next(Path(work_dir).glob('*.py')).read_text())[1], 'val2017')
    figure = Figure(figsize=(12, 6.2), layout='constrained')
    for column, number in zip(figure.subplots(2, len(SHOWN)).T, SHOWN, strict=True):
        name = f'{number:012}'
        column[0].imshow(_square(detector(images / f'{name}.jpg', threshold=threshold).draw()))
        found = np.load(next(path for path in maps if path.stem.startswith(name)))
        parts = found['components'][-1]
        low, high = np.percentile(parts, (1, 99), axis=(0, 1))
        column[1].imshow(_square((parts - low) / (high - low)).clip(0, 1), interpolation='bilinear')
        for axes in column:
            axes.set_axis_off()
    return figure


def _square(picture):
    side = min(picture.shape[:2])
    return picture[:side, :side]


def draw_predictions(demo, demo_seg, count=3) -> Figure:
    """Draw what the two models of the demos find, below the ground truth, as the tools draw it.

    The images are those of the validation with the lowest numbers that are wider than high, whatever is found in them;
    objects have at least the score with the best F1 in the report of the run.

    Args:
        demo: Work dir of the detector, with its data in ``data`` and its report.
        demo_seg: The same of the segmentor.
        count: Images of each model.
    """
    from pycocotools.coco import COCO
    columns = []
    detector, coco = xcit_dense.load(demo), COCO(Path(demo, 'data/annotations/instances_val2017.json'))
    upright = {number: entry['height'] > entry['width'] for number, entry in coco.imgs.items()}
    order = sorted(coco.imgs, key=lambda number: (upright[number], number))
    for number in order[:count]:
        image = _read(Path(demo, 'data/val2017', coco.imgs[number]['file_name']))
        objects = coco.loadAnns(coco.getAnnIds(number))
        labels = [detector.classes.index(coco.cats[each['category_id']]['name']) for each in objects]
        boxes = np.array([each['bbox'] for each in objects], float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        columns.append((draw_objects(image, boxes, labels, detector.classes, class_colours(detector.classes),
                                     [coco.annToMask(each) for each in objects]),
                        detector(image, threshold=_threshold(demo)).draw()))
    segmentor, folder = xcit_dense.load(demo_seg), Path(demo_seg, 'data')
    for number in order[count:2 * count]:  # both have the same images, once in each layout
        name = Path(coco.imgs[number]['file_name']).stem
        image = _read(folder / 'images/validation' / f'{name}.jpg')
        labels = np.asarray(Image.open(folder / 'annotations/validation' / f'{name}.png'))
        columns.append((draw_map(image, labels, segmentor.classes, class_colours(segmentor.classes)),
                        segmentor(image, scores=False).draw()))
    return _grid(columns, count)


def _read(path):
    return np.asarray(Image.open(path).convert('RGB'))


def _grid(columns, count):
    figure = Figure(figsize=(16, 5.2), layout='constrained')
    for group, half, title in zip(figure.subfigures(1, 2), (columns[:count], columns[count:]),
                                  ('Mask R-CNN: detection', 'Semantic FPN: segmentation'), strict=True):
        group.suptitle(title, fontsize='large')
        grid = group.subplots(2, count, squeeze=False)
        for place, pictures in enumerate(half):
            for row, picture in enumerate(pictures):
                grid[row][place].imshow(picture)
                grid[row][place].set(xticks=[], yticks=[])
                grid[row][place].spines[:].set_visible(False)
        for row, text in enumerate(('ground truth', 'prediction')):
            grid[row][0].set_ylabel(text)
    return figure


def copy_reports(demo, demo_seg):
    """Copy the reports on the two models for the site, and draw the top of the first with Chromium.

    Args:
        demo: Work dir of the detector, with its data in ``data``.
        demo_seg: The same of the segmentor.
    """
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name, folder in (('detection', demo), ('segmentation', demo_seg)):
        shutil.copy(Path(folder, 'report/report.html'), REPORTS / f'{name}.html')
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run([shutil.which('chromium') or 'google-chrome', '--headless', '--no-sandbox', '--disable-gpu',
                        '--hide-scrollbars', f'--user-data-dir={profile}', '--window-size=1280,1550',
                        '--virtual-time-budget=3000', '--run-all-compositor-stages-before-draw',
                        f'--screenshot={IMAGES / "report.png"}', (REPORTS / 'detection.html').as_uri()], check=True)
    with Image.open(IMAGES / 'report.png') as picture:
        picture.convert('RGB').save(IMAGES / 'report.png', optimize=True)
