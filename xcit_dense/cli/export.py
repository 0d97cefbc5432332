"""Export a trained detector or segmentor to one ONNX file and compare it with the checkpoint.

    python -m xcit_dense export work_dirs/mine model.onnx
"""
from .common import Parser, add_config_options, add_shared, run_tool


def main(argv=None):
    parser = Parser(description=__doc__, epilog='The file accepts batches of images of any size. Use it like a '
                    'checkpoint: `predict OUT.onnx IMAGES` and `test CONFIG OUT.onnx`; xcit_dense.runtime runs it '
                    'without torch. docs/deploying.md describes its contents.')
    add_config_options(parser, checkpoint=True)
    parser.add_argument('out', metavar='OUT', help='file to write; its name must end in .onnx')
    parser.add_argument('--scores', action='store_true', help='segmentation: also output the probability of each label')
    parser.add_argument('--backbone', action='store_true', help='export only the backbone: normalised images in, '
                        'levels of the pyramid out')
    add_shared(parser, 'image-size', 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..export.exporting import export_model
    from ..train.work_dirs import find_model
    config, checkpoint = find_model(args.config, args.checkpoint, args.out)
    made = export_model(config, checkpoint, args.out, scores=args.scores, backbone=args.backbone,
                        cfg_options=args.cfg_options, image_size=args.image_size, overwrite=args.overwrite, say=print)
    print(f'{made.path}: {made.size / 2**20:,.1f} MiB, {made.seconds:,.0f} s. {made.checked}')
