"""`train --suggest`: a config on stdout or in a file, which train takes; nothing is trained."""
import pytest

from helpers.boxes import config_for
from helpers.nuclei import make_nuclei
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.cli.train import main


@pytest.fixture(scope='module')
def nuclei(tmp_path_factory):
    return make_nuclei(tmp_path_factory.mktemp('nuclei') / 'data', 4, 1, (170, 200), 110)


def test_the_config_alone_goes_to_stdout_and_train_takes_it(nuclei, tmp_path, capfd):
    """The look at the data stands at the start of a run, and check_data prints the same."""
    main([str(TINY_CONFIG), '--data-root', str(nuclei), '--work-dir', str(tmp_path / 'run'), '--suggest'])
    text = capfd.readouterr().out
    assert text.startswith('# Suggested') and f'_base_ = {str(TINY_CONFIG)!r}' in text and 'max_per_img' in text
    assert not (tmp_path / 'run').exists()
    path = tmp_path / 'suggested.py'
    path.write_text(text)
    assert config_for(nuclei, path).model.test_cfg.rcnn.max_per_img > 50
    options = '--data-root', nuclei, '--cfg-options', 'train_cfg.max_epochs=1', 'param_scheduler.1.end=1', \
        'train_cfg.val_interval=5'
    fitting, said = (run_tool('train.py', config, '--work-dir', tmp_path / 'run', '--overwrite', *options).stdout
                     for config in (path, TINY_CONFIG))
    assert 'tokens' in fitting and 'anchors do not fit' not in fitting
    assert 'may not fit the data' in said and 'max_per_img' in said
    block = said.partition('\nversions ')[2]
    assert '\nfitted ' in block and '\nobjects ' in block and '\nanchors ' in block
    checked = run_tool('check_data.py', TINY_CONFIG, '--out', tmp_path / 'checked', *options).stdout
    lines = checked.partition('\nfitted: ')[2].partition('\n0 errors')[0]
    lines = lines.replace('\nobjects: ', '\n').replace('\nanchors: ', '\n')
    assert 'may not fit the data' in lines and all(line in said for line in lines.splitlines())


def test_a_file_that_is_there_stays(nuclei, tmp_path, call_tool):
    arguments = 'train.py', TINY_CONFIG, '--data-root', nuclei, '--work-dir', tmp_path / 'run', '--suggest'
    path = tmp_path / 'new/fit.py'
    code, said = call_tool(*arguments, path)
    assert code == 0 and str(path) in said and path.read_text().startswith('# Suggested')
    path.write_text('mine')
    code, said = call_tool(*arguments, path)
    assert code == 1 and '--overwrite' in said and path.read_text() == 'mine'
    assert call_tool(*arguments, path, '--overwrite')[0] == 0 and path.read_text() != 'mine'
    code, said = call_tool(*arguments, path.parent, '--overwrite')
    assert code == 1 and 'it is a folder' in said


def test_what_cannot_be_suggested(demo_data, class_folders, call_tool):
    for options in (['--resume'], ['--minutes', '3']):
        code, said = call_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--suggest', '-', *options)
        assert code == 1 and f'omit --suggest or {options[0]}' in said
    pytest.importorskip('mmpretrain')
    code, said = call_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--suggest')
    assert code == 1 and 'detectors and segmentors' in said
