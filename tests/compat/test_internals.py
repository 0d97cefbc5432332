"""What is replaced inside the frameworks."""
import pytest
from mmengine.config import Config, config

from xcit_dense.compat.internals import format_configs_once


@pytest.mark.skipif(not hasattr(config, 'FormatCode'), reason='the fork of mmengine looks it up in yapf')
def test_the_text_of_a_config_is_formatted_once(monkeypatch):
    texts = []
    monkeypatch.setattr(config, 'FormatCode', lambda text, **style: (texts.append(text) or text, True))
    format_configs_once()
    cfg = Config(dict(lr=1))
    assert cfg.pretty_text == cfg.pretty_text and 'lr=1' in cfg.pretty_text and len(texts) == 1
    cfg.lr = 2
    assert 'lr=2' in cfg.pretty_text and len(texts) == 2
