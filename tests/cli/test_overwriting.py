"""No tool overwrites a file that it did not make."""
import json
import shutil

import pytest
import torch

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import XCiTClassifier
from xcit_dense.files import RECORD


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture(scope='module')
def classifier(tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'own.pth'
    torch.save(XCiTClassifier('nano_12_p16', num_classes=4, norm_cfg=dict(type='BN')).state_dict(), path)
    return path


@pytest.fixture
def calls(trained, trained_segmentor, classifier, demo_data, tmp_path):
    """By tool: its arguments, and files that it writes into ``out``."""
    out, images = tmp_path / 'out', demo_data / 'val2017'
    return dict(
        attention=((trained[0], images, '--out', out), ('000000000001.png', '000000000003.npz')),
        classify=((classifier, images, '--size', 32, '--out', out / 'x.json'), ('x.json', )),
        predict=((TINY_CONFIG, trained[0], images, '--out', out), ('000000000001.jpg', 'results.json', 'classes.json')),
        predict_seg=((TINY_SEG_CONFIG, trained_segmentor[0], images, '--out', out), ('labels/000000000002.png', )),
        convert_checkpoint=((trained[0], out / 'w.pth', '--to', 'dense'), ('w.pth', )),
        plot_curves=((trained[0], '--out', out / 'c.png'), ('c.png', )),
        check_data=((TINY_CONFIG, '--data-root', demo_data, '--out', out), ('findings.json', 'train_dataloader.png')),
        measure=((TINY_CONFIG, '--data-root', demo_data, '--out', out / 'm.json'), ('m.json', )),
        gpu_report=(('--device', 'cpu', '--tiny', '--stages', 'right', '--checks', 'golden', '--out', out),
                    ('gpu_report.json', 'gpu_report.md')),
        benchmark=(('--sizes', 'nano_12', '--patches', 16, '--growth', '--out', out),
                   ('benchmark.json', 'benchmark.md', 'growth_nano_12_p16_training_float32.png')))


@pytest.mark.parametrize('tool', ('classify', 'predict', 'predict_seg', 'attention', 'convert_checkpoint',
                                  'plot_curves', 'check_data', 'measure', 'benchmark', 'gpu_report'))
def test_files_of_others_are_not_overwritten(tool, calls, tmp_path):
    arguments, names = calls[tool]
    for name in names:
        path = tmp_path / 'out' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('mine')
        done = run_tool(f'{tool.removesuffix("_seg")}.py', *arguments, check=False, cwd=tmp_path)
        assert done.returncode == 1 and name in done.message and '--overwrite' in done.message
        assert tree(tmp_path / 'out').values() and set(tree(tmp_path / 'out').values()) == {b'mine'}
        path.unlink()


@pytest.mark.parametrize('tool', ('classify', 'predict', 'predict_seg', 'attention', 'convert_checkpoint',
                                  'plot_curves', 'check_data'))
def test_own_files_are_written_again_and_others_where_it_is_asked_for(tool, calls, tmp_path):
    arguments, names = calls[tool]
    name = f'{tool.removesuffix("_seg")}.py'
    run_tool(name, *arguments, cwd=tmp_path)
    run_tool(name, *arguments, cwd=tmp_path)
    (tmp_path / 'out' / names[0]).write_text('mine')
    assert run_tool(name, *arguments, check=False, cwd=tmp_path).returncode == 1
    run_tool(name, *arguments, '--overwrite', cwd=tmp_path)
    assert (tmp_path / 'out' / names[0]).read_bytes() != b'mine'


@pytest.mark.parametrize('task', ('det', 'seg'))
def test_pictures_of_a_test_overwrite_nothing(task, trained, trained_segmentor, demo_data, tmp_path):
    config, work_dir = (TINY_CONFIG, trained[0]) if task == 'det' else (TINY_SEG_CONFIG, trained_segmentor[0])
    images = tmp_path / 'images'
    shutil.copytree(demo_data / ('val2017' if task == 'det' else 'images/validation'), images)
    arguments = (config, work_dir, '--data-root', demo_data, '--work-dir', tmp_path / 'run', '--show-dir')
    before = tree(images)
    done = run_tool('test.py', *arguments, images, check=False)  # of the same names
    assert done.returncode == 1 and '3 files' in done.message and '--overwrite' in done.message
    assert tree(images) == before
    for _ in range(2):
        run_tool('test.py', *arguments, tmp_path / 'shown')
    run_tool('test.py', *arguments, images, '--overwrite')
    own, shown = tree(images), tree(tmp_path / 'shown')
    assert len(own) == len(shown) == 4 and not set(own.values()) & set(before.values())


def test_pictures_that_a_failed_test_did_not_draw_are_nobodys(trained, demo_data, tmp_path):
    data = tmp_path / 'data'
    shutil.copytree(demo_data, data)
    (data / 'val2017/000000000002.jpg').write_bytes(b'no image')
    arguments = (TINY_CONFIG, trained[0], '--data-root', data, '--work-dir', tmp_path / 'run', '--show-dir',
                 tmp_path / 'shown', '--cfg-options', 'test_dataloader.batch_size=1')
    done = run_tool('test.py', *arguments, check=False)
    assert done.returncode == 1 and '000000000002.jpg' in done.message
    (tmp_path / 'shown/000000000003.jpg').write_text('mine')
    shutil.copy(demo_data / 'val2017/000000000002.jpg', data / 'val2017')
    done = run_tool('test.py', *arguments, check=False)
    assert done.returncode == 1 and '000000000003.jpg' in done.message and '000000000001.jpg' not in done.message
    assert (tmp_path / 'shown/000000000003.jpg').read_text() == 'mine'


def test_demo_data_are_made_in_no_folder_with_other_data(demo_data, tmp_path):
    """COCO's images have names of twelve digits too."""
    coco = tmp_path / 'coco'
    shutil.copytree(demo_data, coco)
    (coco / RECORD).unlink()  # as if it were COCO
    before = tree(coco)
    for _ in range(2):
        done = run_tool('make_demo_data.py', coco, '--train', 1, '--val', 1, check=False)
        assert done.returncode == 1 and 'new or empty' in done.message and tree(coco) == before
    run_tool('make_demo_data.py', tmp_path / 'own', '--train', 2, '--val', 1, '--size', 48)
    shutil.copy(coco / 'train2017/000000000002.jpg', tmp_path / 'own/train2017/000000000002.jpg')
    before = tree(tmp_path / 'own')
    (tmp_path / 'own/classes.txt').write_text('my\nwords\n')
    for train in (2, 1):  # a file that was changed is nobody's to overwrite, nor to delete
        done = run_tool('make_demo_data.py', tmp_path / 'own', '--train', train, '--val', 1, check=False)
        assert done.returncode == 1 and 'changed since' in done.message and 'classes.txt' in done.message
    killed = tmp_path / 'killed'  # before it could note its files
    shutil.copytree(tmp_path / 'own', killed)
    (killed / RECORD).unlink()
    left = tree(killed)
    done = run_tool('make_demo_data.py', killed, '--train', 1, '--val', 1, check=False)
    assert done.returncode == 1 and 'did not write or did not finish' in done.message and tree(killed) == left
    (tmp_path / 'own/classes.txt').unlink()
    run_tool('make_demo_data.py', tmp_path / 'own', '--train', 1, '--val', 1, '--size', 48)
    assert (tmp_path / 'own/train2017/000000000002.jpg').read_bytes() == before[
        (tmp_path / 'own/train2017/000000000002.jpg').relative_to(tmp_path / 'own')]


def test_a_folder_predicted_twice_is_predicted_without_its_pictures(trained, demo_data, tmp_path):
    shutil.copytree(demo_data / 'val2017', tmp_path / 'images')
    out = tmp_path / 'images/out'
    arguments = TINY_CONFIG, trained[0], tmp_path / 'images', '--out', out
    for left_out in (False, True, True):
        said = run_tool('predict.py', *arguments).stdout
        assert '\n3 pictures' in said and ('skipped 3 pictures' in said) == left_out
    one = out / '000000000001.jpg'  # named by itself it is predicted
    assert '1 picture ' in run_tool('predict.py', *arguments[:2], one, '--out', tmp_path / 'one').stdout
    shutil.copy(demo_data / 'val2017/000000000001.jpg', out / 'mine.jpg')  # this one is an image
    assert '4 pictures' in run_tool('predict.py', *arguments).stdout
    other = tmp_path / 'images/other'
    assert '4 pictures' in run_tool('predict.py', *arguments[:-1], other).stdout
    shutil.copytree(tmp_path / 'images', tmp_path / 'copy')  # of other times
    assert '\n4 pictures' in run_tool('predict.py', *arguments[:2], tmp_path / 'copy', '--out', tmp_path / 'two').stdout
    assert {record['file_name'] for record in json.loads((other / 'results.json').read_text())} <= {
        'out/mine.jpg', *(path.name for path in (demo_data / 'val2017').iterdir())}


def test_a_config_in_the_work_dir_is_not_overwritten_by_its_dump(demo_data, tmp_path):
    config = tmp_path / 'my.py'
    config.write_text(f"# My own words.\n_base_ = '{TINY_CONFIG}'\n")
    arguments = 'train.py', config, '--data-root', demo_data, '--no-pretrained', '--work-dir', tmp_path, \
        '--cfg-options', 'train_cfg.max_epochs=1'
    run_tool(*arguments)
    assert config.read_text().startswith('# My own words.')
    assert "type='XCiT'" in next(tmp_path.glob('*/my.py')).read_text()
