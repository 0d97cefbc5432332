"""Check the data set of a config: print every problem, count the classes, draw a contact sheet.

    python -m xcit_dense check_data maskrcnn_xcit_s12_p16_custom --data-root DIR
"""
import json
from copy import deepcopy

from .._utils.text import counted
from ..errors import DataError
from .common import Parser, add_config_options, add_data_options, add_shared, data_options, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    add_config_options(parser)
    add_data_options(parser)
    parser.add_argument('--strict', action='store_true', help='exit with code 1 also for warnings')
    parser.add_argument('--to', nargs=2, metavar=('FORMAT', 'DIR'), help='also copy the data into DIR in a format that '
                        'other tools read: coco (detection) or maps (segmentation: images, label maps as PNG and '
                        'classes.txt)')
    parser.add_argument('--no-cache', action='store_true', help='read every file again, instead of using the '
                        'results of earlier checks')
    parser.add_argument('--out', default='work_dirs/check_data', metavar='DIR', help='folder for findings.json and a '
                        'contact sheet of each data set (default: work_dirs/check_data)')
    add_shared(parser, 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from .._utils.files import OwnFiles
    from ..annotations.copying import copy_data
    from ..config.loading import load_config
    from ..data.check.check import check_all_classes, check_data_sets
    from ..data.check.findings import ERROR, Report
    from ..data.check.outputs import draw_contact_sheet
    from ..data.classes import own_colours
    from ..data.datasets import LOADERS, check_data, datasets
    cfg = load_config(args.config, cfg_options=args.cfg_options, **data_options(args), work_dir=args.out)
    if args.to:
        print(copy_data(deepcopy(cfg), *args.to, args.overwrite))
    with OwnFiles(args.out, 'check_data', args.overwrite) as own:
        own.claim('findings.json', *(f'{dataset.name}.png' for dataset in datasets(cfg, LOADERS)))
        reports = check_data_sets(cfg, use_cache=not args.no_cache)
        names_of_classes = [name for report in reports.values() for name, *_ in report.classes]  # of training first
        palette = own_colours(cfg)
        for names, report in reports.items():
            print(f'{names}\n{report.summary()}\n{report.histogram()}')
            sheet = own.folder / f'{names.split(",")[0]}.png'
            if count := draw_contact_sheet(report, sheet, names_of_classes, palette):
                print(f'  contact sheet of {counted(count, "images")}: {sheet}')
            print()
        findings = [finding for report in reports.values() for finding in report.findings]
        classes = Report(args.config, check_all_classes(cfg, args.config, findings))
        if classes.findings:
            print(f'{classes.summary()}\n')
        findings += classes.findings
        file = own.folder / 'findings.json'
        file.write_text(json.dumps([
            dict(f._asdict(), severity=f.severity, sentence=f.sentence) for f in findings], indent=1))
    errors = sum(finding.severity == ERROR for finding in findings)
    if any(finding.kind == 'not-there' for finding in findings):
        check_data(cfg, on_findings='warn')  # what the config needs, and what is there
    if not errors:
        _show_fit(cfg, args.cfg_options)
    numbers = (counted(errors, 'errors'), counted(len(findings) - errors, 'warnings'))
    message = f'{" and ".join(numbers)}; the list is in {file}'
    if errors or findings and args.strict:
        raise DataError(message)
    print(message)


def _show_fit(cfg, options):
    """Print what a training with this config says about the fit when it starts."""
    from ..config.fit import describe_fit, look
    from ..config.fit.fitting import fit, fits_itself
    from ..config.length import process_count
    if fits_itself(cfg):
        fit(cfg, given=options or ())
    size = (cfg.get('train_dataloader') or {}).get('batch_size')
    for name, text in describe_fit(cfg, look(cfg, images=size and size * process_count())).items():
        print(f'{name}: {text}\n' if name else f'{text}\n')
