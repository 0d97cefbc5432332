"""What contributors and maintainers rely on: package metadata, workflows, hooks, issue forms, changelog."""
import re
import shutil
import subprocess

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from helpers.paths import ROOT
from xcit_dense import __version__

GITHUB = ROOT / '.github'
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(GITHUB.glob('workflows/*.yml'))}
STEPS = [(name, job, step) for name, workflow in WORKFLOWS.items() for job in workflow['jobs'].values()
         for step in job['steps']]


@pytest.fixture
def setup(monkeypatch):
    """A function that runs setup.py and returns its names; ``passed`` is what it passes to setuptools."""
    def run(source_url=''):
        passed = {}
        monkeypatch.setattr(setuptools, 'setup', lambda **values: passed.update(values))
        path, line = ROOT / 'setup.py', "SOURCE_URL = ''\n"
        code = path.read_text()
        assert code.count(line) == 1
        names = dict(__file__=str(path), passed=passed)
        exec(compile(code.replace(line, f'SOURCE_URL = {source_url!r}\n'), path, 'exec'), names)
        return names
    return run


def test_description_links_only_to_what_a_package_index_can_reach(setup, tmp_path):
    text = re.sub(r'^```.*?^```$|`[^`\n]+`', '', setup()['passed']['long_description'], flags=re.M | re.S)
    targets = [a or b for a, b in re.findall(r'\]\(([^)\s]+)\)|(?:href|src)="([^"]+)"', text)]
    assert targets and not [target for target in targets if not re.match('[a-z]+:|#', target)]
    code = '\n```\ny[a](b)\n```\n'
    (tmp_path / 'README.md').write_text(f'[page](docs/a.md#b) ![](c.png) #x [d](#x) [e](https://e.org)\n{code}')
    for address, page in (('', 'page '), ('https://a.org/x/blob/main', '[page](https://a.org/x/blob/main/docs/a.md#b) '
                                          '![](https://a.org/x/blob/main/c.png?raw=true)')):
        names = setup(address)
        assert names['passed']['project_urls'] == (dict(Source='https://a.org/x') if address else {})
        names['ROOT'] = tmp_path
        assert names['description']() == f'{page} #x [d](#x) [e](https://e.org)\n{code}'


def test_python_versions_are_the_same_everywhere(setup):
    found = setup()['passed']
    prefix = 'Programming Language :: Python :: '
    versions = [line.removeprefix(prefix) for line in found['classifiers'] if re.match(f'{prefix}3\\.', line)]
    assert WORKFLOWS['tests']['jobs']['quick']['strategy']['matrix']['python-version'] == versions
    accepted = SpecifierSet(found['python_requires'])
    major, minor = map(int, versions[0].split('.'))
    assert all(version in accepted for version in versions) and f'{major}.{minor - 1}' not in accepted
    assert f'sys.version_info < ({major}, {minor})' in (ROOT / 'Makefile').read_text()
    assert f'target-version = "py{major}{minor}"' in (ROOT / 'pyproject.toml').read_text()
    fixed = {step['with']['python-version'] for *_, step in STEPS if 'python-version' in step.get('with', {})}
    assert {version for version in fixed if '{' not in version} <= set(versions)


def test_changelog_begins_with_this_version():
    titles = re.findall(r'^## (.*)$', (ROOT / 'CHANGELOG.md').read_text(), re.M)
    assert titles and all(re.fullmatch(r'\[[\d.]+\] - (\d{4}-\d\d-\d\d|unreleased)', title) for title in titles)
    assert titles[0].startswith(f'[{__version__}] - ')
    assert not any('unreleased' in title for title in titles[1:])


@pytest.mark.skipif(not shutil.which('make'), reason='there is no make')
def test_make_targets_are_described_and_those_that_are_named_exist():
    described = subprocess.run(['make', '-s', 'help'], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    targets = set(re.findall(r'^([a-z-]+):(?!=)', (ROOT / 'Makefile').read_text(), re.M))
    assert set(re.findall(r'^make ([a-z-]+)', described, re.M)) == targets - {'help'}
    phony = re.search(r'^\.PHONY: (.*)$', (ROOT / 'Makefile').read_text(), re.M)[1].split()
    assert set(phony) == targets
    commands = {target for *_, step in STEPS for target in re.findall(r'make ([a-z-]+)', step.get('run', ''))}
    assert {'lint', 'test', 'test-integration', 'test-slow', 'test-onedl', 'docs'} <= commands <= targets
    texts = [ROOT / '.ci/run', GITHUB / 'pull_request_template.md']  # tests/docs has the pages
    named = {target for path in texts for line in re.findall(
        r'(?:`|^ *)make((?: [A-Z]+=\S+)*(?: [a-z-]+)+)', path.read_text(), re.M)
        for target in line.split() if '=' not in target}
    assert {'test', 'setup', 'lint'} <= named <= targets


def test_workflows_are_complete():
    for workflow in WORKFLOWS.values():
        assert workflow[True] and workflow['permissions'] == {'contents': 'read'}  # YAML reads the key `on` as True
        for job in workflow['jobs'].values():
            assert 0 < job['timeout-minutes'] < 360
            assert all(('uses' in step) != ('run' in step) for step in job['steps'])
            setup = job['steps'][1]['with']
            assert isinstance(setup['python-version'], str)  # 3.10 as a number would be 3.1
            assert all((ROOT / path).is_file() for path in setup['cache-dependency-path'].split())


def test_every_test_extra_and_the_ruff_of_the_hook_are_pinned(setup):
    wanted = {Requirement(line).name for line in setup()['passed']['extras_require']['test']}
    lines = [line.partition('#')[0].strip() for line in (ROOT / 'requirements.txt').read_text().splitlines()]
    pinned = {Requirement(line).name: line for line in lines if line}
    assert wanted <= pinned.keys()
    hook, = yaml.safe_load((ROOT / '.pre-commit-config.yaml').read_text())['repos'][0]['hooks']
    assert hook['additional_dependencies'] == [pinned['ruff']] and hook['entry'].startswith('ruff check')
