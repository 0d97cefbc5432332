"""Findings in configs of the frameworks, for a separate process, which cannot import a test module by name."""
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

#: Parts of a model that identify its family.
_PARTS = ('type', 'neck', 'rpn_head', 'bbox_head', 'mask_head', 'roi_head', 'decode_head', 'auxiliary_head',
          'panoptic_head', 'bbox_roi_extractor')
#: What was found in models, by their text.
_CHECKED = {}


def stock(framework, name=''):
    """Return a folder or file of the configs of a framework; the forks bring none."""
    spec = find_spec(framework)
    return Path(spec.submodule_search_locations[0] if spec else '', '.mim/configs', name)


def look_at(path):
    """Return errors and hints of a config, those of the config that its run would dump, and the family of its model."""
    from mmengine.config import Config
    try:
        cfg = Config.fromfile(path)
    except Exception as error:
        return [f'{type(error).__name__}: {error}'], [], [], None
    return *_check(cfg), _dumped(cfg), _family(cfg.get('model'))


def look_with_xcit(path):
    """Return the errors and hints of a config with XCiT as its backbone, or None if that does not fit."""
    from mmengine.config import Config
    cfg = Config.fromfile(path)
    return _check(cfg) if _put_xcit(cfg.model) else None


def _check(cfg):
    from xcit_dense.config import check
    found = []
    check.tell = lambda lines, action: found.extend(lines)
    check.check_model = _check_model
    check.check_config(cfg)
    return [str(line) for line in found if not isinstance(line, check.Hint)], [
        str(line) for line in found if isinstance(line, check.Hint)]


def _check_model(node):
    """Check a model; one that other configs have too is checked once."""
    from xcit_dense.config.check.trial import check_model
    text = repr(node)
    if text not in _CHECKED:
        _CHECKED[text] = check_model(node)
    return _CHECKED[text]


def _dumped(cfg):
    """Return the findings on top-level names that are in the dump of a config, but not in the config."""
    from mmengine.config import Config, config

    from xcit_dense.config.check.top_level import check_top_level
    config.FormatCode = lambda text, **style: (text, True)  # yapf takes a second for each config
    with TemporaryDirectory() as folder:
        file = Path(folder, 'dumped.py')
        cfg.dump(file)
        try:
            again = Config.fromfile(file, import_custom_modules=False)
        except SyntaxError:
            return []  # keys that are not identifiers: mmengine cannot read them either
    lines, known = check_top_level(again), {line.partition(' = ')[0] for line in check_top_level(cfg)}
    return [line for line in lines if line.partition(' = ')[0] not in known] + (
        [] if again._cfg_dict == cfg._cfg_dict else ['it holds something else'])


def _family(node):
    """Return the types of a model and its parts, which can be compared."""
    if isinstance(node, (list, tuple)):
        return tuple(map(_family, node))
    return tuple(repr(_family(node[key]) if key != 'type' else node[key]) for key in _PARTS if key in node) \
        if isinstance(node, dict) else None


def _put_xcit(model):
    """Insert XCiT if neck or heads accept a list of channels; return whether they do."""
    neck, heads = model.get('neck'), [model.get(name) or [] for name in ('decode_head', 'auxiliary_head')]
    heads = [head for part in heads for head in (part if isinstance(part, (list, tuple)) else [part])]
    if isinstance(neck, dict) and isinstance(neck.get('in_channels'), (list, tuple)) and len(neck.in_channels) <= 4:
        levels, takers = len(neck.in_channels), [neck]
    elif not neck and heads and all('in_channels' in head for head in heads):
        levels, takers = 4, heads
    else:
        return False
    model.backbone = dict(type='XCiT', arch='nano_12_p16', out_indices=(3, 5, 7, 11)[-levels:],
                          out_strides=(4, 8, 16, 32)[-levels:])
    model.pop('pretrained', None)  # a key of the backbone
    for part in takers:
        several = isinstance(part.in_channels, (list, tuple))
        part.in_channels = type(part.in_channels)([128] * len(part.in_channels)) if several else 128
    return True
