"""What the tests of findings share."""
import pytest

from xcit_dense.config.check import findings


@pytest.fixture
def hints(monkeypatch):
    """The lines that are logged as warnings, without their titles."""
    said = []
    monkeypatch.setattr(findings, 'print_log',
                        lambda text, **_: said.extend(line.strip() for line in text.splitlines()[1:]))
    return said
