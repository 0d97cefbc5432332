"""Renew the model tables of docs and README, the metafiles and model-index.yml from archs, zoo and configs."""
import argparse
import re
import sys
from pathlib import Path

import torch
import yaml
from mmengine.registry import MODELS, init_default_scope

import xcit_dense
from xcit_dense.cli.common import run_tool
from xcit_dense.weights.zoo import PREFIX, WEIGHTS

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.costs import multiply_adds

#: Prefix of the configs: the data set in their names, and what the metafile says about the family. Classifiers have
#: no prefix.
_FAMILIES = {
    '': ('imagenet', 'Classifier', 'ImageNet-1k', ('Image Classification', )),
    'maskrcnn': ('coco', 'Mask R-CNN', 'COCO', ('Object Detection', 'Instance Segmentation')),
    'semfpn': ('ade20k', 'Semantic FPN', 'ADE20K', ('Semantic Segmentation', )),
    'upernet': ('ade20k', 'UperNet', 'ADE20K', ('Semantic Segmentation', )),
}
#: Names of the metrics of `RESULTS` in the table and the metafiles.
_METRICS = {'box_ap': 'box AP', 'mask_ap': 'mask AP', 'miou': 'mIoU', 'top1': 'Top 1 Accuracy'}
_METRICS_DINO = {'knn': 'Top 1 Accuracy (k-NN)', 'linear': 'Top 1 Accuracy (linear)'}
_SIZES = ((224, 224), (800, 1280))
_SIZES_IMAGENET = ((224, 224), (384, 384))
#: The files of a classifier: trained at 224, distilled, distilled and fine-tuned at 384.
_KINDS = ('224', '224_dist', '384_dist')
#: The metrics as the tables show them.
_SHOWN = {**_METRICS, 'top1': 'ImageNet top-1'}
#: The rows of the README.
_CHOSEN = ('maskrcnn_xcit_t12_p16_coco', 'maskrcnn_xcit_s12_p16_coco', 'maskrcnn_xcit_s12_p8_coco',
           'semfpn_xcit_s12_p16_ade20k', 'upernet_xcit_s12_p8_ade20k', 'xcit_s12_p16_imagenet')
_MARKS = '<!-- {0}: made by tools/model_table.py -->\n', '<!-- end of {0} -->\n'
#: ImageNet top-1: trained at 224, distilled at 224, distilled and then fine-tuned at 384.
_TOP1 = {
    'nano_12_p16': (69.9, 72.2, 75.4), 'nano_12_p8': (73.8, 76.3, 77.8),
    'tiny_12_p16': (77.1, 78.6, 80.9), 'tiny_12_p8': (79.7, 81.2, 82.4),
    'tiny_24_p16': (79.4, 80.4, 82.6), 'tiny_24_p8': (81.9, 82.6, 83.7),
    'small_12_p16': (82.0, 83.3, 84.7), 'small_12_p8': (83.4, 84.2, 85.1),
    'small_24_p16': (82.6, 83.9, 85.1), 'small_24_p8': (83.9, 84.9, 85.6),
    'medium_24_p16': (82.7, 84.3, 85.4), 'medium_24_p8': (83.7, 85.1, 85.8),
    'large_24_p16': (82.9, 84.9, 85.8), 'large_24_p8': (84.4, 85.4, 86.0),
}
#: PASSL (PaddlePaddle): top-1 and top-5 of the models trained at 224, at crop ratio 1.
PASSL = {
    'nano_12_p8': (73.90, 92.13), 'nano_12_p16': (70.01, 89.82), 'tiny_12_p8': (79.68, 95.04),
    'tiny_12_p16': (77.15, 93.72), 'tiny_24_p8': (81.87, 95.97), 'tiny_24_p16': (79.42, 94.86),
    'small_12_p8': (83.36, 96.51), 'small_12_p16': (81.89, 95.83), 'small_24_p8': (83.82, 96.65),
    'small_24_p16': (82.51, 95.97), 'medium_24_p8': (83.73, 96.39), 'medium_24_p16': (82.67, 95.91),
    'large_24_p8': (84.42, 96.65), 'large_24_p16': (82.89, 95.89),
}
#: DINO, ImageNet top-1: nearest neighbours, linear.
_DINO = {
    'small_12_p16': (76.0, 77.8), 'small_12_p8': (77.1, 79.2),
    'medium_24_p16': (76.4, 78.8), 'medium_24_p8': (77.9, 80.3),
}
#: COCO box AP and mask AP of Mask R-CNN; ADE20k mIoU of Semantic FPN; of UperNet.
_DENSE = {
    'tiny_12_p16': (42.7, 38.5, 38.1, 41.5), 'tiny_12_p8': (44.5, 40.3, 39.9, 43.5),
    'small_12_p16': (45.3, 40.8, 43.9, 45.9), 'small_12_p8': (47.0, 42.3, 44.2, 46.6),
    'small_24_p16': (46.5, 41.8, 44.6, 46.9), 'small_24_p8': (48.1, 43.0, 47.1, 48.1),
    'medium_24_p16': (46.7, 42.0, 45.9, 47.6), 'medium_24_p8': (48.5, 43.7, 46.9, 48.4),
}


def _results():
    for arch, top1 in _TOP1.items():
        for kind, value in zip(_KINDS, top1, strict=True):
            yield f'{arch}_{kind}', dict(top1=value)
    for arch, (knn, linear) in _DINO.items():
        yield f'{arch}_dino', dict(knn=knn, linear=linear)
    for arch, (box_ap, mask_ap, semfpn, upernet) in _DENSE.items():
        yield f'maskrcnn_{arch}', dict(box_ap=box_ap, mask_ap=mask_ap)
        yield f'semfpn_{arch}', dict(miou=semfpn)
        yield f'upernet_{arch}', dict(miou=upernet)


#: The authors' results by the name of the file, then by metric: ``top1`` on ImageNet, ``knn`` and ``linear`` top-1 of
#: DINO, ``miou`` on ADE20k, in percent; ``box_ap`` and ``mask_ap`` on COCO.
RESULTS = dict(_results())


def config_name(family, arch):
    """Return the name of a config.

    ``('maskrcnn', 'small_12_p8')`` is ``'maskrcnn_xcit_s12_p8_coco'``; ``('', 'small_12_p8')`` is
    ``'xcit_s12_p8_imagenet'``.
    """
    size, rest = arch.split('_', 1)
    return f'{family}_xcit_{size[0]}{rest}_{_FAMILIES[family][0]}'.removeprefix('_')


def collect():
    """Return a dict for each size and task, in the order of the table."""
    rows = []
    for family in _FAMILIES:
        for arch in xcit_dense.arch_names():
            cfg = xcit_dense.get_config(config_name(family, arch), pretrained=False)
            init_default_scope(cfg.default_scope)
            with torch.device('meta'):
                model = MODELS.build(cfg.model)
            weights = f'{family}_{arch}' if family else f'{arch}_{_KINDS[0]}'
            rows.append(dict(
                family=family, arch=arch, config=config_name(family, arch),
                parameters=sum(p.numel() for p in model.parameters()),
                backbone_parameters=sum(p.numel() for p in model.backbone.parameters()),
                multiply_adds=[multiply_adds(arch, *size) for size in _SIZES] if family else [
                    multiply_adds(arch, *size, num_classes=1000) for size in _SIZES_IMAGENET],
                weights=weights if weights in WEIGHTS else None))
    return rows


def collect_dino():
    """Return a dict for each published file of DINO; ``config`` is None if there is no config of its size."""
    rows = []
    for name, weights in WEIGHTS.items():
        if name.endswith('_dino'):
            config = config_name('', weights.arch).replace('imagenet', 'dino')
            rows.append(dict(config=config if config in xcit_dense.list_models() else None, weights=name))
    return rows


def page_with_tables(page: str, rows) -> str:
    """Return the text of a page with the tables between their marks renewed."""
    for name, table in (('models', _dense_table), ('classifiers', _classifier_table), ('dino', _dino_table),
                        ('chosen', _chosen_table)):
        start, end = (mark.format(name) for mark in _MARKS)
        text = '\n'.join(table(rows)) + '\n'
        page = re.sub(f'(?<={re.escape(start)}).*(?={re.escape(end)})', text, page, flags=re.S)
    return page


def _dense_table(rows):
    sizes = ' / '.join(f'{h} x {w}' for h, w in _SIZES)
    yield f'| config | parameters, M (backbone) | multiply-adds, G, at {sizes} | published | weights |'
    yield '|---|---|---|---|---|'
    for row in rows:
        if row['family']:
            published = '-' if row['weights'] is None else _published(row['weights'])
            yield (f'| {_link(row)} | {row["parameters"] / 1e6:.1f} ({row["backbone_parameters"] / 1e6:.1f}) | '
                   f'{_counts(row)} | {published} | {_file(row["weights"]) if row["weights"] else "-"} |')


def _classifier_table(rows):
    sizes = ' / '.join(f'{h} x {w}' for h, w in _SIZES_IMAGENET)
    yield (f'| config | parameters, M | multiply-adds, G, at {sizes} | top-1: 224, 224 distilled, 384 distilled | '
           'PASSL, 224: top-1, top-5 | weights |')
    yield '|---|---|---|---|---|---|'
    for row in rows:
        if not row['family']:
            names = [f'{row["arch"]}_{kind}' for kind in _KINDS]
            top1 = ', '.join(str(RESULTS[name]['top1']) for name in names)
            passl = ', '.join(f'{value:.2f}' for value in PASSL[row['arch']])
            yield (f'| {_link(row)} | {row["parameters"] / 1e6:.1f} | {_counts(row)} | {top1} | '
                   f'{passl} | {", ".join(map(_file, names))} |')


def _dino_table(_):
    yield '| config | ImageNet top-1: k-NN, linear | weights |'
    yield '|---|---|---|'
    for row in collect_dino():
        top1 = RESULTS[row['weights']]
        yield f'| {_link(row) if row["config"] else "-"} | {top1["knn"]}, {top1["linear"]} | {_file(row["weights"])} |'


def _chosen_table(rows):
    yield '| config | parameters, M | published result | weights |'
    yield '|---|---|---|---|'
    for row in sorted((row for row in rows if row['config'] in _CHOSEN), key=lambda row: _CHOSEN.index(row['config'])):
        yield (f'| {_link(row, "configs")} | {row["parameters"] / 1e6:.1f} | {_published(row["weights"])} | '
               f'`{PREFIX}{row["weights"]}` |')


def _published(name):
    """The authors' results with a file."""
    return ', '.join(f'{_SHOWN[key]} {value}' for key, value in RESULTS[name].items() if key in _SHOWN)


def _link(row, configs='../configs'):
    return f'[{row["config"]}]({configs}/{row["config"]}.py)'


def _counts(row):
    return ' / '.join(f'{n / 1e9:.1f}' for n in row['multiply_adds'])


def _file(name):
    return f'[`{PREFIX}{name}`]({WEIGHTS[name].url})'


def metafile(family, rows) -> str:
    """Return the text of a family's metafile, in the format of mim."""
    _, title, dataset, tasks = _FAMILIES[family]
    collection_name = f'{title} on XCiT' if family else 'XCiT'
    rows, models = [row for row in rows if row['family'] == family], []
    for row in rows:
        model = {'Name': row['config'], 'In Collection': collection_name, 'Config': f'configs/{row["config"]}.py',
                 'Metadata': {'Parameters': row['parameters']}}
        if row['weights']:
            model['Metadata']['Source of results'] = 'published by the authors, not measured here'
            metrics = [(_METRICS[name], value) for name, value in RESULTS[row['weights']].items() if name in _METRICS]
            model['Results'] = [{'Task': task, 'Dataset': dataset, 'Metrics': {name: value}}
                                for task, (name, value) in zip(tasks, metrics, strict=True)]
            model['Weights'] = WEIGHTS[row['weights']].url
        models.append(model)
    models += [] if family else map(_distilled_model, rows)
    models += [] if family else map(_dino_model, filter(lambda row: row['config'], collect_dino()))
    collection = {'Name': collection_name, 'README': '../README.md',
                  'Metadata': {'Training Data': dataset, 'Architecture': ['XCiT', title] if family else ['XCiT']},
                  'Paper': {'URL': 'https://arxiv.org/abs/2106.09681',
                            'Title': 'XCiT: Cross-Covariance Image Transformers'}}
    return '# Made by tools/model_table.py.\n' + yaml.safe_dump(
        {'Collections': [collection], 'Models': models}, sort_keys=False, width=120)


def _distilled_model(row):
    """Return the entry of the config that trains a classifier with a teacher."""
    weights = f'{row["arch"]}_{_KINDS[1]}'
    return {'Name': f'{row["config"]}_dist', 'In Collection': 'XCiT', 'Config': f'configs/{row["config"]}_dist.py',
            'Metadata': {'Parameters': row['parameters'],
                         'Source of results': 'published by the authors, not measured here'},
            'Results': [{'Task': 'Image Classification', 'Dataset': 'ImageNet-1k',
                         'Metrics': {_METRICS['top1']: RESULTS[weights]['top1']}}],
            'Weights': WEIGHTS[weights].url}


def _dino_model(row):
    """Return the entry of a config of DINO in the metafile."""
    metrics = {title: RESULTS[row['weights']][name] for name, title in _METRICS_DINO.items()}
    return {'Name': row['config'], 'In Collection': 'XCiT', 'Config': f'configs/{row["config"]}.py',
            'Metadata': {'Source of results': 'published by the authors, not measured here'},
            'Results': [{'Task': 'Image Classification', 'Dataset': 'ImageNet-1k', 'Metrics': metrics}],
            'Weights': WEIGHTS[row['weights']].url}


def make_files(root) -> dict:
    """Return the contents of docs/models.md, the metafiles and ``model-index.yml`` below ``root``, by path."""
    root = Path(root)
    rows = collect()
    files = {root / f'configs/{family or "xcit"}_metafile.yml': metafile(family, rows) for family in _FAMILIES}
    files[root / 'model-index.yml'] = yaml.safe_dump({'Import': [str(p.relative_to(root)) for p in files]})
    for page in (root / 'README.md', root / 'docs/models.md'):
        files[page] = page_with_tables(page.read_text(), rows)
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
