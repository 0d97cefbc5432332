"""Draw the pictures of the README and the docs: speed from a benchmark, predictions and reports from two models.

    python -m xcit_dense benchmark && python docs/make_images.py speed

The models train longer than the demos, and with more images:

    train="python -m xcit_dense train --amp --cfg-options randomness.seed=0 --data-root"
    python -m xcit_dense make_demo_data work_dirs/shown/data --train 800
    python -m xcit_dense make_demo_data work_dirs/shown_seg/data --train 800
    $train work_dirs/shown/data --work-dir work_dirs/shown --epochs 15 maskrcnn_xcit_n12_p16_small
    $train work_dirs/shown_seg/data --work-dir work_dirs/shown_seg --iterations 2100 semfpn_xcit_n12_p16_small
    for run in "maskrcnn_xcit_n12_p16_small work_dirs/shown" "semfpn_xcit_n12_p16_small work_dirs/shown_seg"; do
        python -m xcit_dense test $run --data-root ${run#* }/data --work-dir ${run#* } --report
    done
    python docs/make_images.py predictions && python docs/make_images.py reports
"""
import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from xcit_dense.draw import class_colours, draw_map, draw_objects

IMAGES = Path(__file__).resolve().parent / 'images'
REPORTS = IMAGES.parent / '_static/reports'
OURS, PLAIN = '#d1495b', '#b9c0c9'
#: Objects with a lower score are not drawn.
THRESHOLD = 0.5


def draw_speed(result) -> Figure:
    """Draw time and memory of a benchmark, ours next to the plain form.

    Args:
        result: What the tool benchmark writes as ``benchmark.json``.
    """
    panels = (('inference', 'seconds', 1, 'inference, seconds'), ('training', 'seconds', 1, 'training step, seconds'),
              ('training', 'saved_bytes', 2**30, 'memory kept for the backward pass, GiB'))
    panels = [panel for panel in panels if _bars(result, *panel[:3])]
    count = max(len(_bars(result, *panel[:3])) for panel in panels)
    figure = Figure(figsize=(4.2 * len(panels), 1.1 + 0.62 * count), layout='constrained')
    for axes, (mode, value, unit, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for place, (name, ours, plain) in enumerate(_bars(result, mode, value, unit)):
            axes.barh(place - 0.17, ours, 0.34, color=OURS, label='xcit_dense' if place == 0 else None)
            axes.barh(place + 0.17, plain, 0.34, color=PLAIN, label="the authors' form" if place == 0 else None)
            axes.text(ours, place - 0.17, f' {ours:.3g}', va='center', fontsize='small')
            axes.text(plain, place + 0.17, f' {plain:.3g} ({plain / ours:.1f}x)', va='center', fontsize='small')
            axes.text(0, place - 0.36, f' {name}', va='bottom', fontsize='small', color='#444444')
        axes.set(title=title, yticks=[], ylim=(len(_bars(result, mode, value, unit)) - 0.5, -0.75))
        axes.margins(x=0.22)
        axes.spines[['top', 'right', 'left']].set_visible(False)
    figure.axes[0].legend(loc='lower right', frameon=False, fontsize='small')
    machine = result['machine']
    figure.supxlabel(f'{machine["device"]}; torch {machine["torch"]}; whole backbone with pyramid', fontsize='small',
                     color='#666666')
    return figure


def _bars(result, mode, value, unit):
    """Return name, ours and plain of every cell that has both."""
    found = []
    for cell in result['cells']:
        rows = {row['name']: row for row in cell['rows'] if value in row}
        if cell['mode'] == mode and {'ours', 'plain'} <= rows.keys():
            height, width = cell['image']
            found.append((f'{cell["arch"]}, {height} x {width}', rows['ours'][value] / unit,
                          rows['plain'][value] / unit))
    return found


def draw_predictions(demo, demo_seg, count=3) -> Figure:
    """Draw what the two models find, below the ground truth, as the tools draw it.

    The images are those of the validation with the lowest numbers that are wider than high, whatever is found in them.

    Args:
        demo: Work dir of the detector, with its data in ``data``.
        demo_seg: The same of the segmentor.
        count: Images of each model.
    """
    from pycocotools.coco import COCO

    import xcit_dense
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
                        detector(image, threshold=THRESHOLD).draw()))
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


def main(argv=None):
    """Draw one of the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('picture', choices=('speed', 'predictions', 'reports'))
    parser.add_argument('--benchmark', metavar='FILE', default='work_dirs/benchmark/benchmark.json')
    parser.add_argument('--demo', metavar='DIR', default='work_dirs/shown')
    parser.add_argument('--demo-seg', metavar='DIR', default='work_dirs/shown_seg')
    args = parser.parse_args(argv)
    IMAGES.mkdir(exist_ok=True)
    if args.picture == 'speed':
        draw_speed(json.loads(Path(args.benchmark).read_text())).savefig(IMAGES / 'speed.png', dpi=120)
    elif args.picture == 'reports':
        copy_reports(args.demo, args.demo_seg)
    else:
        draw_predictions(args.demo, args.demo_seg).savefig(
            IMAGES / 'predictions.jpg', dpi=100, pil_kwargs=dict(quality=88))


if __name__ == '__main__':
    main()
