"""A page in a headless Chromium: what its user would see, and every problem that the browser reports."""
import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

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
  for (const details of document.querySelectorAll('details')) details.open = true;
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
#: A window cannot be as narrow as that of a phone, a frame can. What the page found is the text of this one.
_FRAME = '''<!DOCTYPE html><link rel="icon" href="data:,"><body><iframe src="page.html" style="width: WIDTHpx;
height: 900px; border: 0"></iframe><script>
addEventListener('message', ({data}) => { document.body.textContent = 'FOUND' + JSON.stringify(data) + 'END'; });
</script>'''


def browser():
    """Return the path of a Chromium; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or pytest.skip(f'no browser: none of {", ".join(_NAMES)} is on the PATH')


def look_at(page, folder, width=1280, look=''):
    """Open a copy of a page in a new folder; return what `_LOOK` finds, and what the JavaScript ``look`` returns."""
    folder.mkdir()
    text = Path(page).read_text().replace('loading="lazy"', '')
    last = _LOOK.replace('LOOK', look)
    hashes = ' '.join(f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
                      for code in (_WATCH, last))
    text, changed = re.subn(r'(?<=script-src )', hashes + ' ', text, count=1)
    assert changed, 'the page does not say which scripts may run'
    text = text.replace('<title>', f'<script>{_WATCH}</script><title>', 1)
    head, _, tail = text.rpartition('</body>')
    (folder / 'page.html').write_text(f'{head}<script>{last}</script></body>{tail}')
    (folder / 'frame.html').write_text(_FRAME.replace('WIDTH', str(width)))
    run = subprocess.run(
        [browser(), '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
         f'--user-data-dir={folder}/profile', f'--window-size={width + 40},1000', '--enable-logging=stderr',
         '--virtual-time-budget=60000', '--dump-dom', (folder / 'frame.html').as_uri()],
        capture_output=True, text=True, timeout=90)
    found = re.search('FOUND({.*})END', run.stdout, re.S)
    assert found, f'the page said nothing: {run.stderr[-2000:]}'
    findings = json.loads(html.unescape(found[1]))
    findings['problems'] += re.findall(r'.*:CONSOLE.*', run.stderr)
    return findings
