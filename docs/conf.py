"""The documentation site: `make docs` builds the pages of this folder into docs/_build/html."""
import re
import shutil
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))
import xcit_dense  # noqa: E402

#: The address in setup.py. While it is empty, links to source files are plain text on the site.
SOURCE_URL = re.search(r"^SOURCE_URL = '(.*)'$", (ROOT / 'setup.py').read_text(), re.M)[1]
#: Pages outside docs/ that the site shows too, by their names on the site. Each build copies them into docs/project/.
COPIED = {'README.md': 'readme.md', 'CHANGELOG.md': 'changelog.md', 'CONTRIBUTING.md': 'contributing.md',
          'tests/README.md': 'tests.md'}

project = 'xcit_dense'
author = 'the xcit_dense authors'
version = release = xcit_dense.__version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx.ext.viewcode', 'sphinx_copybutton']
exclude_patterns = ['_build']
html_theme = 'furo'
html_title = f'xcit_dense {release}'
html_show_sourcelink = html_show_copyright = False
html_static_path = ['_static']
html_css_files = ['site.css']
html_favicon = '_static/favicon.svg'
html_math_renderer = 'mathml'  # of setup() below: no script, and nothing from the network
smartquotes = False  # they would turn the -- of options into dashes

myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 4  # anchors as GitHub makes them
default_role = 'py:obj'  # `name` in a docstring links to what the API page documents
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
napoleon_use_rtype = False
linkcheck_timeout = 30
linkcheck_retries = 3
linkcheck_anchors = False

_LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)')
_log = logging.getLogger(__name__)


def _copy_pages(app):
    shutil.rmtree(DOCS / 'project', ignore_errors=True)
    (DOCS / 'project').mkdir()
    for name, page in COPIED.items():
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, DOCS / 'project' / page)


def _resolve_links(app, page, source):
    """Make relative links of the files, as they work in a checkout, work on the site."""
    original = {f'project/{copied}'.removesuffix('.md'): name for name, copied in COPIED.items()}.get(page)
    folder = (ROOT / original).parent if original else DOCS

    def replace(link):
        mark, text, target = link.groups()
        name, _, anchor = target.partition('#')
        if re.match(r'\w+:', name) or not name:
            return link[0]
        path = (folder / name).resolve()
        if not path.exists():
            _log.warning('%s: the link to %s leads nowhere', page, name)
            return link[0]
        inside, path = path.is_relative_to(DOCS), path.relative_to(ROOT).as_posix()
        anchor = f'#{anchor}' if anchor else ''
        text = _LINK.sub(replace, text)
        if path.startswith('docs/_static/'):  # a page of its own, which Sphinx would offer as a download
            return f'<a href="{path.removeprefix("docs/")}">{text}</a>'
        if path in COPIED:
            return f'[{text}](/project/{COPIED[path]}{anchor})'
        if inside:
            return f'{mark}[{text}](/{path.removeprefix("docs/")}{anchor})'
        return f'[{text}]({SOURCE_URL}/{path}{anchor})' if SOURCE_URL else text

    source[0] = _LINK.sub(replace, source[0])


def _add_toctrees(app, page, source):
    """Make the navigation from index.md: a caption per heading, an entry per line of a list that starts with a page."""
    if page != 'index':
        return
    parts = []
    for section in re.split(r'^## ', source[0], flags=re.M)[1:]:
        caption, _, text = section.partition('\n')
        entries = [f'{title} <{name}>' for title, name in re.findall(r'^- \[(.+?)\]\(([\w/]+)\.md\)', text, re.M)]
        if entries:
            parts.append('\n'.join(['```{toctree}', ':hidden:', f':caption: {caption}', '', *entries, '```']))
    source[0] += '\n\n'.join(['', *parts, ''])


def _mark_words(app, page, template, context, doctree):
    """Mark what site.css keeps in one line: words with hyphens in blocks of code, such as options, and short ones."""
    def mark(block):
        return re.sub(r'(?<![^\s>])[^\s<>]*-[^\s<>]*(?![^<]*>)', r'<span class="pre">\g<0></span>', block[0])
    body = re.sub('<pre>.*?</pre>', mark, context.get('body', ''), flags=re.S)
    context['body'] = re.sub('(?<=<span class="pre)(?=">[^<]{,20}<)', ' short', body)


def _add_formula(self, node):
    """Write a formula as MathML, which browsers draw themselves."""
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), is_block)
    self.body.append(f'<div class="math">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def _warn_of_network(app, error):
    """A built page must not load anything from another site."""
    for page in Path(app.outdir).rglob('*.html') if not error else ():
        for loaded in re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="(?:https?:)?//.*?"', page.read_text()):
            _log.warning('%s loads %s', page.name, loaded)


def setup(app):
    """Connect the functions above."""
    app.add_html_math_renderer('mathml', (_add_formula, None), (_add_formula, None))
    app.connect('html-page-context', _mark_words)
    app.connect('build-finished', _warn_of_network)
    app.connect('builder-inited', _copy_pages)
    app.connect('source-read', _resolve_links)
    app.connect('source-read', _add_toctrees)
