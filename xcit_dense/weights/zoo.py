"""Every published weight file, by short name, with its published result; and fetching of files by any name.

Source: the tables in the README of the authors (facebookresearch/xcit, commit 82f5291) and of PASSL. The authors
publish neither sizes nor hashes of their files; ``sha256`` is for hashes that become known.
"""
import hashlib
import http.client
import os
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from mmengine.dist import barrier, is_distributed
from mmengine.logging import print_log
from tqdm import tqdm

from .._utils.files import atomic_write
from .._utils.processes import is_first_of_machine
from .._utils.text import did_you_mean, first_line
from ..archs import arch_names
from ..errors import CheckpointError
from .files import CHECKPOINT_KINDS, best_checkpoint, kind_of_file

PREFIX = 'xcit://'
_HOST = 'https://dl.fbaipublicfiles.com/xcit'
_TIMEOUT = 30  # seconds without a byte
_PATIENCE = 3600  # seconds to wait for another process to fetch a file


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


def fetch(source: str, instead: str = '') -> Path:
    """Return the local path of a file; addresses are downloaded into torch's cache first.

    The cache holds a published file under its own name, and any other in a folder named by a hash of its
    address. Files in the cache are not downloaded again, so a filled cache needs no network.

    Args:
        source: A path, a work dir (its best checkpoint), an ``https://`` address, or ``xcit://NAME``
            of `WEIGHTS`. ``http://`` is for servers on this machine only.
        instead: A sentence for the error on what to do without the file.

    Raises:
        CheckpointError: There is no such file, or it cannot be fetched; the message says where to put
            the file by hand.
    """
    if source.startswith(PREFIX):
        source = get_weights(source).url
    scheme, colon, rest = source.partition('://')
    if scheme.lower() not in ('http', 'https'):
        return _local(source)
    source = scheme.lower() + colon + rest  # the same place in the cache for HTTPS:// and https://
    _check_encrypted(source)
    path = _place(source)
    error = None
    if not path.is_file():
        if is_first_of_machine():
            error = _download(source, path)
        elif not is_distributed():
            _wait_for(path)
    barrier()  # the other processes of the run wait for the file
    if not path.is_file():
        reason = first_line(error) if error else 'see the first process of this machine'
        raise CheckpointError(
            f'cannot fetch the weights {source}: {reason}. '
            f'Without a network, put the file at {path}. {instead}'.rstrip())
    return path


def _local(source):
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        return best_checkpoint(path)
    if not os.path.isfile(path):
        raise CheckpointError(f'there is no file {path.absolute()}')
    return path


def _check_encrypted(url):
    """Raise `CheckpointError` unless an address begins with ``https://``, or is ``http://`` on this machine."""
    own = r'http://(localhost|127\.[\d.]+|\[::1\])(:\d*)?([/?#]|$)'  # and no user:password@host
    if re.match(f'https://|{own}', url, re.ASCII | re.IGNORECASE) is None:
        raise CheckpointError(f'{url} comes without encryption, so anyone on the network could change it. Use https.')


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, and apply the rule for the first address to each of them."""

    def redirect_request(self, request, file, code, message, headers, url):
        _check_encrypted(url)
        return super().redirect_request(request, file, code, message, headers, url)


def _place(url):
    """Return where torch's cache keeps the file of an address."""
    try:
        name = Path(unquote(urlsplit(url).path)).name
    except ValueError as error:
        raise CheckpointError(f'{url} is not an address: {error}') from error
    if not name or name == '..' or len(name) > 200:
        raise CheckpointError(f'the address {url} does not end in the name of a file')
    folder = Path(torch.hub.get_dir(), 'checkpoints')
    if not _published(url):
        folder /= hashlib.sha256(url.encode()).hexdigest()[:8]
    return folder / name


def _wait_for(path):
    """Wait for a file that the first process of this machine fetches; there is no process group yet."""
    print_log(f'waiting for the first process of this machine (LOCAL_RANK=0) to fetch {path}', logger='current')
    end = time.monotonic() + _PATIENCE
    while not path.is_file() and time.monotonic() < end:
        time.sleep(0.2)


def _download(url, path):
    """Fetch ``url`` into ``path``, complete and verified or not at all; return the error if there was one.

    (`torch.hub` accepts a download that stops early as the whole file.)
    """
    print_log(f'fetching {url} into {path}', logger='current')
    try:
        with atomic_write(path) as part:
            digest = _transfer(url, part, path.name)
            wanted = _known_hash(url, path.name)
            if not digest.startswith(wanted):
                raise OSError(f'the SHA-256 of the downloaded file is {digest}, not {wanted}')
            if kind_of_file(part) not in CHECKPOINT_KINDS:
                raise OSError(f'the downloaded file is {kind_of_file(part)}')
    except (CheckpointError, OSError, ValueError, http.client.HTTPException) as error:
        return error


def _transfer(url, part, title):
    """Download an address to the file ``part``, with a progress bar, and return the SHA-256."""
    digest = hashlib.sha256()
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(url, timeout=_TIMEOUT) as answer, open(part, 'wb') as file:
        size = int(answer.headers.get('Content-Length') or 0)
        with tqdm(total=size or None, desc=title, unit='B', unit_scale=True) as bar:
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if size and file.tell() != size:
            raise OSError(f'the download stopped after {file.tell()} of {size} bytes')
    return digest.hexdigest()


def _known_hash(url, name):
    """Return the known SHA-256 of a file, or its known first digits, or an empty text."""
    published = _published(url)
    if published and published.sha256:
        return published.sha256
    suffix = re.search(r'-([0-9a-f]{8,64})\.\w+$', name)  # torch.hub's convention: NAME-HASH.pth
    if not suffix or suffix[1].isdecimal():  # only digits: usually a date or a time
        return ''
    return suffix[1]


def _published(url):
    return next((weights for weights in WEIGHTS.values() if weights.url == url), None)
