"""The published weights, by short name.

Source: the tables of the authors' README (facebookresearch/xcit, commit 82f5291).
"""
from .archs import arch_names
from .errors import CheckpointError

_HOST = 'https://dl.fbaipublicfiles.com/xcit'

#: The authors' ImageNet classifiers of every arch: trained at 224, distilled at 224, then tuned at 384.
IMAGENET_KINDS = ('224', '224_dist', '384_dist')

#: Short name such as ``small_12_p8_384_dist`` to the published address.
WEIGHTS = {f'{arch}_{kind}': f'{_HOST}/xcit_{arch}_{kind}.pth' for arch in arch_names() for kind in IMAGENET_KINDS}

PREFIX = 'xcit://'


def address(name: str) -> str:
    """Return the published address of ``xcit://NAME``.

    Raises:
        CheckpointError: No published file has that name.
    """
    short = name[len(PREFIX):]
    if short not in WEIGHTS:
        raise CheckpointError(f'no published weights are named {name!r}; xcit_dense.zoo.WEIGHTS lists the names, '
                              f"such as '{PREFIX}small_12_p8_384_dist'")
    return WEIGHTS[short]
