"""The docs name files and tests that exist, and the code that they offer to copy works as a copy."""
import ast
import re
from functools import reduce

import torch
from docs.pages import PAGES

from helpers.models import TINY, build, randomise, relative_error
from helpers.paths import ROOT


def test_the_reference_works_as_a_copy():
    """In a separate file, with another name and another block."""
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


def test_where_things_happen_names_files_that_are_there():
    page = (ROOT / 'docs/where_things_happen.md').read_text()
    names = re.findall(r'`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`', page)
    assert len(names) > 60
    assert not [name for name in names if not (ROOT / 'xcit_dense' / name).exists() and not (ROOT / name).exists()]


def test_the_page_of_promises_names_tests_that_exist():
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
