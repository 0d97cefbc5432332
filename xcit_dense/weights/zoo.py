"""Every published weight file, by short name, with its published result.

Source: the tables in the README of the authors (facebookresearch/xcit, commit 82f5291) and of PASSL. The authors
publish neither sizes nor hashes of their files; ``sha256`` is for hashes that become known.
"""
from dataclasses import dataclass

from .._utils.text import did_you_mean
from ..archs import arch_names
from ..errors import CheckpointError

PREFIX = 'xcit://'
_HOST = 'https://dl.fbaipublicfiles.com/xcit'


@dataclass(frozen=True)
class Weights:
    """One published file.

    Args:
        arch: Name of its size and patch, as for `xcit_dense.get_arch`.
        url: Published address.
        published: The authors' results, by metric: ``top1`` on ImageNet in percent; ``knn`` and ``linear`` top-1 of
            DINO in percent; ``box_ap`` and ``mask_ap`` on COCO; ``miou`` on ADE20k in percent. ``passl_top1`` and
            ``passl_top5`` are those of PASSL (PaddlePaddle) for the same model, at 224 and crop ratio 1.
        sha256: Hash of the file, if known.
    """
    arch: str
    url: str
    published: dict
    sha256: str = None


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
#: PASSL (PaddlePaddle): top-1 and top-5 of the models trained at 224.
_PASSL = {
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


def _all_weights():
    for arch in arch_names():
        passl = dict(zip(('passl_top1', 'passl_top5'), _PASSL[arch], strict=True))
        for kind, top1 in zip(('224', '224_dist', '384_dist'), _TOP1[arch], strict=True):
            published = dict(top1=top1, **(passl if kind == '224' else {}))
            yield f'{arch}_{kind}', Weights(arch, f'{_HOST}/xcit_{arch}_{kind}.pth', published)
    for arch, (knn, linear) in _DINO.items():
        url = f'{_HOST}/xcit_{arch.replace("_p", "_cp")}_dino.pth'
        yield f'{arch}_dino', Weights(arch, url, dict(knn=knn, linear=linear))
    for arch, (box_ap, mask_ap, semfpn, upernet) in _DENSE.items():
        yield f'maskrcnn_{arch}', Weights(arch, f'{_HOST}/coco/maskrcnn_xcit_{arch}.pth',
                                          dict(box_ap=box_ap, mask_ap=mask_ap))
        yield f'semfpn_{arch}', Weights(arch, f'{_HOST}/ade/sem_fpn_xcit_{arch}.pth', dict(miou=semfpn))
        yield f'upernet_{arch}', Weights(arch, f'{_HOST}/ade/upernet_xcit_{arch}.pth', dict(miou=upernet))


#: The published files by their short names. ``small_12_p8_384_dist`` and ``small_12_p8_dino`` are backbones
#: (classifiers), ``maskrcnn_small_12_p8``, ``semfpn_...`` and ``upernet_...`` whole models.
WEIGHTS = dict(_all_weights())


def get_weights(name: str) -> Weights:
    """Return the record of ``xcit://NAME`` or ``NAME``.

    Raises:
        CheckpointError: No published file has that name.
    """
    short = name.removeprefix(PREFIX)
    if short not in WEIGHTS:
        raise CheckpointError(f'no published weights are named {name!r}{did_you_mean(short, WEIGHTS, 3, ";")} '
                              "xcit_dense.weights.zoo.WEIGHTS lists the names, such as 'small_12_p8_384_dist'")
    return WEIGHTS[short]
