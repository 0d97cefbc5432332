"""No tool overwrites a file that it did not make."""
import json
import shutil
import sys

import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import files_in, run_tool
from xcit_dense._utils.files import RECORD


def filled(text, **paths):
    """The words of a command with paths in the place of names."""
    for name, path in paths.items():
        text = text.replace(name, str(path))
    return text.split()


#: By tool: its arguments, and files that it writes into OUT.
CALLS = dict(
    attention=('DETECTOR DATA/val2017 --out OUT', ('000000000001.png', '000000000003.npz')),
    classify=('CLASSIFIER DATA/val2017 --size 32 --out OUT/x.json', ('x.json', )),
    predict=(f'{TINY_CONFIG} DETECTOR DATA/val2017 --out OUT', ('000000000001.jpg', 'results.json', 'classes.json')),
    predict_seg=(f'{TINY_SEG_CONFIG} SEGMENTOR DATA/val2017 --out OUT', ('labels/000000000002.png', )),
    convert_checkpoint=('DETECTOR OUT/w.pth --to dense', ('w.pth', )),
    plot_curves=('DETECTOR --out OUT/c.png', ('c.png', )),
    check_data=(f'{TINY_CONFIG} --data-root DATA --out OUT', ('findings.json', 'train_dataloader.png')),
    measure=(f'{TINY_CONFIG} --data-root DATA --out OUT/m.json', ('m.json', )),
    benchmark=('--sizes nano_12 --patches 16 --growth --out OUT',
               ('benchmark.json', 'benchmark.md', 'growth_nano_12_p16_training_float32.png')))


@pytest.mark.parametrize('tool', CALLS)
def test_files_of_others_are_not_overwritten(tool, trained, trained_segmentor, classifier, demo_data, tmp_path):
    """But its own are, and those of others where it is asked for."""
    out, (arguments, names) = tmp_path / 'out', CALLS[tool]
    arguments = filled(arguments, DETECTOR=trained[0], SEGMENTOR=trained_segmentor[0], CLASSIFIER=classifier,
                       DATA=demo_data, OUT=out)

    def run(*options, check=True):
        return run_tool(f'{tool.removesuffix("_seg")}.py', *arguments, *options, cwd=tmp_path, check=check)

    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text('mine')
        done = run(check=False)
        assert done.returncode == 1 and name in done.message and '--overwrite' in done.message
        assert list(files_in(out).values()) == [b'mine']
        (out / name).unlink()
    if tool in ('measure', 'benchmark'):
        return  # they take long
    (out / names[0]).write_text('mine')
    run('--overwrite')
    assert (out / names[0]).read_bytes() != b'mine'
    run()
    (out / names[0]).write_text('mine')
    assert run(check=False).returncode == 1 and (out / names[0]).read_bytes() == b'mine'


def test_pictures_of_a_test_overwrite_nothing(trained_segmentor, demo_data, tmp_path):
    """Those that a failed test did not draw are nobody's."""
    data, shown = shutil.copytree(demo_data, tmp_path / 'data'), tmp_path / 'shown'
    images = data / 'images/validation'
    arguments = ('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', data, '--work-dir', tmp_path / 'run',
                 '--cfg-options', 'test_dataloader.batch_size=1', '--show-dir', shown)
    (images / '000000000002.jpg').write_bytes(b'no image')
    done = run_tool(*arguments, check=False)
    assert done.returncode == 1 and '000000000002.jpg' in done.message
    (shown / '000000000003.jpg').write_text('mine')
    shutil.copy(demo_data / 'images/validation/000000000002.jpg', images)
    before = files_in(shown)
    done = run_tool(*arguments, check=False)
    assert done.returncode == 1 and '000000000003.jpg' in done.message and '000000000001.jpg' not in done.message
    assert files_in(shown) == before
    for options in ((), ('--overwrite', )):
        run_tool(*arguments[:-1], tmp_path / 'others', *options)
        assert len(files_in(tmp_path / 'others')) == 4
    run_tool(*arguments, '--overwrite')
    assert b'mine' not in files_in(shown).values()


#: By output: a command that would write it over something that it reads.
OVER_INPUTS = dict(
    config='train WORK/mine.py --data-root DATA --suggest WORK/mine.py',
    base='train WORK/mine.py --data-root DATA --suggest WORK/base.py',
    module='train WORK/mine.py --data-root DATA --suggest WORK/mine_too.py',
    classes=f'train {TINY_SEG_CONFIG} --data-root DATA --suggest DATA/classes.txt',
    weights='train WORK/mine.py --data-root DATA --init-from WORK/own.pth --suggest WORK/own.pth',
    linked_base='train WORK/mine.py --data-root DATA --suggest WORK/link.py',
    measured_config='measure WORK/mine.py --data-root DATA --out WORK/base.py',
    measured_data='measure WORK/mine.py --data-root DATA --out DATA/annotations/instances_train2017.json',
    image='classify WORK/own.pth DATA/val2017/000000000001.jpg --size 32 --out DATA/val2017/000000000001.jpg',
    checkpoint='classify WORK/own.pth DATA/val2017/000000000001.jpg --size 32 --out WORK/own.pth',
    images='test WORK/mine.py DETECTOR --data-root DATA --show-dir DATA/val2017')


@pytest.mark.parametrize('what', OVER_INPUTS)
def test_what_a_command_reads_is_not_even_overwritten_with_overwrite(
        what, trained, classifier, demo_data, tmp_path, monkeypatch):
    shutil.copytree(demo_data, tmp_path / 'data')
    (tmp_path / 'base.py').write_text(f"_base_ = '{TINY_CONFIG}'\n")
    (tmp_path / 'mine.py').write_text("_base_ = './base.py'\ncustom_imports = dict(imports=['mine_too'])\n")
    (tmp_path / 'mine_too.py').write_text('')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'mine_too', raising=False)
    (tmp_path / 'link.py').symlink_to('base.py')
    shutil.copy(classifier, tmp_path)
    before = files_in(tmp_path)
    tool, *arguments = filled(OVER_INPUTS[what], DETECTOR=trained[0], DATA=tmp_path / 'data', WORK=tmp_path)
    for options in ([], ['--overwrite']):
        done = run_tool(f'{tool}.py', *arguments, *options, cwd=tmp_path, check=False)
        assert done.returncode == 1 and 'this command reads' in done.message and '--overwrite' not in done.message
        assert files_in(tmp_path).items() >= before.items()


def test_demo_data_are_made_in_no_folder_with_other_data(demo_data, tmp_path):
    """COCO's images have names of twelve digits too."""
    coco, own, killed = (tmp_path / name for name in ('coco', 'own', 'killed'))

    def assert_refused(folder, *words, train=1):
        before = files_in(folder)
        done = run_tool('make_demo_data.py', folder, '--train', train, '--val', 1, check=False)
        assert done.returncode == 1 and all(word in done.message for word in words) and files_in(folder) == before

    shutil.copytree(demo_data, coco)
    (coco / RECORD).unlink()  # as if it were COCO
    assert_refused(coco, 'new or empty')
    run_tool('make_demo_data.py', own, '--train', 2, '--val', 1, '--size', 48)
    shutil.copy(coco / 'train2017/000000000002.jpg', own / 'train2017')
    (own / 'classes.txt').write_text('my\nwords\n')
    for train in (2, 1):  # a file that was changed is nobody's to overwrite, nor to delete
        assert_refused(own, 'changed since', 'classes.txt', train=train)
    shutil.copytree(own, killed)
    (killed / RECORD).unlink()  # before it could note its files
    assert_refused(killed, 'did not write or did not finish')
    (own / 'classes.txt').unlink()
    run_tool('make_demo_data.py', own, '--train', 1, '--val', 1, '--size', 48)
    assert (own / 'train2017/000000000002.jpg').read_bytes() == (coco / 'train2017/000000000002.jpg').read_bytes()


def test_a_folder_predicted_twice_is_predicted_without_its_pictures(trained, demo_data, tmp_path):
    names, out = {'000000000001.jpg', '000000000002.jpg'}, tmp_path / 'images/out'
    (tmp_path / 'images').mkdir()
    for name in names:
        shutil.copy(demo_data / 'val2017' / name, tmp_path / 'images')

    def predict(source=tmp_path / 'images', to=out):
        return run_tool('predict.py', TINY_CONFIG, trained[0], source, '--out', to).stdout

    for left_out in (False, True):
        said = predict()
        assert ': 2 pictures' in said and ('skipped 2 pictures' in said) == left_out
    assert '1 picture ' in predict(out / '000000000001.jpg', tmp_path / 'one')  # named by itself it is predicted
    shutil.copy(demo_data / 'val2017/000000000001.jpg', out / 'mine.jpg')  # this one is an image
    assert ': 3 pictures' in predict(to=tmp_path / 'images/other')
    assert ': 3 pictures' in predict()
    shutil.copytree(tmp_path / 'images', tmp_path / 'copy')  # of other times
    assert ': 3 pictures' in predict(tmp_path / 'copy', tmp_path / 'two')
    results = json.loads((tmp_path / 'images/other/results.json').read_text())
    assert {record['file_name'] for record in results} <= {'out/mine.jpg', *names}
