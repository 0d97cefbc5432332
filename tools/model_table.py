"""Renew the model table of docs/models.md, the metafiles and model-index.yml from archs.py, the zoo and the configs."""
import argparse
import re
import sys
from pathlib import Path

import torch
import yaml
from mmengine.registry import MODELS, init_default_scope

import xcit_dense
from xcit_dense.benchmark.costs import multiply_adds
from xcit_dense.cli.common import run_tool
from xcit_dense.weights.zoo import PREFIX, WEIGHTS

#: Prefix of the configs: the data set in their names, and what the metafile says of the family.
_FAMILIES = {
    'maskrcnn': ('coco', 'Mask R-CNN', 'COCO', ('Object Detection', 'Instance Segmentation')),
    'semfpn': ('ade20k', 'Semantic FPN', 'ADE20K', ('Semantic Segmentation', )),
    'upernet': ('ade20k', 'UperNet', 'ADE20K', ('Semantic Segmentation', )),
}
#: Metrics of `xcit_dense.weights.zoo.Weights.published` as the table and the metafiles call them.
_METRICS = {'box_ap': 'box AP', 'mask_ap': 'mask AP', 'miou': 'mIoU'}
_SIZES = ((224, 224), (800, 1280))
_START, _END = '<!-- models: made by tools/model_table.py -->\n', '<!-- end of models -->\n'


def config_name(family, arch):
    """Return the name of a config: ``('maskrcnn', 'small_12_p8')`` gives ``'maskrcnn_xcit_s12_p8_coco'``."""
    size, rest = arch.split('_', 1)
    return f'{family}_xcit_{size[0]}{rest}_{_FAMILIES[family][0]}'


def collect():
    """Return a dict per size and task, in the order of the table."""
    rows = []
    for family in _FAMILIES:
        for arch in xcit_dense.arch_names():
            cfg = xcit_dense.get_config(config_name(family, arch), pretrained=False)
            init_default_scope(cfg.default_scope)
            with torch.device('meta'):
                model = MODELS.build(cfg.model)
            rows.append(dict(
                family=family, arch=arch, config=config_name(family, arch),
                parameters=sum(p.numel() for p in model.parameters()),
                backbone_parameters=sum(p.numel() for p in model.backbone.parameters()),
                multiply_adds=[multiply_adds(arch, *size) for size in _SIZES],
                weights=f'{family}_{arch}' if f'{family}_{arch}' in WEIGHTS else None))
    return rows


def page_with_table(page: str, rows) -> str:
    """Return the text of a page with the table between its two marks renewed."""
    sizes = ' / '.join(f'{h} x {w}' for h, w in _SIZES)
    lines = [f'| config | parameters, M (backbone) | multiply-adds, G, at {sizes} | published | weights |',
             '|---|---|---|---|---|']
    for row in rows:
        published = '-' if row['weights'] is None else ', '.join(
            f'{_METRICS[name]} {value}' for name, value in WEIGHTS[row['weights']].published.items())
        counts = ' / '.join(f'{n / 1e9:.1f}' for n in row['multiply_adds'])
        lines.append(f'| [{row["config"]}](../configs/{row["config"]}.py) | {row["parameters"] / 1e6:.1f} '
                     f'({row["backbone_parameters"] / 1e6:.1f}) | {counts} | {published} | '
                     + (f'[`{PREFIX}{row["weights"]}`]({WEIGHTS[row["weights"]].url}) |' if row['weights'] else '- |'))
    return re.sub(f'(?<={re.escape(_START)}).*(?={re.escape(_END)})', '\n'.join(lines) + '\n', page, flags=re.S)


def metafile(family, rows) -> str:
    """Return the text of a family's metafile, as mim reads it."""
    _, title, dataset, tasks = _FAMILIES[family]
    models = []
    for row in rows:
        if row['family'] != family:
            continue
        model = {'Name': row['config'], 'In Collection': f'{title} on XCiT', 'Config': f'configs/{row["config"]}.py',
                 'Metadata': {'Parameters': row['parameters']}}
        if row['weights']:
            weights = WEIGHTS[row['weights']]
            model['Metadata']['Source of results'] = 'published by the authors, not measured here'
            metrics = [(_METRICS[name], value) for name, value in weights.published.items()]
            model['Results'] = [{'Task': task, 'Dataset': dataset, 'Metrics': {name: value}}
                                for task, (name, value) in zip(tasks, metrics, strict=True)]
            model['Weights'] = weights.url
        models.append(model)
    collection = {'Name': f'{title} on XCiT', 'README': '../README.md',
                  'Metadata': {'Training Data': dataset, 'Architecture': ['XCiT', title]},
                  'Paper': {'URL': 'https://arxiv.org/abs/2106.09681',
                            'Title': 'XCiT: Cross-Covariance Image Transformers'}}
    return '# Made by tools/model_table.py.\n' + yaml.safe_dump(
        {'Collections': [collection], 'Models': models}, sort_keys=False, width=120)


def make_files(root) -> dict:
    """Return what the page of models, the metafiles and ``model-index.yml`` below ``root`` must be, by path."""
    root = Path(root)
    rows = collect()
    files = {root / f'configs/{family}_metafile.yml': metafile(family, rows) for family in _FAMILIES}
    files[root / 'model-index.yml'] = yaml.safe_dump({'Import': [str(p.relative_to(root)) for p in files]})
    page = root / 'docs/models.md'
    files[page] = page_with_table(page.read_text(), rows)
    return files


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing; exit with 1 if a file is not up to date')
    return parser.parse_args(argv)


def write_or_check(args):
    root = Path(__file__).parents[1]
    stale = {path: text for path, text in make_files(root).items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        print(f'{"not up to date" if args.check else "wrote"}: {path.relative_to(root)}')
        if not args.check:
            path.write_text(text)
    if args.check and stale:
        sys.exit('error: run python tools/model_table.py')


if __name__ == '__main__':
    run_tool(write_or_check, read_options(None))
