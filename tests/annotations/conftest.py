import pytest


@pytest.fixture
def folder(tmp_path):
    """Where `placed` writes."""
    return tmp_path / 'run/data'
