"""Configs by name and by file."""
from pathlib import Path

import pytest

from helpers.paths import MAIN_CONFIG, ROOT
from helpers.recipes import DENSE, LOADABLE
from xcit_dense import get_config
from xcit_dense.config.catalog import configs_folder, find_config, list_models
from xcit_dense.errors import ConfigError


def test_configs_are_found_by_path_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = MAIN_CONFIG.stem
    assert configs_folder() == ROOT / 'configs' and name in list_models() == sorted(list_models())
    for text in (name, f'{name}.py', f'configs/{name}.py', MAIN_CONFIG, str(MAIN_CONFIG)):
        assert find_config(text) == MAIN_CONFIG
    (tmp_path / f'{name}.py').write_text('')
    assert find_config(f'{name}.py') == Path(f'{name}.py')  # a file goes before a name
    for text in (f'elsewhere/{name}.py', f'{name[:-1]}'):
        with pytest.raises(ConfigError, match=f'did you mean .*{name}'):
            find_config(text)
    (tmp_path / 'my_own_model.py').write_text('')
    with pytest.raises(ConfigError, match='did you mean my_own_model'):
        find_config('my_own_modle.py')
    with pytest.raises(ConfigError, match='list_models'):
        find_config('zzz')
    (tmp_path / 'model.onnx').touch()
    with pytest.raises(ConfigError, match=r'model\.onnx is a model file.*CONFIG comes first'):
        find_config('model.onnx')


def test_configs_have_names():
    assert 'maskrcnn_xcit_s12_p8_coco' in list_models() and 'semfpn_xcit_l24_p16_ade20k' in list_models()
    cfg = get_config('maskrcnn_xcit_s12_p8_coco', pretrained=False)
    assert cfg.model.backbone.arch == 'small_12_p8' and cfg.model.backbone.init_cfg is None
    for name in LOADABLE:
        assert get_config(name).model.backbone.type == ('XCiT' if name in DENSE else 'XCiTClassifier')
    with pytest.raises(ConfigError, match='list_models'):
        get_config('yolo')


def test_the_readme_counts_the_configs():
    assert f'Six of {len(list_models())} configs' in (ROOT / 'README.md').read_text()
