"""Measure time and memory of XCiT beside its released form and other backbones, on this machine."""
import argparse
import itertools
from pathlib import Path

from ..archs import PATCH_SIZES, SIZES
from .common import add_overwrite_option, check_choices, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=['small_12'], metavar='SIZE',
                        help=f'of {", ".join(SIZES)} (default: small_12)')
    parser.add_argument('--patches', nargs='+', type=int, choices=PATCH_SIZES, default=list(PATCH_SIZES),
                        help='pixels per token side (default: 8 16)')
    parser.add_argument('--images', nargs='+', type=_image_size, default=[(800, 1280), (512, 512)], metavar='HxW',
                        help='height and width in pixels (default: 800x1280 512x512)')
    parser.add_argument('--batch', type=_positive, metavar='N',
                        help='images of a step (default: 2 on a GPU, 1 on a CPU)')
    parser.add_argument('--dtype', nargs='+', metavar='TYPE',
                        help='float32, bfloat16, float16; half types: autocast over float32 parameters (default: '
                        'bfloat16 on a GPU, float32 on a CPU)')
    parser.add_argument('--modes', nargs='+', default=['inference', 'training'], metavar='MODE',
                        help='inference of the fused model; training: forward and backward (default: both)')
    parser.add_argument('--rivals', nargs='*', default=['plain'], metavar='MODEL',
                        help='plain, timm, swin_t, resnet50: plain is XCiT in its released form; timm has no pyramid '
                        '(default: plain)')
    parser.add_argument('--compile', action='store_true', help='add every model under torch.compile')
    parser.add_argument('--runs', type=_positive, default=5, metavar='N',
                        help='timed rounds, after two of warm-up (default: 5)')
    parser.add_argument('--growth', action='store_true', help='also time and memory over the number of tokens')
    parser.add_argument('--max-tokens', type=_positive, default=400_000, metavar='N',
                        help='where --growth ends; it starts at 1000 (default: 400000)')
    parser.add_argument('--detector', nargs='?', choices=('gpu', 'any'), const='gpu',
                        help='also Mask R-CNN training at 800x1280 with XCiT, Swin-T and ResNet-50; any: on a CPU too')
    parser.add_argument('--out', default='work_dirs/benchmark', metavar='DIR',
                        help='where benchmark.json, benchmark.md and the plots go (default: work_dirs/benchmark)')
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from mmengine.device import get_device

    from ..benchmark import cells, detector, models, report
    from ..config.options import check_compiler
    from ..files import OwnFiles
    for option, values, known in (('dtype', args.dtype or [], cells.DTYPES), ('modes', args.modes, models.MODES),
                                  ('rivals', args.rivals, models.RIVALS)):
        check_choices(f'--{option}', values, known)
    gpu = get_device() == 'cuda'
    args.batch = args.batch or (2 if gpu else 1)
    args.dtype = args.dtype or ['bfloat16' if gpu else 'float32']
    if args.compile:
        check_compiler()
    if args.detector:
        detector.check_detector_device(force=args.detector == 'any')
    out = Path(args.out)
    archs = [f'{size}_p{patch}' for size, patch in itertools.product(args.sizes, args.patches)]
    combinations = list(itertools.product(archs, args.dtype, args.modes))
    with OwnFiles(out, 'benchmark', args.overwrite) as own:
        own.claim('benchmark.json', 'benchmark.md', *(
            report.growth_plot(arch, mode, dtype) for arch, dtype, mode in combinations if args.growth))
        result = _measure(args, combinations, out)
        print('\n' + report.markdown(result))
        for file in (out / 'benchmark.json', out / 'benchmark.md', *report.plot(result, out)):
            print(f'wrote {file}')


def _measure(args, combinations, out):
    """Measure all that is asked for; what is measured is kept whatever happens to the rest."""
    from ..benchmark import cells, detector, growth, report
    from ..machine import describe_machine
    rates = cells.machine_rates(args.dtype)
    names = ['ours', *args.rivals]
    jobs = []
    for arch, dtype, mode in combinations:
        options = dict(dtype=dtype, mode=mode, names=names, runs=args.runs, rates=rates[dtype])
        jobs += [('cells', job) for job in cells.cell_jobs(arch, args.images, batch=args.batch, compiled=args.compile,
                                                           **options)]
        if args.growth:
            points = growth.growth_jobs(arch, max_tokens=args.max_tokens, **options)
            jobs += [('growth', job) for job in points]
    result = dict(machine=dict(describe_machine(), rates=rates), settings=vars(args), cells=[], growth=[], detectors=[])
    for (part, _), cell in zip(jobs, cells.run_jobs([job for _, job in jobs]), strict=True):
        result[part].append(cell)
        report.save(result, out)
    if args.detector:
        for dtype in args.dtype:
            result['detectors'] += detector.measure_detectors(
                list(detector.BACKBONES), image=(800, 1280), batch=args.batch, dtype=dtype, runs=args.runs)
        report.save(result, out)
    return result


def _image_size(text):
    try:
        height, width = map(int, text.lower().split('x'))
    except ValueError:
        raise argparse.ArgumentTypeError(f'must be HEIGHTxWIDTH in pixels, such as 800x1280, got {text!r}') from None
    if min(height, width) < 32:
        raise argparse.ArgumentTypeError(f'must be 32x32 at least, got {text!r}')
    return height, width


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a whole number from 1 up, got {text!r}')
    return int(text)
