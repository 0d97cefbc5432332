"""Files that are derived from data: by several processes at once, and after a stop."""
import json
import os

import pytest

from helpers import exports, exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.placing import train_data
from xcit_dense.data.layouts import writing
from xcit_dense.data.layouts.writing import Made
from xcit_dense.errors import OutputError
from xcit_dense.files import RECORD


@pytest.mark.integration
@pytest.mark.parametrize('config, make', ((TINY_CONFIG, exports.yolo), (TINY_CONFIG, exports.one_file),
                                          (TINY_SEG_CONFIG, exports_segmentation.cvat),
                                          (TINY_SEG_CONFIG, exports_segmentation.label_studio)))
def test_two_processes_at_once(config, make, two_processes, tmp_path):
    """Both end with the same data, and nothing half written is left; once more changes nothing."""
    root = make(tmp_path / 'data')
    first, second = two_processes.run(train_data, config, root, tmp_path / 'run')
    assert first == second
    files = {path: path.read_bytes() for path in (tmp_path / 'run').rglob('*') if path.is_file()}
    assert files and not [path for path in files if path.suffix == '.part']
    two_processes.run(train_data, config, root, tmp_path / 'run')
    assert {path: path.read_bytes() for path in files} == files


def test_another_process_was_faster(tmp_path, monkeypatch):
    """Between the look at a file and the claim of its name."""
    folder, holds, calls = tmp_path / 'data', writing._holds, []

    def looks_before(file, data):
        if file.name == 'a.json' and not calls:
            calls.append(file)
            with Made(folder, tmp_path) as other:
                other.write_json('a.json', [1])
            (folder / RECORD).unlink()  # which it notes at its end
            return False
        return holds(file, data)

    monkeypatch.setattr(writing, '_holds', looks_before)
    with Made(folder, tmp_path) as made:
        made.write_json('a.json', [1])
    assert calls and json.loads((folder / 'a.json').read_text()) == [1]


def test_a_stop_while_converting(tmp_path, monkeypatch):
    """Written files are recognised as ours: the next run continues, with another palette too."""
    root, write = exports_segmentation.cvat(tmp_path / 'data'), Made.write
    count = []

    def stop(made, name, data):
        count.append(name)
        if len(count) > 4:
            raise KeyboardInterrupt
        return write(made, name, data)

    monkeypatch.setattr(Made, 'write', stop)
    with pytest.raises(KeyboardInterrupt):
        train_data(TINY_SEG_CONFIG, root, tmp_path / 'run')
    monkeypatch.undo()
    lines = (root / 'labelmap.txt').read_text().splitlines()
    (root / 'labelmap.txt').write_text('\n'.join([lines[0], *reversed(lines[1:])]))
    train_data(TINY_SEG_CONFIG, root, tmp_path / 'run')
    assert len(list((tmp_path / 'run/data/maps').rglob('*.png'))) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_folder_that_may_not_be_written(tmp_path):
    root, run = exports.one_file(tmp_path / 'data'), tmp_path / 'run'
    run.mkdir()
    root.chmod(0o555)
    run.chmod(0o555)
    try:
        with pytest.raises(OutputError, match=f'cannot write into {run}/data'):
            train_data(TINY_CONFIG, root, run)
        run.chmod(0o755)
        train_data(TINY_CONFIG, root, run)
    finally:
        run.chmod(0o755)
        root.chmod(0o755)
