"""Options, commands, configs, weights and files that sentences and tables of the documentation name exist."""
import re
from fnmatch import fnmatch

import pytest
from docs.documented import check_names, help_of, parse, program_of, read_command
from docs.pages import PAGES, command_of, inline_code
from torch.distributed.run import get_args_parser

from helpers.paths import ROOT
from xcit_dense.cli import tool_names
from xcit_dense.config.loading import list_models
from xcit_dense.errors import CheckpointError
from xcit_dense.weights.zoo import WEIGHTS

CODE = inline_code()
TOOLS = [*tool_names(), *(path.stem for path in (ROOT / 'tools').glob('*.py') if path.stem not in tool_names())]
#: Options of others that a sentence names without the program: of torch's launcher and the tests.
OF_OTHERS = {*re.findall(r'--[a-z][\w-]*', get_args_parser().format_help()), '--part', '--at-most',
             '--all-at-most', '--gpu-data', '--minutes'}


def tool_of(code):
    words = code.split()
    if code.startswith(('python -m xcit_dense ', 'xcit-dense ')):
        words = words[3 if words[0] == 'python' else 1:]
    elif re.match(r'(python )?tools/\w+\.py', code):
        words = [program_of(words)[0].removesuffix('.py')]
    return words[0] if words and words[0] in TOOLS else None


def check_each(pattern, check, parts=lambda code: [code]):
    """Check every piece of code of all pages that a pattern matches from its start, or parts of the pieces."""
    wrong = []
    for page, code in [(page, part) for page, whole in CODE for part in parts(whole) if re.match(pattern, part)]:
        try:
            check(code)
        except (AssertionError, CheckpointError, SystemExit) as error:
            wrong.append(f'{page}: `{code}`: {error}')
    assert not wrong, '\n'.join(wrong)


def test_options():
    check_each(r'(?!pip|make|python -m torch\.distributed\.run|ARGS=|labelme |tensorboard )(.*[^\w-])?--[a-z]',
               check_options)


def check_options(code):
    tool = tool_of(re.sub(r'^(\w+=\S+ )+', '', code))
    known = {'--help', *(() if tool else OF_OTHERS)}.union(*(
        re.findall(r'--[a-z][\w-]*', help_of(each)) for each in ([tool] if tool else TOOLS)))
    for option in re.findall(r'(?<![\w-])--[a-z][\w-]*', code):
        if option.endswith('-'):  # --val-... is any of several
            assert any(name.startswith(option) for name in known), f'no {tool or "tool"} has options {option}...'
        else:
            assert option in known, f'{tool or "no tool"} has no option {option}'


def test_commands():
    """Whole ones are read as their tool does; of `predict ... --tile 9` the options are tested above."""
    check_each(r'(?!.*(\.\.\.|TOOL))(\w+=\S+ )*(python -m (xcit_dense|torch[.\w]*)|(python )?tools/\w+\.py|'
               r'torchrun|xcit-dense|make|pip install|bash tools/\w+\.sh|sbatch|'
               r'(\.venv/bin/)?(python -m )?pytest) \S', check_command)


def check_command(code):
    tool, words, _ = read_command(command_of(code).words)
    if tool and words:
        check_names(tool, parse(tool, ['1' if word == 'N' else word for word in words]))


def test_every_part_of_the_paper_has_a_command():
    table = (ROOT / 'docs/index.md').read_text().partition('## The paper, part by part')[2].partition('\n## ')[0]
    rows = [line.split(' | ') for line in table.splitlines() if line.startswith('| ')][1:]
    assert len(rows) > 14
    for title, _, command in rows:
        assert re.match(r'`python -m [^`]+`|the same', command), title


def test_published_weights():
    names = re.findall(r'xcit://([a-z]\w+)(\.\.\.)?', ''.join(page.read_text() for page in PAGES))
    assert names and not [name for name, more in names if name not in WEIGHTS and
                          not (more and any(known.startswith(name) for known in WEIGHTS))]


def test_configs():
    check_each(r'(?!test_)[\w{},*]*(xcit_|\*_)[\w{},*]*'
               r'(coco|ade20k|custom|small|finetune|imagenet|imagenet_dist|\*)$', check_config)


def check_config(code):
    """Braces stand for several names, SIZE for any size."""
    if braces := re.search(r'\{([^}]*)\}', code):
        for part in braces[1].split(','):
            check_config(code[:braces.start()] + part + code[braces.end():])
    else:
        pattern = code.replace('SIZE', 's12_p16')
        assert any(fnmatch(name, pattern) for name in list_models()), f'there is no config {pattern}'


def test_files_of_the_repository():
    check_each(r'(xcit_dense|configs|tests|tools|docs|\.github|\.ci)/[\w./*-]*$|'
               r'(?!work_dirs)[a-z_]+(/[a-z_]+)+\.(py|md|sh)$', check_file, str.split)


def check_file(code):
    pattern = re.sub(r'\b(NAME|TOOL|HEAD|SIZE|DATA)\b|(?<=_)(SIZE|DATA)|HEAD(?=_)', '*', code.rstrip('/'))
    places = [ROOT / place for place in ('', 'xcit_dense', 'tests', 'configs', 'docs')]
    assert any(list(place.glob(pattern)) for place in places), f'there is no {code}'


@pytest.mark.parametrize('wanted, function, args', (
    ('there is no config', check_command, ['python -m xcit_dense train maskrcnn_xcit_s99_p16_coco']),
    ('no test runs', read_command, [['unzip', 'data.zip']]), ('there is no demos', check_command, ['make demos']),
    ('there is no nothing', check_command, ['pip install .[nothing]']),
    ('there is no tool', check_command, ['python -m xcit_dense trian']),
    ('has no option --data-roots', check_options, ['--data-roots DIR']),
    ('has no option --epochs', check_options, ['predict --epochs 3']),
    ('there is no config', check_config, ['maskrcnn_xcit_{s12,s99}_p16_coco'])))
def test_wrong_names_are_found(wanted, function, args):
    """The tests above see what they are for."""
    with pytest.raises(AssertionError, match=wanted):
        function(*args)
