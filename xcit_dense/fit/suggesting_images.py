"""Changes that give the images of a config another size or augmentation, in the form of a config file."""
from ..config.check.keys import value_at as at
from ..data.datasets import LOADERS, named_datasets
from ..errors import ConfigError
from .writing import Change, Code


def write_images(own, cfg, why: str) -> list:
    """Return the changes of everything that images pass through.

    Args:
        own: The config without the changes.
        cfg: The config with the changes.
        why: The reason.

    Raises:
        ConfigError: A loader has several data sets.
    """
    names, uses = {}, []
    for loader in LOADERS:
        usual = 'train_pipeline' if loader == LOADERS[0] else 'test_pipeline'
        for _, key, dataset in named_datasets(cfg, [loader]):
            if 'datasets.' in key or not dataset.get('pipeline'):
                raise ConfigError(f'--suggest cannot change the images of {key}: it supports only loaders with one '
                                  'data set')
            uses += _uses(own, cfg, key, f'{loader}.dataset',
                          lambda node, usual=usual: _name(names, node['pipeline'], usual))
    for key in ('size', 'batch_augments'):
        uses.append(Change(f'model.data_preprocessor.{key}', at(cfg, f'model.data_preprocessor.{key}')))
    for key in ('crop_size', 'stride'):
        uses.append(Change(f'model.test_cfg.{key}', at(cfg, f'model.test_cfg.{key}')))
    # a pipeline must be defined before it is used
    pipelines = [Change(name, value, '' if place else why) for place, (name, value) in enumerate(names.items())]
    return [*pipelines, *(change for change in uses if change.value is not None)]


def _name(names, pipeline, usual):
    """Return the name of the variable for a pipeline; loaders may share one."""
    name = next((name for name, other in names.items() if other == pipeline), None)
    if name is None:
        name = usual if usual not in names else f'{usual}_{len(names)}'
        names[name] = pipeline
    return Code(name)


def _uses(own, cfg, key, whole, name_of):
    """Return the changes that set the pipelines of a data set, and of a data set around it that mixes its images.

    Args:
        own: The config without the changes.
        cfg: The config with the changes.
        key: The key of the data set.
        whole: The key of the outermost data set.
        name_of: Returns the variable for a node with a pipeline.
    """
    inner, changes = name_of(at(cfg, key)), []
    outer = key
    while outer != whole:
        outer = outer.removesuffix('.dataset')
        if not at(cfg, outer).get('pipeline'):
            continue
        if outer == whole and at(own, whole).get('type') != at(cfg, whole)['type']:  # a new data set around it
            return [Change(whole, dict(_delete_=True, type=at(cfg, whole)['type'], pipeline=name_of(at(cfg, whole)),
                                       dataset=Code(_inside(whole, key, inner))))]
        changes.append(Change(f'{outer}.pipeline', name_of(at(cfg, outer))))
    return [Change(f'{key}.pipeline', inner), *changes]


def _inside(whole, key, pipeline):
    """Return code for the data set of the base with another pipeline in the data set at a key."""
    path = key.replace(f'{whole}.dataset', whole, 1)
    code = f'dict(_base_.{path}, pipeline={pipeline})'
    while path != whole:
        path = path.removesuffix('.dataset')
        code = f'dict(_base_.{path}, dataset={code})'
    return code
