"""Every fence of the documentation has a test: its language decides which."""
import pytest

from helpers.pages import PAGES, fences, name_of

#: Languages of fences, tested by test_commands.py, test_python.py, and not at all (output, formulas, citations).
LANGUAGES = {'bash', 'python', 'text', 'bibtex'}


def test_pages_and_fences_are_found():
    assert {'README.md', 'docs/own_data.md', 'tests/README.md'} <= set(map(name_of, PAGES)) and len(fences()) > 40


@pytest.mark.parametrize('page', [name_of(page) for page in PAGES])
def test_every_fence_names_its_language(page):
    """Directives of the website, such as {toctree}, are checked where it is built."""
    wrong = [fence for fence in fences() if fence.page == page and fence.language not in LANGUAGES
             and not fence.language.startswith('{')]
    assert not wrong, ('commands are ```bash and are run, Python and configs ```python and are run; output, other code '
                       'and files ```text, and are not')


@pytest.mark.parametrize('page', [name_of(page) for page in PAGES])
def test_no_command_hides_in_text(page):
    hidden = [line for fence in fences('text') if fence.page == page for line in fence.code.splitlines()
              if line.startswith(('python -m xcit_dense', 'python tools/', 'make ')) and '[options]' not in line]
    assert not hidden, 'commands are ```bash, so that a test runs them'
