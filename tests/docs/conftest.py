"""A folder for the commands and the Python of a page."""
import pytest
from docs.stand_ins import Place


@pytest.fixture
def place(tmp_path, monkeypatch, request):
    """The `Place` of a test, which is the working folder too."""
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path, request.getfixturevalue)
    monkeypatch.setenv('TORCH_HOME', str(place.variables['TORCH_HOME']))
    return place
