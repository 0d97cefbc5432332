"""What the tests of configs share."""
import pytest

from helpers.paths import TINY_CONFIG
from xcit_dense.config.check import check_config, keys
from xcit_dense.errors import ConfigError


@pytest.fixture
def hints(monkeypatch):
    """The lines that are logged as warnings, without their titles."""
    said = []
    monkeypatch.setattr(keys, 'print_log',
                        lambda text, **_: said.extend(line.strip() for line in text.splitlines()[1:]))
    return said


@pytest.fixture
def logged(monkeypatch):
    """A function that returns the list of the texts that a module logs from now on."""
    def listen(module):
        texts = []
        monkeypatch.setattr(module, 'print_log', lambda text, **_: texts.append(text))
        return texts
    return listen


@pytest.fixture
def mistakes():
    """A function that returns the lines of the error about a config, or of another function for it."""
    def lines_of(cfg, check=check_config):
        with pytest.raises(ConfigError) as caught:
            check(cfg)
        title, *lines = str(caught.value).splitlines()
        assert title == f'{len(lines)} mistake{"s" * (len(lines) > 1)} in the config:'
        return [line.strip() for line in lines]
    return lines_of


@pytest.fixture
def own(tmp_path):
    """A function that writes lines below a config, by default the tiny detector's, and returns the path."""
    def write(text, base=TINY_CONFIG, name='mine.py'):
        path = tmp_path / name
        path.write_text(f"_base_ = '{base}'\n{text}\n")
        return path
    return write


@pytest.fixture
def register(monkeypatch):
    """A function that registers a class in registries until the end of the test."""
    def add(kind, *registries):
        for registry in registries:
            monkeypatch.setitem(registry.module_dict, kind.__name__, kind)
    return add
