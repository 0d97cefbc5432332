"""What the pages of the documentation show: fences of code, their commands, and code within sentences."""
import re
import shlex
import textwrap
from collections import namedtuple

from helpers.paths import ROOT

#: Every page with commands and code. `make docs` writes copies below docs/, which are not tested again.
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted(ROOT.glob('docs/*.md')), ROOT / 'tests/README.md']
_FENCE = re.compile(r'^( *)(`{3,}|:{3,})([^\n`]*)\n(.*?)^\1\2 *$', re.M | re.S)
_VARIABLE = re.compile(r'(\w+)=(.*)', re.S)
#: Code between two lines of backquotes, with the page and the heading that it is under.
Fence = namedtuple('Fence', 'page section language code')
#: A command of a fence: its words as the shell passes them on, and the variables before it.
Command = namedtuple('Command', 'text words variables')


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def fences(*languages):
    """Return the fences of all pages, in order; of some languages, or of all."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            titles = re.findall(r'^##? (.+)$', _FENCE.sub('', text[:match.start()]), re.M)
            found.append(Fence(name_of(page), titles[-1] if titles else '', match[3].strip(),
                               textwrap.dedent(match[4])))
    return [fence for fence in found if not languages or fence.language in languages]


def commands(code):
    """Return the commands of a fence, one for each line or part of a line that ``&&`` divides."""
    lines = re.sub(r'\\\n\s*', '', code).splitlines()
    return [command for line in lines for text in re.split(r'\s&&\s', line) if (command := command_of(text)).words]


def command_of(text):
    """Return the `Command` of a text, without its comment."""
    words = shlex.split(text, comments=True)
    variables = {}
    while words and (match := _VARIABLE.fullmatch(words[0])):
        variables[match[1]] = match[2]
        words = words[1:]
    return Command(text.partition('  #')[0].strip(), tuple(words), variables)


def inline_code():
    """Return pairs of a page and a piece of code within its sentences and tables, each once."""
    return list(dict.fromkeys(
        (name_of(page), code) for page in PAGES
        for code in re.findall(r'(?<!`)`([^`\n]+)`(?!`)', _FENCE.sub('', page.read_text()))))
