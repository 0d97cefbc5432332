"""Check on this machine's GPU that results are right, that training works, and how fast both are; write one page."""
import shlex
import sys
from pathlib import Path

from .common import Parser, add_overwrite_option, check_choices, finite, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; exits as `run_tool` describes."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = Parser(description=__doc__)
    parser.add_argument('--out', required=True, metavar='DIR', help='folder for gpu_report.json, which keeps the '
                        'results of all runs with this folder, gpu_report.md and the plots')
    parser.add_argument('--stages', nargs='+', metavar='STAGE', help='right: results as on a CPU, in float32 and half '
                        'types; trains: demos and full configs, interrupted and in a group of processes; fast: '
                        'throughput and memory; kernels: where the time goes; compiled: under torch.compile '
                        '(default: all, in this order)')
    parser.add_argument('--checks', nargs='+', default=[], metavar='CHECK', help='only these checks of the stages; '
                        '--list names them')
    parser.add_argument('--list', action='store_true', help='list the checks and stop')
    parser.add_argument('--minutes', type=finite, default=8., metavar='N', help='end each stage after this time; '
                        'checks that did not begin are reported as not run (default: 8)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='cpu: see that the checks run, '
                        'without a GPU; needs --tiny or much time (default: cuda)')
    parser.add_argument('--tiny', action='store_true', help='smallest models, images and lengths')
    parser.add_argument('--data', metavar='DIR', help='folder with coco and ade20k, samples of both data sets in their '
                        'layouts, for the full configs (default: generated images)')
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from ..gpu_report import stages
    check_choices('--stages', args.stages or [], stages.STAGES)
    chosen = stages.choose(args.stages or stages.STAGES, args.checks)
    if args.list:
        for stage, checks in chosen.items():
            print(stages.STAGES[stage][0])
            for check in checks:
                print(f'    {check.name:24} {check.title} (at most {check.minutes:g} min)')
        return
    import torch

    from ..errors import ConfigError, DataError, MetricError
    from ..files import OwnFiles
    from ..gpu_report.checks import Setting
    from ..gpu_report.page import PAGE, write_page
    from ..gpu_report.plots import PLOTS
    from ..text import counted
    if args.minutes <= 0:
        raise ConfigError(f'--minutes must be above 0, got {args.minutes:g}')
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise ConfigError('there is no GPU that torch can use; to see that the checks run: --device cpu --tiny')
    if args.data and not Path(args.data).is_dir():
        raise DataError(f'--data: there is no folder {args.data}')
    out = Path(args.out).expanduser().resolve()
    setting = Setting(args.device, args.tiny, out, Path(args.data).resolve() if args.data else None)
    command = shlex.join(['python', '-m', 'xcit_dense', 'gpu_report', *sys.argv[1:]])
    with OwnFiles(out, 'gpu_report', args.overwrite) as own:
        own.claim(stages.FILE, PAGE, *PLOTS)
        stages.check_same(stages.read(out), setting)
        for stage, checks in chosen.items():
            results = stages.run_stages(setting, {stage: checks}, args.minutes, command, _say)
            files = write_page(results, out)  # after each stage, in case a later one is cut off
        for file in (out / stages.FILE, *files):
            print(f'wrote {file}')
    missing = [check.name for stage, checks in chosen.items() for check in checks
               if stages.word_of(results[stage][check.name]) == 'not run']
    if missing:
        print(f'not run, as the time of their stage was over: {", ".join(missing)}. To run them: --checks '
              f'{" ".join(missing)}')
    failed = [check.name for stage, checks in chosen.items() for check in checks
              if results[stage][check.name]['passed'] is False]
    if failed:
        raise MetricError(f'{counted(len(failed), "checks")} failed: {", ".join(failed)}; {out / PAGE} says why')


def _say(line):
    print(line, flush=True)
