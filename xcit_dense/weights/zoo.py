"""Every published weight file, by short name; and fetching of files by any name.

Source: the tables in the README of the authors (facebookresearch/xcit, commit 82f5291), who publish neither sizes nor
hashes of their files. Their results are in docs/models.md.
"""
import fcntl
import hashlib
import http.client
import os
import re
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from mmengine.logging import print_log
from tqdm import tqdm

from .._utils.files import atomic_write
from .._utils.text import did_you_mean, first_line
from ..archs import arch_names
from ..errors import CheckpointError
from .files import CHECKPOINT_KINDS, best_checkpoint, kind_of_file

PREFIX = 'xcit://'
_HOST = 'https://dl.fbaipublicfiles.com/xcit'


@dataclass(frozen=True)
class Weights:
    """One published file."""
    arch: str
    url: str


#: The published files by their short names. ``small_12_p8_384_dist`` and ``small_12_p8_dino`` are backbones
#: (classifiers), ``maskrcnn_small_12_p8``, ``semfpn_...`` and ``upernet_...`` whole models.
WEIGHTS = {
    **{f'{arch}_{kind}': Weights(arch, f'{_HOST}/xcit_{arch}_{kind}.pth')
       for arch in arch_names() for kind in ('224', '224_dist', '384_dist')},
    **{f'{arch}_dino': Weights(arch, f'{_HOST}/xcit_{arch.replace("_p", "_cp")}_dino.pth')
       for arch in ('small_12_p16', 'small_12_p8', 'medium_24_p16', 'medium_24_p8')},
    **{f'{model}_{arch}': Weights(arch, f'{_HOST}/{file}_xcit_{arch}.pth')
       for arch in arch_names() if arch.startswith(('tiny_12', 'small', 'medium')) for model, file in (
           ('maskrcnn', 'coco/maskrcnn'), ('semfpn', 'ade/sem_fpn'), ('upernet', 'ade/upernet'))}}


def get_weights(name: str) -> Weights:
    """Return the record of ``xcit://NAME`` or ``NAME``; raise `CheckpointError` if no published file has that name."""
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
        CheckpointError: There is no such file, or it cannot be fetched; the message says where to put the file by hand.
    """
    if source.startswith(PREFIX):
        source = get_weights(source).url
    if not source.startswith(('http://', 'https://')):
        path = Path(os.path.expanduser(source))
        if os.path.isdir(path):
            return best_checkpoint(path)
        if not os.path.isfile(path):
            raise CheckpointError(f'there is no file {path.absolute()}')
        return path
    _check_encrypted(source)
    path = _place(source)
    if path.is_file():
        return path
    try:
        with _alone_in(path.parent):
            if not path.is_file():  # now
                _download(source, path)
    except (CheckpointError, OSError, ValueError, http.client.HTTPException) as error:
        raise CheckpointError(f'cannot fetch the weights {source}: {first_line(error)}. '
                              f'Without a network, put the file at {path}. {instead}'.rstrip()) from error
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
    name = Path(unquote(urlsplit(url).path)).name
    if not name or name == '..':
        raise CheckpointError(f'the address {url} does not end in the name of a file')
    folder = Path(torch.hub.get_dir(), 'checkpoints')
    if url not in {weights.url for weights in WEIGHTS.values()}:
        folder /= hashlib.sha256(url.encode()).hexdigest()[:8]
    return folder / name


@contextmanager
def _alone_in(folder):
    """Context for a folder that only one process of the machine enters at a time; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a folder in a network may have no locks; then each process fetches the file
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download(url, path):
    """Fetch ``url`` into ``path``, complete and verified or not at all.

    (`torch.hub` accepts a download that stops early as the whole file.)
    """
    print_log(f'fetching {url} into {path}', logger='current')
    with atomic_write(path) as part:
        digest = _transfer(url, part, path.name)
        known = re.search(r'-([0-9a-f]{8,64})\.\w+$', path.name)  # torch.hub's convention: NAME-HASH.pth
        # only digits are usually a date or a time
        if known and not known[1].isdecimal() and not digest.startswith(known[1]):
            raise OSError(f'the SHA-256 of the downloaded file is {digest}, not {known[1]}')
        if kind_of_file(part) not in CHECKPOINT_KINDS:
            raise OSError(f'the downloaded file is {kind_of_file(part)}')


def _transfer(url, part, title):
    """Download an address to the file ``part``, with a progress bar, and return the SHA-256."""
    digest = hashlib.sha256()
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(url, timeout=30) as answer, open(part, 'wb') as file:  # in seconds without a byte
        size = int(answer.headers.get('Content-Length') or 0)
        with tqdm(total=size or None, desc=title, unit='B', unit_scale=True) as bar:
            while block := answer.read(1 << 20):
                file.write(block)
                digest.update(block)
                bar.update(len(block))
        if size and file.tell() != size:
            raise OSError(f'the download stopped after {file.tell()} of {size} bytes')
    return digest.hexdigest()
