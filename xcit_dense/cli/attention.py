"""Draw what a model looks at: attention maps of a classifier; components and levels of a dense model.

    python -m xcit_dense attention work_dirs/mine photos --out maps
    python -m xcit_dense attention small_12_p16_224 photo.jpg --out maps
"""
from .common import Parser, add_shared, positive, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('checkpoint', metavar='CHECKPOINT_OR_NAME', help='a classifier, a DINO file, a detector or a '
                        'segmentor: a path, a URL, a name from docs/models.md, or a work dir (its best checkpoint)')
    parser.add_argument('images', metavar='IMAGE_OR_FOLDER', help='an image, or a folder with images at any depth')
    parser.add_argument('--out', required=True, metavar='DIR',
                        help='output folder: for each image a drawing (.png) and its numbers (.npz)')
    parser.add_argument('--show', choices=['attention', 'components', 'levels'], help='the attention of the class '
                        'token (default for classifiers and DINO files), the first three principal components of the '
                        'patch tokens, or the levels of the pyramid (default for dense models: components and levels)')
    parser.add_argument('--block', type=int, nargs='+', metavar='N',
                        help='numbers of blocks, from 1: class-attention blocks for attention (default: both), XCA '
                        'blocks for components (default: those that feed the pyramid)')
    parser.add_argument('--size', type=positive, metavar='PIXELS',
                        help='resize the shorter side of images (default: keep their size)')
    add_shared(parser, 'config', 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..predict.attention import Attention
    from ..predict.files import find_sources, predict_files
    root, paths = find_sources(args.images)
    shown = Attention(args.checkpoint, args.show, args.block, args.size, args.config)
    print(predict_files(shown, root, paths, args.out, args.overwrite))
