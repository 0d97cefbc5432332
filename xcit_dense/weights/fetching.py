"""Turn what a user names into a file on this machine: paths, work dirs, addresses, published names."""
import hashlib
import http.client
import os
import re
import time
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from mmengine.dist import barrier, is_distributed
from mmengine.logging import print_log
from tqdm import tqdm

from .._utils.files import atomic_write
from .._utils.processes import is_first_of_machine
from .._utils.text import first_line
from ..errors import CheckpointError
from . import zoo
from .files import CHECKPOINT_KINDS, kind_of_file, newest_checkpoint

_TIMEOUT = 30  # seconds without a byte
_PATIENCE = 3600  # seconds to wait for another process to fetch a file


def fetch(source: str, instead: str = '') -> Path:
    """Return the local path of a file; addresses are downloaded into torch's cache first.

    The cache holds a published file under its own name, and any other in a folder named by a hash of its
    address. Files in the cache are not downloaded again, so a filled cache needs no network.

    Args:
        source: A path, a work dir (its newest checkpoint), an ``https://`` address, or ``xcit://NAME``
            of `xcit_dense.weights.zoo`. ``http://`` is for servers on this machine only.
        instead: A sentence for the error on what to do without the file.

    Raises:
        CheckpointError: There is no such file, or it cannot be fetched; the message says where to put
            the file by hand.
    """
    if source.startswith(zoo.PREFIX):
        source = zoo.get_weights(source).url
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
        return newest_checkpoint(path)
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
    return next((weights for weights in zoo.WEIGHTS.values() if weights.url == url), None)
