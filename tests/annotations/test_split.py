"""Images that are held out for validation, and what is derived from data: the same in every run and process."""
import json
from collections import Counter
from pathlib import Path

import pytest
from annotations import exports
from annotations.placing import placed, read

from helpers import exports_segmentation
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import files_in
from xcit_dense._utils.files import RECORD
from xcit_dense.annotations import detection_formats
from xcit_dense.annotations.derived import Made
from xcit_dense.annotations.types import DataOptions, Part
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError, DataError, OutputError


def held_out(folder):
    return {image['file_name'] for image in json.loads((folder / 'val.json').read_text())['images']}


def content(*names, without=()):
    images = [dict(id=3 * number, file_name=name, width=9, height=7) for number, name in enumerate((*names, *without))]
    objects = [dict(id=number + 1, image_id=3 * number, category_id=1, bbox=[0, 0, 3, 3])
               for number in range(len(names))]
    return dict(images=images, annotations=objects, categories=[dict(id=1, name='a')])


def divide(content, folder, share=None, name='a.json'):
    """The contents for training and validation, and the names of their images."""
    root = Path('/data')
    with Made(folder, root) as made:
        halves, _ = detection_formats.divide(dict(train=Part(root, root / name, content=content)), made, root, share)
    parts = [halves[part].content for part in ('train', 'val')]
    return *parts, *([image['file_name'] for image in part['images']] for part in parts)


@pytest.mark.parametrize('count, share, wanted', ((10, None, 2), (10, 0.5, 5), (2, None, 1), (3, 0.99, 2),
                                                  (100, 0.01, 1), (11, 0.25, 3), (9, 0.25, 2)))
def test_the_share(count, share, wanted, folder, tmp_path):
    """It depends on names alone, not on the order in which a tool writes images."""
    names = [f'{number}.jpg' for number in range(count)]
    train, val, of_train, of_val = divide(content(*names), folder, share)
    assert len(val['images']) == len(val['annotations']) == wanted
    assert sorted(of_train + of_val) == sorted(names)
    assert of_train == [name for name in names if name in of_train]  # in their order
    assert all(a['image_id'] in {i['id'] for i in part['images']} for part in (train, val) for a in part['annotations'])
    assert {*divide(content(*reversed(names)), tmp_path / 'b', share, 'b')[3]} == {*of_val}


def test_what_is_divided_apart_and_what_together(folder, tmp_path):
    """With only images without objects there would be nothing to evaluate; copies of an image are one."""
    *_, names = divide(content('a', 'b', 'c', without=[f'{number}.jpg' for number in range(50)]), folder)
    assert len({*names} & {*'abc'}) == 1 and len(names) == 11
    copies = [f'{number}_jpg.rf.{copy:032x}.jpg' for number in range(10) for copy in range(3)]
    *_, names = divide(content(*copies), tmp_path / 'b')
    assert [*Counter(name.partition('_')[0] for name in names).values()] == [3, 3]
    # objects of no image are left to the check of the data
    faulty = content('a', 'b')
    faulty['annotations'].append(dict(id=9, image_id=77, category_id=1, bbox=[0, 0, 1, 1]))
    train, val, *_ = divide(faulty, tmp_path / 'c')
    assert [annotation['id'] for annotation in train['annotations']][-1] == 9 and len(val['annotations']) == 1
    for names in ((), ('a.jpg', ), ('a_jpg.rf.0.jpg', 'a_jpg.rf.1.jpg')):
        with pytest.raises(DataError, match='(?s)a.json has only . image.*--val-annotations'):
            divide(content(*names, without=['x.jpg', 'y.jpg']), folder)


def test_every_process_writes_the_same_and_the_first_says_what_was_found(folder, tmp_path, monkeypatch, capfd):
    """Also one that finds what another has written, and not noted yet."""
    root = exports.one_file(tmp_path / 'data')
    placed(root, folder)
    assert '0.2 of the images are held out' in capfd.readouterr().out
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    (folder / RECORD).unlink()
    monkeypatch.setenv('RANK', '1')
    placed(root, folder)
    assert 'training' not in capfd.readouterr().out
    assert before.items() >= {path.name: (path.read_bytes(), path.stat().st_mtime_ns)
                              for path in folder.iterdir()}.items()


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


@pytest.mark.parametrize('config, make', ((TINY_CONFIG, exports.yolo), (TINY_SEG_CONFIG, exports_segmentation.camvid)))
def test_a_share_of_named_training_data_replaces_the_validation_data(config, make, tmp_path):
    root, images = make(tmp_path / 'data'), 'images/train' if make is exports.yolo else 'train'
    options = dict(data_root=root, work_dir=tmp_path / 'run')
    with pytest.raises(ConfigError, match=f'{root} has validation data .*--train-images DIR'):
        load_config(config, data=DataOptions(val_share=0.25), **options)
    maps = None if make is exports.yolo else 'trainannot'
    cfg = load_config(config, data=DataOptions(images, maps, val_share=0.25), **options)
    assert next(iter(cfg.val_dataloader.dataset.data_prefix.values())) == images


def test_other_data_leaves_what_the_training_held_out(folder, tmp_path):
    """Files of the same names in another folder, as a checkpoint is tested on them. What somebody else wrote stays."""
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder)
    before = files_in(folder)
    assert len(read(placed(exports.one_file(tmp_path / 'other', 20, seed=1), folder))['train']) == 16
    placed(tmp_path / 'other', folder, val_share=0.5)
    assert len(read(placed(tmp_path / 'other', folder))['train']) == 10  # as it was divided last
    assert before.items() <= files_in(folder).items()
    other = tmp_path / 'second/data'
    other.mkdir(parents=True)
    (other / 'train.json').write_text('mine')
    with pytest.raises(OutputError, match='train.json'):
        placed(root, other)
    assert (other / 'train.json').read_text() == 'mine'


def test_more_data_leaves_what_the_training_held_out_unless_it_trains(folder, tmp_path):
    """A test holds out the same of the images that it knows; the training itself continues with the new ones."""
    root = exports.one_file(tmp_path / 'data', 10)
    placed(root, folder)
    (folder.parent / 'epoch_1.pth').touch()
    before, held = files_in(folder), held_out(folder)
    assert placed(root, folder, keep=True).val_evaluator.ann_file == str(folder / 'val.json')
    exports.one_file(root, 20)
    cfg = placed(root, folder, keep=True)
    assert before.items() <= files_in(folder).items()
    assert len(read(cfg)['train']) == 16 and held < held_out(Path(cfg.val_evaluator.ann_file).parent)
    placed(root, folder)
    assert held < held_out(folder) and len(held) == 2 and len(held_out(folder)) == 4
    exports.one_file(root, 10)  # without the new ones it is as before
    placed(root, folder)
    assert held_out(folder) == held


def test_data_that_was_moved_keeps_its_parts(tmp_path):
    """Also where other images came since. A work dir in the data is no data."""
    root, folder = exports.one_file(tmp_path / 'data', 10), tmp_path / 'data/runs/data'
    first = placed(root, folder, val_share=0.5).to_dict()
    assert placed(root, folder).to_dict() == first and len(read(placed(root, folder))['train']) == 5
    first = held_out(folder)
    root = exports.one_file(root, 20).rename(tmp_path / 'moved')
    later = held_out(Path(placed(root, root / 'runs/data').val_evaluator.ann_file).parent)
    assert first < later and len(later) == 10


def test_another_process_was_faster(tmp_path, monkeypatch):
    """Between the look at a file and the claim of its name."""
    folder, claim = tmp_path / 'data', Made.claim
    monkeypatch.setattr(Made, 'claim', lambda made, name: (
        name == 'a.json' and (folder / name).write_bytes(b'[1]'), claim(made, name)))
    with Made(folder, tmp_path) as made:
        assert made.write_json('a.json', [1]).read_bytes() == b'[1]'
    monkeypatch.undo()
    # each finds what the others wrote and have not noted yet
    with Made(folder, tmp_path) as first, Made(folder, tmp_path) as second:
        for made, name in ((first, 'maps/a.png'), (second, 'maps/a.png'), (second, 'b.txt'), (first, 'b.txt')):
            made.write(name, b'same')
    with Made(folder, tmp_path) as later:
        assert later.write('maps/a.png', b'new').read_bytes() == b'new'
    (folder / 'b.txt').write_bytes(b'by hand')
    with Made(folder, tmp_path) as later, pytest.raises(OutputError, match='b.txt'):
        later.write('b.txt', b'new')
