"""A page in a headless Chromium: what its user would see, and every problem that the browser reports."""
import base64
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

_NAMES = 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'
#: Runs first in the page.
_WATCH = '''
const problems = [];
addEventListener('error', event => problems.push(event.message || `not loaded: ${event.target.outerHTML}`), true);
addEventListener('unhandledrejection', event => problems.push(String(event.reason)));
document.addEventListener('securitypolicyviolation', event => problems.push(`blocked: ${event.blockedURI}`));
'''
#: Runs last; LOOK is the body of a function that returns findings.
_LOOK = '''
addEventListener('load', async () => {
  const pictures = [...document.images];
  for (const picture of pictures) picture.loading = 'eager';
  for (const details of document.querySelectorAll('details')) details.open = true;
  await Promise.all(pictures.map(picture => picture.decode().catch(error => problems.push(`image: ${error}`))));
  const found = {
    problems,
    title: document.title,
    images: pictures.map(picture => picture.naturalWidth),
    requests: performance.getEntriesByType('resource').map(({name}) => name).filter(name => !/^data:/.test(name)),
    width: innerWidth,
    wide: [...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll table')
      && one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80)),
    scrolls: document.documentElement.scrollWidth > innerWidth};
  try { Object.assign(found, await (async () => { LOOK })()); } catch (error) { problems.push(String(error)); }
  parent.postMessage(found, '*');
});
'''
#: A window cannot be as narrow as that of a phone, a frame can.
_FRAME = '''<!DOCTYPE html><link rel="icon" href="data:,"><body><script>
addEventListener('message', ({data}) => fetch('/', {method: 'POST', body: JSON.stringify(data)}));
</script><iframe src="page.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>'''


class _Server(SimpleHTTPRequestHandler):
    """Serves a folder, and puts what a page sends into a queue."""

    def __init__(self, *args, found, **options):
        self._found = found
        super().__init__(*args, **options)

    def do_POST(self):
        self._found.put(json.loads(self.rfile.read(int(self.headers['Content-Length']))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


def browser():
    """Return the path of a Chromium; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or pytest.skip(f'no browser: none of {", ".join(_NAMES)} is on the PATH')


def look_at(page, folder, width=1280, look=''):
    """Open a copy of a page and return what was found in it.

    Args:
        page: The file.
        folder: A new folder for the copy.
        width: Width of its window in pixels.
        look: JavaScript that runs when everything is loaded, and returns an object with more findings.

    Returns:
        A dict with the ``problems`` (errors, blocked requests, broken images), the ``title``, the widths of all
        ``images``, all ``requests`` except for data in the page, the ``width`` of the window, what is too ``wide`` for
        it, and whether the page ``scrolls`` sideways.
    """
    folder.mkdir()
    text = Path(page).read_text()
    last = _LOOK.replace('LOOK', look)
    hashes = ' '.join(f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
                      for code in (_WATCH, last))
    text, changed = re.subn(r'(?<=script-src )', hashes + ' ', text, count=1)
    assert changed, 'the page does not say which scripts may run'
    text = text.replace('<title>', f'<script>{_WATCH}</script><title>', 1)
    head, _, tail = text.rpartition('</body>')
    (folder / 'page.html').write_text(f'{head}<script>{last}</script></body>{tail}')
    (folder / 'frame.html').write_text(_FRAME.replace('WIDTH', str(width)))
    found = queue.Queue()
    with ThreadingHTTPServer(('127.0.0.1', 0), partial(_Server, directory=folder, found=found)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with open(folder / 'log', 'w') as log:
            process = subprocess.Popen(
                [browser(), '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
                 '--disable-background-networking', '--remote-debugging-port=0', f'--user-data-dir={folder}/profile',
                 f'--window-size={width + 40},1000', '--enable-logging=stderr',
                 f'http://127.0.0.1:{server.server_port}/frame.html'], stdout=log, stderr=log, start_new_session=True)
        try:
            findings = found.get(timeout=90)
        except queue.Empty:
            pytest.fail(f'the page said nothing: {(folder / "log").read_text()[-2000:]}')
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            server.shutdown()
    findings['problems'] += re.findall(r'.*:CONSOLE.*', (folder / 'log').read_text())
    return findings
