"""Published files by name and address: fetched once, completely, and verified."""
import hashlib
import http.server
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.models import build, official_state, save
from helpers.paths import ROOT
from helpers.recipes import RESULTS
from helpers.weight_files import rejects
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import fetch, load_backbone, read_checkpoint, zoo


def test_zoo_holds_every_published_file():
    published = json.loads((ROOT / 'tests/golden/published.json').read_text())
    wanted = {row['url']: row for row in published['imagenet'] + published['dense']}
    metrics = {'top1', 'knn', 'linear', 'box_ap', 'mask_ap', 'miou'}
    assert len(published['imagenet']) == 46 and len(published['dense']) == 24
    assert {record.url for record in zoo.WEIGHTS.values()} == wanted.keys() and len(zoo.WEIGHTS) == 70
    for name, record in zoo.WEIGHTS.items():
        row = wanted[record.url]
        assert f'xcit_{record.arch}' == row['arch']
        assert RESULTS[name] == {metric: row[metric] for metric in metrics & row.keys()}
    assert zoo.get_weights('xcit://small_12_p8_384_dist').url.endswith('.com/xcit/xcit_small_12_p8_384_dist.pth')
    with rejects("named 'xcit://small_12_p9_384_dist'", 'did you mean small_12_p'):
        zoo.get_weights('xcit://small_12_p9_384_dist')


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server over a folder with the weights of a classifier, and an empty download cache."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    folder = tmp_path / 'www'
    folder.mkdir()
    save(folder / 'in1k.pth', {'model': official_state()})

    class Handler(http.server.SimpleHTTPRequestHandler):
        requests = []

        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            self.requests.append(self.path)

        def do_GET(self):
            if self.path.startswith('/cut'):  # promises more than it sends
                self.send_response(200)
                self.send_header('Content-Length', '100000')
                self.end_headers()
                self.wfile.write(b'x' * 1000)
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02, ), daemon=True).start()
    yield folder, f'http://127.0.0.1:{server.server_port}', Handler.requests
    server.shutdown()
    server.server_close()


def cached(tmp_path):
    return [path for path in (tmp_path / 'hub').rglob('*') if path.is_file()]


def test_addresses_are_fetched_once_and_read_offline(server, tmp_path, capsys):
    folder, address, requests = server
    load_backbone(build(), f'{address}/in1k.pth')
    assert '100%' in capsys.readouterr().err  # the progress bar
    (folder / 'in1k.pth').unlink()
    load_backbone(build(), f'{address}/in1k.pth')
    assert requests == ['/in1k.pth'] and len(cached(tmp_path)) == 1


def test_addresses_with_one_file_name_stay_apart(server, monkeypatch):
    """Characters that addresses encode as numbers, and the tilde of a home directory, are read."""
    folder, address, _ = server
    for name in ('a', 'b'):
        (folder / name).mkdir()
        save(folder / name / 'in 1k+.pth', {'model': {name: torch.zeros(1)}})
    for name in ('a', 'b', 'a'):
        assert list(read_checkpoint(f'{address}/{name}/in%201k%2B.pth')['model']) == [name]
    assert fetch(f'{address}/a/in%201k%2B.pth').name == 'in 1k+.pth'
    assert fetch(f'{address}/a/in%201k%2B.pth?version=2') != fetch(f'{address}/a/in%201k%2B.pth')
    monkeypatch.setenv('HOME', str(folder))
    assert fetch('~/b/in 1k+.pth') == folder / 'b/in 1k+.pth'


def test_published_files_lie_under_their_own_name_where_torch_caches(server, tmp_path, monkeypatch):
    address = server[1]
    monkeypatch.setitem(zoo.WEIGHTS, 'test', zoo.Weights('nano_12_p16', f'{address}/in1k.pth'))
    assert fetch('xcit://test') == fetch(f'{address}/in1k.pth') == tmp_path / 'hub/checkpoints/in1k.pth'
    # a file put there by hand, as the error message says, needs no network
    monkeypatch.setitem(zoo.WEIGHTS, 'test', zoo.Weights('nano_12_p16', 'http://127.0.0.1:9/in1k.pth'))
    load_backbone(build(), 'xcit://test')


@pytest.mark.parametrize('name, words', (
    ('missing.pth', '404'), ('cut.pth', ' 1000 of 100000 bytes'), ('page.pth', 'a file that begins with'),
    ('empty.pth', 'empty file'), ('weights-0123abcd.pth', 'SHA-256 .* not 0123abcd')))
def test_what_cannot_be_fetched_leaves_nothing_and_names_the_fix(server, tmp_path, name, words):
    folder, address, _ = server
    (folder / 'page.pth').write_text('<html>log in first</html>')
    (folder / 'empty.pth').touch()
    (folder / 'weights-0123abcd.pth').symlink_to(folder / 'in1k.pth')
    with pytest.raises(CheckpointError, match=words) as caught:
        load_backbone(build(), f'{address}/{name}')
    message = str(caught.value)
    assert f'{address}/{name}' in message and '--no-pretrained' in message
    assert re.search(rf'{re.escape(str(tmp_path / "hub/checkpoints"))}/\S*{re.escape(name)}\b', message)  # by hand
    assert cached(tmp_path) == []


def test_hashes_in_file_names_are_checked_but_not_dates(server):
    folder, address, _ = server
    known = hashlib.sha256((folder / 'in1k.pth').read_bytes()).hexdigest()[:10]
    for part in (known, '20210609', '20210609123000', '1234567890'):
        (folder / f'weights-{part}.pth').symlink_to(folder / 'in1k.pth')
        assert fetch(f'{address}/weights-{part}.pth').name == f'weights-{part}.pth'


@pytest.mark.parametrize('source, words', (
    *((f'https://host{path}', 'does not end in the name of a file') for path in ('/', '', '/..')),
    ('http://127.0.0.1:9/xcit.pth', r'weights http://.*put the file at .*xcit\.pth\.$'),
    ('http://LocalHost:9/xcit.pth', 'LocalHost:9/.*put the file at'),
    *((f'http://{host}/xcit.pth', 'without encryption.*Use https')
      for host in ('host', '127.0.0.1.host', '127.0.0.1:secret@host')),  # a user name is no host
    ('no/such/file.pth', 'there is no file .*no/such/file.pth'),
    ('a' * 1000, 'there is no file')))
def test_sources_that_are_none(source, words):
    with pytest.raises(CheckpointError, match=words):
        fetch(source)


def test_cache_that_cannot_be_written_is_one_error(server, tmp_path):
    (tmp_path / 'hub').write_text('a file where the folder should be')
    with rejects('cannot fetch the weights'):
        fetch(f'{server[1]}/in1k.pth')


def test_one_process_fetches_and_the_others_wait(server):
    _, address, requests = server
    with ThreadPoolExecutor(4) as pool:  # a thread's lock is its own, as a process's is
        paths = set(pool.map(fetch, [f'{address}/in1k.pth'] * 4))
    assert len(paths) == len(requests) == 1


def test_redirects_follow_the_rule_for_addresses(server, tmp_path, monkeypatch):
    _, address, requests = server
    resolve, port = socket.getaddrinfo, address.rpartition(':')[2]
    monkeypatch.setattr(socket, 'getaddrinfo', lambda host, *rest, **named: resolve('127.0.0.1', *rest, **named))

    class Redirect(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header('Location', self.path.partition('?to=')[2])
            self.end_headers()

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Redirect) as second:
        threading.Thread(target=second.serve_forever, args=(0.02, ), daemon=True).start()
        start = f'http://127.0.0.1:{second.server_port}/in1k.pth?to='
        for target in (f'http://weights.host:{port}/in1k.pth', f'ftp://127.0.0.1:{port}/in1k.pth',
                       f'{start}http://weights.host:{port}/in1k.pth'):
            with rejects(f'{target.rpartition("?to=")[2]} ', 'without encryption'):
                fetch(start + target)
        assert requests == cached(tmp_path) == []
        assert fetch(f'{start}{address}/in1k.pth').is_file() and requests == ['/in1k.pth']
        second.shutdown()
