import pytest

from xcit_dense.data import datasets


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def said(monkeypatch):
    """What the checks log."""
    lines = []
    monkeypatch.setattr(datasets, 'print_log', lambda text, **how: lines.append(text))
    return lines
