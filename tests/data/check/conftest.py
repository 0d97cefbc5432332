import pytest

from xcit_dense.data.check import check, tested


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def said(monkeypatch):
    """What the checks log."""
    lines = []
    for module in (check, tested):
        monkeypatch.setattr(module, 'print_log', lambda text, **how: lines.append(text))
    return lines
