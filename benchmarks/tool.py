"""Measure time and memory of XCiT, the authors' form of it and other backbones on this machine.

    python -m xcit_dense benchmark --modes inference --rivals authors timm swin_t resnet50
"""
import itertools
from argparse import ArgumentTypeError
from pathlib import Path

from xcit_dense.archs import PATCH_SIZES, SIZES
from xcit_dense.cli.common import Parser, add_shared, positive, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; exits as `run_tool` describes."""
    parser = Parser(description=__doc__)
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=['small_12'], metavar='SIZE',
                        help=f'sizes of XCiT: {", ".join(SIZES)} (default: small_12)')
    parser.add_argument('--patches', nargs='+', type=int, choices=PATCH_SIZES, default=list(PATCH_SIZES),
                        help='pixels per token side (default: 8 16)')
    parser.add_argument('--images', nargs='+', type=_image_size, default=[(800, 1280), (512, 512)], metavar='HxW',
                        help='height and width of images in pixels (default: 800x1280 512x512)')
    parser.add_argument('--batch', type=positive, metavar='N',
                        help='images in a batch (default: 2 on a GPU, 1 on a CPU)')
    parser.add_argument('--dtype', nargs='+', metavar='TYPE',
                        help='float32, bfloat16, float16; the half types use autocast and float32 parameters (default: '
                        'bfloat16 on a GPU; float32 on a CPU, and bfloat16 if it has AVX512-BF16 or AMX)')
    parser.add_argument('--modes', nargs='+', default=['inference', 'training'], metavar='MODE',
                        help='inference: the fused model; training: forward and backward (default: both)')
    parser.add_argument('--rivals', nargs='*', default=['authors'], metavar='MODEL',
                        help='other models to measure: authors (XCiT in the authors\' form), timm (without a pyramid), '
                        'vit (attention between tokens), swin_t, resnet50, convnext_t (default: authors)')
    parser.add_argument('--runtimes', nargs='*', metavar='NAME',
                        help='also measure our XCiT exported, inference on a CPU: eager_bf16, onnxruntime, '
                        'openvino; compiled for one image size: openvino_fixed, openvino_bf16; without a name all of '
                        'them (default: none)')
    parser.add_argument('--on-paper', action='store_true',
                        help='only count launches, bytes and FLOPs of a step on a GPU, and what an H100 would need for '
                        'them; without a GPU: python benchmarks/nullgpu/run.py benchmark --on-paper')
    parser.add_argument('--compile', action='store_true', help='also measure every model with torch.compile')
    parser.add_argument('--runs', type=positive, default=5, metavar='N',
                        help='timed rounds, after two rounds of warm-up (default: 5)')
    parser.add_argument('--growth', action='store_true', help='also measure time and memory over the number of tokens')
    parser.add_argument('--max-tokens', type=positive, default=400_000, metavar='N',
                        help='largest number of tokens for --growth, which starts at 1000 (default: 400000)')
    parser.add_argument('--detector', nargs='?', choices=('gpu', 'any'), const='gpu',
                        help='also measure the training of Mask R-CNN at 800x1280 with XCiT, Swin-T and ResNet-50; '
                        'gpu: only on a GPU; any: also on a CPU (default without a value: gpu)')
    parser.add_argument('--out', default='work_dirs/benchmark', metavar='DIR',
                        help='folder for benchmark.json, benchmark.md and the plots (default: work_dirs/benchmark)')
    add_shared(parser, 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from mmengine.device import get_device

    from xcit_dense._utils.files import OwnFiles
    from xcit_dense._utils.machine import has_bfloat16
    from xcit_dense.config.options import check_compiler
    from xcit_dense.errors import ConfigError

    from . import cells, detector, models, report, runtimes
    for option, values, known in (('dtype', args.dtype or [], cells.DTYPES), ('modes', args.modes, models.MODES),
                                  ('rivals', args.rivals, models.RIVALS)):
        check_choices(f'--{option}', values, known)
    gpu = get_device() == 'cuda'
    args.runtimes = list(runtimes.RUNTIMES) if args.runtimes == [] else args.runtimes or []
    check_choices('--runtimes', args.runtimes, runtimes.RUNTIMES)
    if args.runtimes and (gpu or args.modes != ['inference'] or args.dtype not in (None, ['float32'])):
        raise ConfigError('--runtimes measures inference in float32 on a CPU: add --modes inference, and on a machine '
                          'with a GPU put CUDA_VISIBLE_DEVICES= before the command')
    if args.on_paper and not gpu:
        raise ConfigError('--on-paper counts on a GPU, and there is none. One that computes nothing will do, in a '
                          'clone of the project: python benchmarks/nullgpu/run.py benchmark --on-paper')
    args.batch = args.batch or (2 if gpu else 1)
    if not args.dtype:
        args.dtype = ['bfloat16'] if gpu else ['float32']
        if not (gpu or args.runtimes) and has_bfloat16('cpu'):
            args.dtype.append('bfloat16')
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
    """Measure everything that the options ask for; each result is saved at once, in case a later one fails."""
    from xcit_dense._utils.machine import describe_machine

    from . import cells, detector, growth, paper, report
    rates = {} if args.on_paper else cells.machine_rates(args.dtype)
    names = ['ours', *args.rivals, *args.runtimes]
    jobs = []
    for arch, dtype, mode in combinations:
        if args.on_paper:
            jobs += [('paper', job) for job in paper.paper_jobs(
                arch, args.images, batch=args.batch, dtype=dtype, mode=mode, names=names)]
            continue
        options = dict(dtype=dtype, mode=mode, names=names, runs=args.runs, rates=rates[dtype])
        jobs += [('cells', job) for job in cells.cell_jobs(arch, args.images, batch=args.batch, compiled=args.compile,
                                                           **options)]
        if args.growth:
            points = growth.growth_jobs(arch, max_tokens=args.max_tokens,
                                        **options | dict(names=['ours', *args.rivals]))
            jobs += [('growth', job) for job in points]
    result = dict(machine=dict(describe_machine(), rates=rates), settings=vars(args), cells=[], growth=[], detectors=[],
                  paper=[])
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
        raise ArgumentTypeError(f'must be HEIGHTxWIDTH in pixels, such as 800x1280, got {text!r}') from None
    if min(height, width) < 32:
        raise ArgumentTypeError(f'must be at least 32x32, got {text!r}')
    return height, width


def check_choices(option: str, values, known):
    """Raise `ConfigError` unless all values of an option are known; for choices that need torch to be listed."""
    from xcit_dense._utils.text import did_you_mean
    from xcit_dense.errors import ConfigError
    for value in values:
        if value not in known:
            raise ConfigError(f'{option} accepts {", ".join(known)}; got {value!r}{did_you_mean(value, known)}')
