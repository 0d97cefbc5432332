"""Images that are held out for validation: the same ones in every run and process, as many as asked for."""
import json
from collections import Counter
from pathlib import Path

import pytest

from helpers import exports
from helpers.placing import placed, read
from xcit_dense.data.layouts import detection
from xcit_dense.data.layouts.source import Source
from xcit_dense.data.layouts.writing import Made
from xcit_dense.errors import ConfigError, DataError, OutputError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'run/data'


def held_out(folder):
    return {image['file_name'] for image in json.loads((folder / 'val.json').read_text())['images']}


def content(*names, without=()):
    images = [dict(id=number, file_name=name, width=9, height=9) for number, name in enumerate((*names, *without))]
    objects = [dict(id=number + 1, image_id=number, category_id=1, bbox=[0, 0, 3, 3]) for number in range(len(names))]
    return dict(images=images, annotations=objects, categories=[dict(id=1, name='a')])


def divide(content, name, folder, share=None):
    """The contents for training and validation."""
    root = Path('/data')
    with Made(folder, root) as made:
        sources, _ = detection.divide(dict(train=Source(root / name, content, root)), made, root, share)
    return sources['train'].content, sources['val'].content


def names_of(part):
    return [image['file_name'] for image in part['images']]


@pytest.mark.parametrize('count, share, wanted', ((10, None, 2), (10, 0.5, 5), (2, None, 1), (3, 0.99, 2),
                                                  (100, 0.01, 1), (40, 0.25, 10)))
def test_the_share(count, share, wanted, folder):
    names = [f'{number}.jpg' for number in range(count)]
    train, val = divide(content(*names), 'a.json', folder, share)
    assert len(val['images']) == len(val['annotations']) == wanted
    assert sorted(names_of(train) + names_of(val)) == sorted(names)
    assert names_of(train) == [name for name in names if name in names_of(train)]  # in their order
    assert all(a['image_id'] in {i['id'] for i in part['images']} for part in (train, val) for a in part['annotations'])


def test_it_depends_on_names_alone(folder, tmp_path):
    """Not on the order in which a tool writes images."""
    names = [f'{number}.jpg' for number in range(20)]
    assert {*names_of(divide(content(*names), 'a', folder)[1])} == {
        *names_of(divide(content(*reversed(names)), 'b', tmp_path / 'b')[1])}


def test_images_without_objects_are_divided_apart(folder):
    """With only these there would be nothing to evaluate."""
    few = content('a', 'b', 'c', without=[f'{number}.jpg' for number in range(50)])
    train, val = divide(few, 'a.json', folder)
    assert len({*names_of(val)} & {*'abc'}) == 1 and len(val['images']) == 11


def test_copies_of_an_image_stay_together(folder):
    names = [f'{number}_jpg.rf.{copy:032x}.jpg' for number in range(10) for copy in range(3)]
    train, val = divide(content(*names), 'a.json', folder)
    counts = Counter(name.partition('_')[0] for name in names_of(val))
    assert [*counts.values()] == [3, 3]


def test_images_that_are_added_change_no_part(folder, tmp_path):
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder)
    first = held_out(folder)
    exports.one_file(root, 20)
    placed(root, folder)
    assert len(first) == 2 and len(held_out(folder)) == 4 and first < held_out(folder)
    exports.one_file(root, 10)
    placed(root, folder)
    assert held_out(folder) == first


def test_every_process_writes_the_same_in_any_order(folder, tmp_path, monkeypatch):
    """Also one that finds what another has written, and not noted yet."""
    root = exports.one_file(tmp_path / 'data')
    placed(root, folder)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    (folder / '.made_by_xcit_dense.json').unlink()
    monkeypatch.setenv('RANK', '1')
    placed(root, folder)
    assert before.items() >= {path.name: (path.read_bytes(), path.stat().st_mtime_ns)
                              for path in folder.iterdir()}.items()


def test_only_the_first_process_says_what_was_found(folder, tmp_path, monkeypatch, capfd):
    root = exports.one_file(tmp_path / 'data')
    monkeypatch.setenv('RANK', '1')
    placed(root, folder)
    assert 'training' not in capfd.readouterr().out
    monkeypatch.setenv('RANK', '0')
    placed(root, folder)
    assert 'held out' in capfd.readouterr().out


def test_another_share(folder, tmp_path):
    """Before there is a model the split changes, after that it is an error; without the option it stays."""
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder)
    placed(root, folder, val_share=0.5)
    assert len(held_out(folder)) == 5
    placed(root, folder)
    assert len(held_out(folder)) == 5
    (folder.parent / 'epoch_1.pth').touch()
    placed(root, folder, val_share=0.5)
    with pytest.raises(ConfigError, match='(?s)0.2.*0.5.*--work-dir'):
        placed(root, folder, val_share=0.2)


def test_what_somebody_else_wrote_stays(folder, tmp_path):
    folder.mkdir(parents=True)
    (folder / 'train.json').write_text('mine')
    with pytest.raises(OutputError, match='train.json'):
        placed(exports.one_file(tmp_path / 'data'), folder)
    assert (folder / 'train.json').read_text() == 'mine'
    (folder / 'b.json').write_text('"same"')
    with Made(folder, folder) as made:
        made.write_json('b.json', 'same')


def test_other_data_leaves_what_the_training_held_out(folder, tmp_path):
    """Files of the same names in another folder, as a checkpoint is tested on them."""
    placed(exports.one_file(tmp_path / 'data', 10), folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    cfg = placed(exports.one_file(tmp_path / 'other', 20, seed=1), folder)
    assert len(read(cfg)['train']) == 16
    assert {path: path.read_bytes() for path in before} == before


def test_more_data_leaves_what_the_training_held_out_unless_it_trains(folder, tmp_path):
    """A test holds out the same of the images that it knows; the training itself continues with the new ones."""
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder)
    (folder.parent / 'epoch_1.pth').touch()
    before, held = {path: path.read_bytes() for path in folder.iterdir()}, held_out(folder)
    assert placed(root, folder, keep=True).val_evaluator.ann_file == str(folder / 'val.json')
    exports.one_file(root, 20)
    cfg = placed(root, folder, keep=True)
    assert {path: path.read_bytes() for path in before} == before
    assert len(read(cfg)['train']) == 16 and held < held_out(Path(cfg.val_evaluator.ann_file).parent)
    placed(root, folder)
    assert held < held_out(folder)


def test_data_that_was_moved_keeps_its_parts(folder, tmp_path):
    """Also where other images came since."""
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder, val_share=0.5)
    first = held_out(folder)
    root = exports.one_file(root, 20).rename(tmp_path / 'moved')
    cfg = placed(root, folder)
    later = {image['file_name'] for image in json.loads(Path(cfg.val_evaluator.ann_file).read_text())['images']}
    assert first < later and len(later) == 10


def test_a_work_dir_in_the_data_is_no_data(tmp_path):
    root = exports.one_file(tmp_path / 'data')
    folder = root / 'runs/data'
    first = placed(root, folder).to_dict()
    assert placed(root, folder).to_dict() == first and len(read(placed(root, folder))['train']) == 10


@pytest.mark.parametrize('names', ((), ('a.jpg', ), ('a_jpg.rf.0.jpg', 'a_jpg.rf.1.jpg')))
def test_too_few_images(names, folder):
    with pytest.raises(DataError, match='(?s)a.json has only . image.*--val-annotations'):
        divide(content(*names, without=['x.jpg', 'y.jpg']), 'a.json', folder)


def test_objects_of_no_image_are_left_to_the_check_of_the_data(folder):
    faulty = content('a', 'b')
    faulty['annotations'].append(dict(id=9, image_id=77, category_id=1, bbox=[0, 0, 1, 1]))
    train, val = divide(faulty, 'a.json', folder)
    assert [annotation['id'] for annotation in train['annotations']][-1] == 9 and len(val['annotations']) == 1
