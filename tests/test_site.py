"""The documentation as a site: links, navigation, generated pages and pictures."""
import pkgutil
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_rooms import FLOORS

import xcit_dense
from helpers.browser import browser
from helpers.pages import PAGES
from helpers.paths import ROOT
from xcit_dense import predict, runtime, weights
from xcit_dense.cli import tool_names
from xcit_dense.data.shapes import CLASSES
from xcit_dense.draw import class_colours

#: Every page of the site.
SITE = [*PAGES, ROOT / 'CHANGELOG.md']


def anchors(page):
    """The anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.M | re.S)
    headings = re.findall(r'^#+ (.+)', text, re.M)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


def links(page):
    """Return the targets of the links of a page, except those to other sites."""
    return re.findall(r'\]\((?!https?:)([^)\s]+)\)', page.read_text())


def test_links_lead_somewhere():
    found = [(page, link) for page in SITE for link in links(page)]
    assert len(found) > 150 and len([link for _, link in found if '#' in link]) > 20
    for page, link in found:
        name, _, anchor = link.partition('#')
        target = page.parent / name if name else page
        assert target.exists() and (not anchor or anchor in anchors(target)), f'{page.name}: {link}'


def test_every_page_is_reached_from_the_index():
    """The site makes its navigation from these links."""
    index = ROOT / 'docs/index.md'
    assert not {path for path in SITE if path != index} - {(index.parent / link).resolve() for link in links(index)}


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
    page, parsers = (ROOT / 'docs/tools.md').read_text(), functions['parsers'](ROOT)
    assert functions['make_page'](ROOT) == page, 'run python docs/tools_page.py'
    sections = dict(section.split('\n', 1) for section in page.split('\n## ')[1:])
    assert sections.keys() == parsers.keys() >= set(tool_names())
    for name, parser in parsers.items():
        options = set(re.findall(r'(?<=[ \[])--[a-z][\w-]*', parser.format_help())) - {'--help'}
        assert not {option for option in options if f'`{option}' not in sections[name]}, name


def test_what_the_site_needs_is_pinned_and_in_one_list():
    """`make docs` installs the list without looking for what it needs; the rest comes from requirements.txt."""
    names = {}
    for name in ('requirements.txt', 'docs/requirements.txt'):
        lines = [line.partition('#')[0].strip() for line in (ROOT / name).read_text().splitlines()]
        assert all(re.match(r'[\w.-]+==\d', line) for line in lines if line)
        names[name] = {re.split('==', line)[0].lower().replace('_', '-') for line in lines if line}
    assert {'sphinx', 'myst-parser', 'furo'} <= names['docs/requirements.txt']
    assert not names['requirements.txt'] & names['docs/requirements.txt']


@pytest.fixture(scope='module')
def pictures():
    return runpy.run_path(str(ROOT / 'docs/make_images.py'))


def test_the_picture_of_speed(pictures):
    """A panel for each measure, with a bar for each form; what failed or was not measured has none."""
    rows = [dict(name='ours', seconds=1., saved_bytes=2**30), dict(name='plain', seconds=3., saved_bytes=2**32),
            dict(name='timm', seconds=2.)]
    cells = [dict(arch='a', image=[8, 9], mode='inference', rows=[{**row, 'saved_bytes': 0} for row in rows]),
             dict(arch='a', image=[8, 9], mode='training', rows=rows),
             dict(arch='b', image=[8, 9], mode='training', rows=[rows[0], dict(name='plain', failed='out of memory')])]
    figure = pictures['draw_speed'](dict(machine=dict(device='a CPU', torch='2'), cells=cells))
    assert [[bar.get_width() for bar in axes.patches] for axes in figure.axes] == [[1, 3], [1, 3], [1, 4]]
    assert [axes.get_title().partition(',')[0] for axes in figure.axes] == [
        'inference', 'training step', 'memory kept for the backward pass']
    assert [text.get_text().strip() for text in figure.axes[2].texts] == ['1', '4 (4.0x)', 'a, 8 x 9']


def test_the_picture_of_predictions(pictures, demo_data, trained, trained_segmentor, tmp_path):
    """Ground truth above, predictions below, those of the detector first."""
    folders = [Path(shutil.copytree(found[0], tmp_path / str(place), ignore=shutil.ignore_patterns('data')))
               for place, found in enumerate((trained, trained_segmentor))]
    for folder in folders:
        (folder / 'data').symlink_to(demo_data)
    figure = pictures['draw_predictions'](*folders, count=1)
    wanted, found, wanted_labels, found_labels = [axes.images[0].get_array() for axes in figure.axes]
    shapes = {np.asarray(Image.open(path)).shape for path in (demo_data / 'val2017').glob('*.jpg')}
    assert wanted.shape == found.shape in shapes and wanted_labels.shape == found_labels.shape in shapes
    for picture in (wanted, wanted_labels):  # as the tools draw: with names in the colours of the classes
        assert {tuple(color) for color in picture.reshape(-1, 3).tolist()} & {*class_colours(('background', *CLASSES))}
    assert (wanted != found).any()


@pytest.mark.integration
def test_the_reports_of_the_docs(pictures, tmp_path, monkeypatch):
    """Copies of those of the demos, and a picture of the first."""
    browser()
    copy_reports = pictures['copy_reports']
    monkeypatch.setitem(copy_reports.__globals__, 'REPORTS', tmp_path / 'reports')
    monkeypatch.setitem(copy_reports.__globals__, 'IMAGES', tmp_path)
    for name in ('demo', 'demo_seg'):
        (tmp_path / name / 'report').mkdir(parents=True)
        (tmp_path / name / 'report/report.html').write_text(f'<body style="background: red">{name}')
    copy_reports(tmp_path / 'demo', tmp_path / 'demo_seg')
    assert (tmp_path / 'reports/segmentation.html').read_text().endswith('demo_seg')
    assert np.asarray(Image.open(tmp_path / 'report.png'))[-1, -1].tolist() == [255, 0, 0]


def test_the_design_has_all_folders_in_the_order_of_their_imports():
    table = (ROOT / 'docs/design.md').read_text().partition('## Folders')[2].partition('\n## ')[0]
    rows = [re.findall(r'`(\w+(?:\.py|/))`', row) for row in re.findall(r'^\| (`[^|]+)', table, re.M)]
    rooms = {path.name + '/' * path.is_dir() for path in (ROOT / 'xcit_dense').iterdir()
             if not path.name.startswith(('_', '.')) and (path.is_file() or any(path.glob('*.py')))}
    assert sorted(name for row in rows for name in row) == sorted(rooms)
    places = [max(FLOORS.index(name.removesuffix('/').removesuffix('.py')) for name in row) for row in rows
              if 'runtime.py' not in row]
    assert places == sorted(places, reverse=True)
