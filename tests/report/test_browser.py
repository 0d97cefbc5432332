"""The page of a report in a real browser: complete, quiet, and readable in wide and narrow windows."""
import pytest
from report.browser import browser, look_at
from report.contents import HOSTILE, make_content

from xcit_dense._utils.text import printable
from xcit_dense.report.page import write_page

pytestmark = pytest.mark.integration

_NAMES = '''
  const names = place => [...document.querySelectorAll(`#${place} .sortable tbody tr`)].map(
    row => row.cells[0].textContent);
  const found = {classes: names('classes'), listed: names('images')};
'''
_CLICKS = '''
  const click = (place, times) => {
    for (let time = 0; time < times; time++) document.querySelectorAll('#classes thead button')[place].click();
    return [...document.querySelectorAll('#classes tbody tr')].map(row => row.cells[place].textContent);
  };
  const found = {up: click(2, 1), down: click(2, 1), names: click(0, 1)};
  const figure = document.querySelector('figure'), wide = figure.offsetWidth;
  figure.click();
  found.enlarged = figure.offsetWidth / wide;
  const cell = document.querySelector('#matrix tbody').rows[0].cells[1];
  cell.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
  found.readout = document.getElementById('readout').textContent;
'''


@pytest.fixture(autouse=True, scope='module')
def _browser():
    browser()


@pytest.mark.parametrize('width', (390, 1280))
@pytest.mark.parametrize('classes, images, pictures', ((5, 1000, 24), (150, 40, 2), (1, 1, 0)))
def test_nothing_is_missing(classes, images, pictures, width, tmp_path):
    content = make_content(classes, images, pictures, names=HOSTILE)
    write_page(tmp_path / 'report.html', content)
    found = look_at(tmp_path / 'report.html', tmp_path / 'copy', width, _NAMES + 'return found;')
    assert not found['problems'] and not found['requests']
    assert found['width'] == width and not found['wide'] and not found['scrolls']
    assert len(found['images']) == 2 * pictures and min(found['images'], default=1) > 0
    assert found['classes'] == [printable(row.name) for row in content.classes[1]]
    assert found['listed'] == [row.name.rpartition('/')[2] for row in content.images[1]]
    assert found['title'] == 'Test of a detector: maskrcnn_xcit_s12_p8'


def test_what_can_be_clicked(tmp_path):
    content = make_content(12, pictures=3)
    write_page(tmp_path / 'report.html', content)
    found = look_at(tmp_path / 'report.html', tmp_path / 'copy', look=_CLICKS + 'return found;')
    assert not found['problems']
    values = [f'{row.values["AP"]:.3f}' for row in content.classes[1][:-1]]
    assert found['up'] == [*sorted(values), '-'] and found['down'] == [*sorted(values, reverse=True), '-']
    assert found['names'] == [f'class {place}' for place in range(12)]  # 2 before 10
    assert found['enlarged'] > 1.9
    count, total = content.confusion.counts[0, 0], content.confusion.counts[0].sum()
    share = f'{100 * count / total:.1f}%'
    assert found['readout'] == f'class 0, predicted as class 0: {count} of {total} objects ({share})'


def test_a_script_in_the_page_does_not_run(tmp_path):
    """If a name were not escaped, the browser would block it all the same, and the tests above would see that."""
    write_page(tmp_path / 'report.html', make_content())
    text = (tmp_path / 'report.html').read_text()
    assert "script-src 'sha256-" in text and "script-src 'unsafe" not in text
    (tmp_path / 'report.html').write_text(text.replace(
        '<h1>', '<script>document.title = "attacked"</script><img src="https://example.org/x.png"><h1>', 1))
    found = look_at(tmp_path / 'report.html', tmp_path / 'copy')
    assert found['title'] != 'attacked'
    assert {'blocked: inline', 'blocked: https://example.org/x.png'} <= set(found['problems'])
