"""Measure what README and docs show of the demos, draw the pictures and write the tables. `make figures` does all.

    python docs/figures.py measure --nuclei DIR    # 100 minutes on 2 CPU cores; docs/figures.json keeps the results
    python docs/figures.py draw                    # pictures and tables, from the results and the work dirs

DIR is a folder with 90 training and 30 validation images of BBBC038 in COCO's layout (docs/fitting.md). All steps run
on one machine and one day; `measure STEP ...` runs some of them again.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from xcit_dense._utils.machine import describe_machine

DOCS = Path(__file__).resolve().parent
ROOT, RESULTS = DOCS.parent, DOCS / 'figures.json'
_TOOL = f'{sys.executable} -m xcit_dense'
#: Features of random weights, for comparison with DINO's.
_RANDOM = ("import torch; from xcit_dense.models import XCiTClassifier; torch.manual_seed(0); "
           "torch.save(XCiTClassifier('nano_12_p16', num_classes=0).state_dict(), 'work_dirs/demo_dino/random.pth')")
#: Of the authors for XCiT, of mmdet for the others.
_PUBLISHED = '45.3, 40.8', '45.3, 40.8', '46.0, 41.6', '40.9, 37.1'
#: Seconds of the same image on the faster machine of docs/benchmark.md, in the order of the table in the README.
_FASTER = 0.642, 1.42, 1.68, 0.95
#: What follows `test` to test a demo in other ways, in the order of the commands.
VARIANTS = {'float32': '', 'tta': '--tta', 'onnx': 'model.onnx'}
#: Commands of each step, by its name; the first is timed.
STEPS = {
    'demo': ['make demo'], 'demo_seg': ['make demo-seg'],
    'demo_cls': ['make demo-cls', f'{_TOOL} attention work_dirs/demo_cls work_dirs/demo_cls/data/classes/val/star '
                 '--out work_dirs/demo_cls/maps'],
    'finetune': ['make demo-finetune'],
    'dino': ['make demo-dino', f'{sys.executable} -c "{_RANDOM}"',
             f'{_TOOL} test configs/xcit_n12_p8_small.py work_dirs/demo_dino/random.pth --data-root '
             'work_dirs/demo_dino/data/classes --work-dir work_dirs/demo_dino/random --knn --cfg-options '
             'model.backbone.arch=nano_12_p16'],
    'nuclei': [f'{_TOOL} train maskrcnn_xcit_n12_p16_small --data-root $NUCLEI --work-dir work_dirs/nuclei --overwrite '
               '--minutes 10 --seed 0 --amp', f'{_TOOL} test work_dirs/nuclei --report',
               f'{_TOOL} attention work_dirs/nuclei $NUCLEI/val2017 --out work_dirs/nuclei/maps']}
for _name, _config in (('demo', 'maskrcnn_xcit_n12_p16_small'), ('demo_seg', 'semfpn_xcit_n12_p16_small')):
    _run = f'work_dirs/{_name}'
    STEPS[f'{_name}_variants'] = [
        f'{_TOOL} export {_run} {_run}/model.onnx',
        *(f'{_TOOL} test {_config} {_run}/{words} --data-root {_run}/data --work-dir {_run}/variant' if 'onnx' in words
          else f'{_TOOL} test {_run} --work-dir {_run}/variant {words}' for words in VARIANTS.values())]
STEPS |= {  # last, when nothing else runs any more
    'benchmark': [f'{_TOOL} benchmark --rivals authors timm swin_t resnet50 --dtype float32 --runs 3'],
    'growth': [f'{_TOOL} benchmark --patches 8 --images 64x64 --modes inference --dtype float32 --runs 3 --growth '
               '--rivals authors vit swin_t resnet50 --max-tokens 60000 --out work_dirs/growth']}
#: The metrics that pages show.
_METRICS = 'coco/bbox_mAP', 'coco/bbox_mAP_50', 'coco/segm_mAP', 'mIoU', 'accuracy/top1'


def measure(steps, nuclei):
    """Run steps, and keep their seconds and metrics in `RESULTS`."""
    results = json.loads(RESULTS.read_text()) if steps and RESULTS.exists() else {}
    for place, name in enumerate(steps or STEPS):
        print(f'[{place + 1}/{len(steps or STEPS)}] {name}', flush=True)
        lines, seconds = [], []
        for command in STEPS[name]:
            start = time.perf_counter()
            with subprocess.Popen(command, shell=True, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=dict(os.environ, NUCLEI=str(nuclei or ''))) as process:
                lines += [print(line, end='') or line for line in process.stdout]
            if process.returncode:
                sys.exit(f'error: {command} failed with {process.returncode}')
            seconds.append(round(time.perf_counter() - start))
        machine = describe_machine()
        results[name] = dict(seconds=seconds[0], metrics=metrics_in(lines),
                             date=datetime.date.today().isoformat(), device=machine['device'], torch=machine['torch'])
        if name in ('benchmark', 'growth'):
            found = json.loads((ROOT / f'work_dirs/{name}/benchmark.json').read_text())
            results[name]['cells'] = _essence(found['growth' if name == 'growth' else 'cells'])
        RESULTS.write_text(json.dumps(results, indent=1) + '\n')


def metrics_in(lines) -> list:
    """Return the metrics of each validation and test in the log of a run, in order."""
    found = (dict(re.findall(r'([\w/@]+): (-?[\d.]+)', line)) for line in lines if re.search(r'\((val|test)\)', line))
    return [kept for each in found if (kept := {name: float(each[name]) for name in _METRICS if name in each})]


def _essence(cells):
    kept = 'name', 'seconds', 'fastest', 'slowest', 'saved_bytes', 'peak_bytes', 'error', 'gradient_error', 'failed'
    return [dict(arch=cell['arch'], image=cell['image'], mode=cell['mode'], tokens=cell['tokens'],
                 rows=[{key: row[key] for key in kept if key in row} for row in cell['rows']]) for cell in cells]


def draw():
    """Draw the pictures, and write the tables into the pages."""
    results = json.loads(RESULTS.read_text())
    for page in (ROOT / 'README.md', *DOCS.glob('*.md')):
        text = page.read_text()
        if (filled := with_blocks(text, results)) != text:
            page.write_text(filled)
    sys.path.insert(0, str(DOCS))
    from pictures import draw_all
    draw_all(results['benchmark']['cells'], ROOT / 'work_dirs')


def with_blocks(text, results) -> str:
    """Return the text of a page with its blocks renewed: what stands between two comments with a name of `BLOCKS`."""
    return re.sub(r'(<!-- (\w+): made by docs/figures.py -->\n).*?(<!-- end of \2 -->)',
                  lambda found: f'{found[1]}{BLOCKS[found[2]](results)}\n{found[3]}', text, flags=re.S)


def _table(header, *rows):
    return '\n'.join('| ' + ' | '.join(map(str, row)) + ' |' for row in (header, ['---'] * len(header), *rows))


def _measured(result):
    """Say when and where a step was measured."""
    return f'Measured on {result["date"]}: {result["device"]}, torch {result["torch"].partition("+")[0]}'


def _minutes(result):
    return f'{result["seconds"] / 60:.0f} min'


def _detected(metrics):
    return (f'box AP {metrics["coco/bbox_mAP"]:.3f}, AP50 {metrics["coco/bbox_mAP_50"]:.3f}; '
            f'mask AP {metrics["coco/segm_mAP"]:.3f}')


def _nuclei(results):
    found = results['nuclei']
    return ('Mask R-CNN with XCiT nano 12 on four of 30 validation images, chosen for variety, after ten minutes of '
            'training on 90 images from random weights on 2 CPU cores: '
            f'{_detected(found["metrics"][-1])}. Below: principal components of its tokens. Microscopy images: BBBC038 '
            '(2018 Data Science Bowl), CC0. [The command](docs/fitting.md#ten-minutes-on-a-cpu)')


def _nuclei_row(results):
    found = results['nuclei']
    return f'The result on the 30 images: {_detected(found["metrics"][-1])}. {_measured(found)}; one run.'


def _demos(results):
    rows = [('Mask R-CNN, 80 validation images', _detected(results['demo']['metrics'][-1]), 'demo', 'make demo'),
            ('Semantic FPN, 80 validation images', f'mIoU {results["demo_seg"]["metrics"][-1]["mIoU"]:.1f}', 'demo_seg',
             'make demo-seg'),
            ('classifier, 200 validation images of 5 shapes',
             f'top-1 {results["demo_cls"]["metrics"][-1]["accuracy/top1"]:.1f}', 'demo_cls', 'make demo-cls'),
            ('[fine-tuning](fine_tuning.md#measured) on two new classes',
             f'box AP50 {results["finetune"]["metrics"][-1]["coco/bbox_mAP_50"]:.3f}', 'finetune',
             'make demo-finetune'),
            ('[DINO](self_supervision.md#what-a-small-run-learns), then Semantic FPN',
             f'mIoU {_dino_miou(results)[0]:.1f}', 'dino', 'make demo-dino')]
    return _table(('what', 'result', 'time', 'command'), *(
        (what, result, _minutes(results[step]), f'`{command}`') for what, result, step, command in rows)
    ) + f'\n\n{_measured(results["demo"])}.'


def _finetune(results):
    found = results['finetune']
    before, tuned, chance = [each for each in found['metrics'] if 'coco/bbox_mAP' in each][:3]
    return _table(('start of the second run', 'box AP', 'AP50'), *(
        (name, f'{each["coco/bbox_mAP"]:.3f}', f'{each["coco/bbox_mAP_50"]:.3f}') for name, each in (
            ('from the model of three classes', tuned), ('random weights', chance)))) + (
        f'\n\n{_measured(found)}; one run. The model of three classes has a box AP of '
        f'{before["coco/bbox_mAP"]:.3f} on 20 images of its own classes.')


def _dino_miou(results):
    values = [each['mIoU'] for each in results['dino']['metrics'] if 'mIoU' in each]  # of two runs of equal length
    return values[len(values) // 2 - 1], values[-1]


def _dino(results):
    found = results['dino']
    tops = [each['accuracy/top1'] for each in found['metrics'] if 'accuracy/top1' in each]
    return _table(('what', 'DINO', 'random weights'),
                  ('k-NN top-1, 200 images of 5 shapes', *(f'{top:.1f}' for top in tops)),
                  ('mIoU of Semantic FPN after 150 iterations, 80 scenes', *(f'{v:.1f}' for v in _dino_miou(results)))
                  ) + f'\n\n{_measured(found)}, {_minutes(found)} in all; one run.'


def _variants(results, *names):
    found = [dict(zip(VARIANTS, results[f'{step}_variants']['metrics'], strict=True)) for step in ('demo', 'demo_seg')]
    rows = [('box AP of `make demo`', 0, 'coco/bbox_mAP', '.3f'), ('mask AP of `make demo`', 0, 'coco/segm_mAP', '.3f'),
            ('mIoU of `make demo-seg`', 1, 'mIoU', '.2f')]
    return _table(('80 images', *(f'`--{name}`' if name == 'tta' else name for name in names)), *(
        (what, *(format(found[place][name][key], form) for name in names)) for what, place, key, form in rows)
    ) + f'\n\n{_measured(results["demo_variants"])}.'


def _cell(results, arch, mode, image):
    cell = next(cell for cell in results['benchmark']['cells']
                if (cell['arch'], cell['mode'], tuple(cell['image'])) == (arch, mode, image))
    return {row['name']: row for row in cell['rows']}


def _seconds(row, form='{:.3g}'):
    return form.format(row['seconds']) if 'seconds' in row else row.get('failed', '')


def _rivals(results):
    """The table of the README: small 12 with patch 16 beside others at the size of detection."""
    names, image = ('ours', 'authors', 'swin_t', 'resnet50'), (800, 1280)
    run, train = (_cell(results, 'small_12_p16', mode, image) for mode in ('inference', 'training'))
    return _table(
        ('', 'XCiT small 12, patch 16: ours', "the authors' form", 'Swin-T', 'ResNet-50'),
        ('one image, 800 x 1280, s, on two machines', *('{:.2f} to {:.2f}'.format(*sorted(pair)) for pair in zip(
            _FASTER, (run[name]['seconds'] for name in names), strict=True))),
        ('its training step, s, on the slower one', *(_seconds(train[name], '{:.2f}') for name in names)),
        ('kept for the backward pass, GiB', *(f'{train[name]["saved_bytes"] / 2**30:.2f}' for name in names)),
        ('box AP, mask AP of Mask R-CNN on COCO, 3x (published)', *_PUBLISHED),
    ) + (f'\n\nBackbones, float32. {_measured(results["benchmark"])}, and on '
         '[a faster machine](docs/benchmark.md#other-backbones).')


def _benchmark(results):
    rows = []
    for cell in results['benchmark']['cells']:
        if cell['mode'] == 'inference':
            image = tuple(cell['image'])
            run, train = (_cell(results, cell['arch'], mode, image) for mode in ('inference', 'training'))
            saved = [train[name]['saved_bytes'] / 2**30 for name in ('ours', 'authors')]
            rows.append((cell['arch'], '{} x {}'.format(*image), *(part for one in (run, train) for part in (
                f'{_seconds(one["ours"])} / {_seconds(one["authors"])}',
                f'{one["authors"]["seconds"] / one["ours"]["seconds"]:.2f}')),
                f'{saved[0]:.2f} / {saved[1]:.2f}', f'{run["ours"]["error"]:.0e}, {train["ours"]["error"]:.0e}'))
    return _table(('model', 'image', 'inference, s', 'times as fast', 'training step, s', 'times as fast',
                   'kept for the backward pass, GiB', 'error of the maps (inference, training)'), *rows
                  ) + f"\n\nEach pair: ours / the authors' form. {_measured(results['benchmark'])}, float32, batch 1."


def _others(results):
    names = 'ours', 'authors', 'timm', 'swin_t', 'resnet50'
    rows = [(cell['arch'], '{} x {}'.format(*cell['image']), cell['mode'], *(
        _seconds({row['name']: row for row in cell['rows']}[name]) for name in names))
        for mode in ('inference', 'training') for cell in results['benchmark']['cells'] if cell['mode'] == mode]
    return _table(('XCiT', 'image', 'mode', 'ours, s', 'authors', 'timm', 'Swin-T', 'ResNet-50'), *rows
                  ) + f'\n\n{_measured(results["benchmark"])}, float32, batch 1.'


def _growth(results):
    cells = results['growth']['cells']
    names = dict.fromkeys(row['name'] for cell in cells for row in cell['rows'])
    rows = ((name, *(_seconds(next((row for row in cell['rows'] if row['name'] == name), {})) for cell in cells))
            for name in names)
    return _table(('seconds', *(f'{cell["tokens"]:,}' for cell in cells)), *rows
                  ) + f'\n\nTokens of small 12 with patch 8. {_measured(results["growth"])}, float32, medians of 3.'


#: What stands in the pages, by the name in its comments.
BLOCKS = dict(nuclei=_nuclei, nuclei_result=_nuclei_row, demos=_demos, finetune=_finetune, dino=_dino, rivals=_rivals,
              benchmark=_benchmark, others=_others, growth=_growth,
              tta=lambda results: _variants(results, 'float32', 'tta'),
              exported=lambda results: _variants(results, 'float32', 'onnx'))


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
