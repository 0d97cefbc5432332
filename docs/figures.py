"""Measure what README and docs show of the demos, draw the pictures and write the tables. `make figures` does all.

    python docs/figures.py measure --nuclei DIR    # 100 minutes on 2 CPU cores; docs/figures.json keeps the results
    python docs/figures.py draw                    # pictures and tables, from the results and the work dirs

DIR is a folder with 90 training and 30 validation images of BBBC038 in COCO's layout (docs/fitting.md). All steps run
on one machine and one day; `measure STEP ...` runs some of them again.
"""
import argparse
import csv
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from xcit_dense._utils.machine import describe_machine
from xcit_dense.draw import class_colours, draw_map, draw_objects

DOCS = Path(__file__).resolve().parent
ROOT, IMAGES, REPORTS, RESULTS = DOCS.parent, DOCS / 'images', DOCS / '_static/reports', DOCS / 'figures.json'
OURS, AUTHORS, OTHERS = '#d1495b', '#7d8894', '#c9ced4'
#: Validation images of the nuclei that the README shows: of four kinds of microscopes and stains.
SHOWN = (1, 5, 9, 10)
_TOOL = f'{sys.executable} -m xcit_dense'
#: Features of random weights, for comparison with DINO's.
_RANDOM = ("import torch; from xcit_dense.models import XCiTClassifier; torch.manual_seed(0); "
           "torch.save(XCiTClassifier('nano_12_p16', num_classes=0).state_dict(), 'work_dirs/demo_dino/random.pth')")
#: Commands of each step, by its name. The metrics of `VARIANTS` are found in the order of their commands.
VARIANTS = {'float32': '', 'bfloat16': '--dtype bfloat16', 'tta': '--tta', 'onnx': 'model.onnx'}
STEPS = {
    'demo': ['make demo'], 'demo_seg': ['make demo-seg'], 'demo_cls': ['make demo-cls'],
    'finetune': ['make demo-finetune'],
    'dino': ['make demo-dino', f'{sys.executable} -c "{_RANDOM}"',
             f'{_TOOL} test configs/xcit_n12_p8_small.py work_dirs/demo_dino/random.pth --data-root '
             'work_dirs/demo_dino/data/classes --work-dir work_dirs/demo_dino/random --knn --cfg-options '
             'model.backbone.arch=nano_12_p16'],
    'nuclei': [f'{_TOOL} train maskrcnn_xcit_n12_p16_small --data-root $NUCLEI --work-dir work_dirs/nuclei --overwrite '
               '--minutes 10 --seed 0 --amp', f'{_TOOL} test work_dirs/nuclei --report'],
    'benchmark': [f'{_TOOL} benchmark --rivals authors timm swin_t resnet50 --dtype float32 --runs 3'],
    'growth': [f'{_TOOL} benchmark --patches 8 --images 64x64 --modes inference --dtype float32 --runs 3 --growth '
               '--rivals authors vit swin_t resnet50 --max-tokens 150000 --out work_dirs/growth']}
for _name, _config in (('demo', 'maskrcnn_xcit_n12_p16_small'), ('demo_seg', 'semfpn_xcit_n12_p16_small')):
    _run = f'work_dirs/{_name}'
    STEPS[f'{_name}_variants'] = [
        f'{_TOOL} export {_run} {_run}/model.onnx',
        *(f'{_TOOL} test {_config} {_run}/{words} --data-root {_run}/data --work-dir {_run}/variant' if 'onnx' in words
          else f'{_TOOL} test {_run} --work-dir {_run}/variant {words}' for words in VARIANTS.values())]


def measure(steps, nuclei):
    """Run steps, and keep their seconds and metrics in `RESULTS`."""
    results = json.loads(RESULTS.read_text()) if steps and RESULTS.exists() else {}
    for place, name in enumerate(steps or STEPS):
        print(f'[{place + 1}/{len(steps or STEPS)}] {name}', flush=True)
        start, lines = time.perf_counter(), []
        for command in STEPS[name]:
            with subprocess.Popen(command, shell=True, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=dict(os.environ, NUCLEI=str(nuclei or ''))) as process:
                lines += [print(line, end='') or line for line in process.stdout]
            if process.returncode:
                sys.exit(f'error: {command} failed with {process.returncode}')
        machine = describe_machine()
        results[name] = dict(seconds=round(time.perf_counter() - start), metrics=metrics_in(lines),
                             date=datetime.date.today().isoformat(), device=machine['device'], torch=machine['torch'])
        if name in ('benchmark', 'growth'):
            found = json.loads((ROOT / f'work_dirs/{name}/benchmark.json').read_text())
            results[name]['cells'] = _essence(found['growth' if name == 'growth' else 'cells'])
        RESULTS.write_text(json.dumps(results, indent=1) + '\n')


def metrics_in(lines) -> list:
    """Return the metrics of each validation and test in the log of a run, in order."""
    found = (dict(re.findall(r'([\w/@]+): (-?[\d.]+)', line)) for line in lines if re.search(r'\((val|test)\)', line))
    return [{name: float(value) for name, value in each.items() if 'time' not in name} for each in found
            if {'coco/bbox_mAP', 'mIoU', 'accuracy/top1'} & {*each}]


def _essence(cells):
    kept = 'name', 'seconds', 'fastest', 'slowest', 'saved_bytes', 'peak_bytes', 'error', 'gradient_error', 'failed'
    return [dict(arch=cell['arch'], image=cell['image'], mode=cell['mode'], tokens=cell['tokens'],
                 rows=[{key: row[key] for key in kept if key in row} for row in cell['rows']]) for cell in cells]


def main(argv=None):
    """Measure or draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('what', choices=('measure', 'draw'))
    parser.add_argument('steps', nargs='*', metavar='STEP', help=f'measure: only these steps: {", ".join(STEPS)}')
    parser.add_argument('--nuclei', metavar='DIR', type=Path, help='measure: the data of the step nuclei')
    args = parser.parse_args(argv)
    if args.what == 'draw':
        draw()
        return
    if unknown := {*args.steps} - {*STEPS}:
        parser.error(f'there is no step {", ".join(unknown)}; there are {", ".join(STEPS)}')
    if 'nuclei' in (args.steps or STEPS) and not (args.nuclei and args.nuclei.is_dir()):
        parser.error('the step nuclei needs --nuclei DIR')
    measure(args.steps, args.nuclei.resolve() if args.nuclei else None)


if __name__ == '__main__':
    main()
