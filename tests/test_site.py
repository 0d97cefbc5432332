"""The documentation: links, navigation, generated pages, measured figures, names of files and tests, code to copy."""
import ast
import json
import pkgutil
import re
import runpy
from functools import reduce

import pytest
import torch
from docs.pages import PAGES
from test_rooms import FLOORS

import xcit_dense
from helpers.models import TINY, build, randomise, relative_error
from helpers.paths import ROOT
from helpers.tools import run_tool
from xcit_dense import predict, runtime, weights
from xcit_dense.cli import tool_names

#: Every page of the site.
SITE = [*PAGES, ROOT / 'CHANGELOG.md']


def anchors(page):
    """The anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.M | re.S)
    headings = re.findall(r'^#+ (.+)', text, re.M)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def test_links_lead_somewhere():
    """Except those to other sites, and every page is once in the navigation. The site makes that from the lines of the
    index that start with a link to a page."""
    found = [(page, link) for page in SITE for link in re.findall(r'\]\((?!https?:)([^)\s]+)\)', page.read_text())]
    assert len(found) > 150 and len([link for _, link in found if '#' in link]) > 20
    for page, link in found:
        name, _, anchor = link.partition('#')
        target = page.parent / name if name else page
        assert target.exists() and (not anchor or anchor in anchors(target)), f'{page.name}: {link}'
    index = ROOT / 'docs/index.md'
    entries = re.findall(r'^- \[.+?\]\((\S+\.md)\)', index.read_text(), re.M)
    assert sorted((index.parent / entry).resolve() for entry in entries) == sorted({*SITE} - {index})


def test_every_public_name_is_documented():
    page = (ROOT / 'docs/api.md').read_text()
    documented = set(re.findall(r'^\.\. auto\w+:: ([\w.]+)', page, re.M))
    public = [f'xcit_dense.{name}' for name in xcit_dense.__all__]
    public += [f'xcit_dense.{room.__name__.rpartition(".")[2]}.{name}' for room in (predict, weights)
               for name in room.__all__]
    public += [f'xcit_dense.runtime.{name}' for name, value in vars(runtime).items()
               if isinstance(value, type) and value.__module__ == runtime.__name__]
    assert len(public) > 25 and not set(public) - documented
    assert '.. automodule:: xcit_dense.errors\n   :members:' in page
    for name in documented:
        assert pkgutil.resolve_name(name).__doc__, name


def test_the_page_of_tools_is_up_to_date_and_has_every_option():
    functions = runpy.run_path(str(ROOT / 'docs/tools_page.py'))
    page, parsers = (ROOT / 'docs/tools.md').read_text(), functions['parsers']()
    assert functions['make_page']() == page, 'run python docs/tools_page.py'
    sections = dict(section.split('\n', 1) for section in page.split('\n## ')[1:])
    del sections['Shared options']
    assert sections.keys() == parsers.keys() == set(tool_names())
    for name, parser in parsers.items():
        options = set(re.findall(r'(?<=[ \[])--[a-z][\w-]*', parser.format_help())) - {'--help'}
        assert not {option for option in options if f'`{option}' not in sections[name]}, name


def test_every_figure_of_the_demos_is_what_was_measured():
    """On one machine and one day, in blocks that one command writes, and nowhere else."""
    functions = runpy.run_path(str(ROOT / 'docs/figures.py'))
    results = json.loads((ROOT / 'docs/figures.json').read_text())
    assert results.keys() == functions['STEPS'].keys()
    assert len({(each['date'], each['device'], each['torch']) for each in results.values()}) == 1
    names = []
    for page in PAGES:
        text = page.read_text()
        assert functions['with_blocks'](text, results) == text, f'{page.name}: run make figures'
        names += re.findall(r'<!-- (\w+): made by docs/figures.py -->', text)
        rest = re.sub(r'<!-- (\w+): made by .*?<!-- end of \1 -->', '', text, flags=re.S)
        found = re.findall(r'^.*make demo.*\b(?:AP|AP50|mIoU|top-1) (?:of )?\d.*$', rest, re.M)
        assert not found, f'{page.name}: figures of a demo outside of the blocks'
    assert sorted(names) == sorted(functions['BLOCKS'])


def test_the_design_has_all_folders_in_the_order_of_their_imports():
    table = (ROOT / 'docs/design.md').read_text().partition('## Folders')[2].partition('\n## ')[0]
    rows = [re.findall(r'`(\w+(?:\.py|/))`', row) for row in re.findall(r'^\| (`[^|]+)', table, re.M)]
    rooms = {path.name + '/' * path.is_dir() for path in (ROOT / 'xcit_dense').iterdir()
             if not path.name.startswith(('__', '.')) and (path.is_file() or any(path.glob('*.py')))}
    assert sorted(name for row in rows for name in row) == sorted(rooms)
    places = [max(FLOORS.index(name.removesuffix('/').removesuffix('.py')) for name in row) for row in rows
              if 'runtime.py' not in row]
    assert places == sorted(places, reverse=True)


def test_the_reference_works_as_a_copy():
    source = (ROOT / 'xcit_dense/models/reference.py').read_text()
    model = randomise(build(8)).eval()
    x = torch.randn(1, 3, 133, 77)
    for name, act, is_same in (('Copied', 'gelu', True), ('Changed', 'relu', False)):
        found = {}
        changes = {'class ReferenceXCiT': f'class {name}', 'F.gelu(block.mlp': f'F.{act}(block.mlp'}
        exec(reduce(lambda text, change: text.replace(*change), changes.items(), source), found)
        copied = found[name](dict(TINY, patch_size=8), norm_cfg=dict(type='BN')).eval()
        copied.load_state_dict(model.state_dict())
        with torch.no_grad():
            assert (relative_error(copied(x)[3], model(x)[3]) < 5e-6) == is_same


def test_pages_name_files_and_tests_that_are_there():
    page = (ROOT / 'docs/where_things_happen.md').read_text()
    names = re.findall(r'`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`', page)
    assert len(names) > 60
    assert not [name for name in names if not (ROOT / 'xcit_dense' / name).exists() and not (ROOT / name).exists()]
    lines = [line for line in (ROOT / 'docs/promises.md').read_text().splitlines() if line.startswith('|')]
    rows = [line.strip('| ').split(' | ') for line in lines if '---' not in line and not line.endswith('| tests |')]
    assert len(rows) > 90
    files = [*(ROOT / 'tests').rglob('test_*.py')]
    files, tests = {path.name for path in files}, '\n'.join(path.read_text() for path in files)
    for row in rows:
        names = re.findall(r'`([^`]+)`', row[1]) if len(row) == 2 else ()
        assert names, row
        assert not [name for name in names if name not in files and f'def {name}(' not in tests], row


def test_messages_that_are_headings_are_in_the_source():
    """More than half of the words of each, in stretches of three or more; values are in capitals or dots."""
    nodes = [node for path in (ROOT / 'xcit_dense').rglob('*.py') for node in ast.walk(ast.parse(path.read_text()))]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes
             if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings]
    texts += [''.join(part.value if isinstance(part, ast.Constant) else '\0' for part in node.values)
              for node in nodes if isinstance(node, ast.JoinedStr)]
    source = '\n'.join(texts)
    page = (ROOT / 'docs/when_something_goes_wrong.md').read_text()
    messages = re.findall(r'^### `(.+)`$', page, re.M)
    assert len(messages) > 20
    for message in messages:
        runs = [run.split() for run in re.split(r"'?\b(?:[A-Z]{2,}|N)\b'?|\.\.\.", message)]
        found = {(run, place + step) for run, words in enumerate(runs) for place in range(len(words) - 2)
                 if ' '.join(words[place:place + 3]) in source for step in range(3)}
        assert len(found) > sum(map(len, runs)) / 2, f'no message in the source reads like: {message}'


def test_no_sentence_has_more_than_35_words():
    """Cells of tables and items of lists are sentences of their own."""
    for page in PAGES:
        text = re.sub(r'^```.*?^```|<!--.*?-->|\$\$.*?\$\$', '', page.read_text(), flags=re.M | re.S)
        text = re.sub(r'`[^`]*`|\$[^$]*\$', 'code', re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', text))
        for part in re.split(r'\n\s*\n|\n\s*(?:[-*#|]|\d\.)+ |\s\|\s|[.?!:;]\**\s', text):
            assert len(part.split()) <= 35, f'{page.name}: {part}'


@pytest.mark.slow
def test_model_table_and_metafiles_are_up_to_date():
    pytest.importorskip('mmpretrain', reason='it has no fork')
    done = run_tool('model_table.py', '--check', check=False)
    assert done.returncode == 0, done.stdout
