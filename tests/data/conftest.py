import pytest
from mmengine import fileio


@pytest.fixture
def shelf(tmp_path):
    """A user's backend with the name ``shelf``, for addresses ``shelf://``, and the folder that it reads."""

    class Shelf(fileio.BaseStorageBackend):
        def get(self, filepath):
            return (tmp_path / filepath.removeprefix('shelf://')).read_bytes()

        def get_text(self, filepath, encoding='utf-8'):
            return self.get(filepath).decode(encoding)

        def join_path(self, *parts):
            return '/'.join(part.rstrip('/') for part in parts)

        def list_dir_or_file(self, dir_path, *options):
            return fileio.LocalBackend().list_dir_or_file(tmp_path / dir_path.removeprefix('shelf://'), *options)

    fileio.register_backend('shelf', Shelf, force=True, prefixes='shelf')
    yield tmp_path
    for known in (fileio.backends.backends, fileio.backends.prefix_to_backends):
        known.pop('shelf')
    fileio.io.backend_instances.clear()
