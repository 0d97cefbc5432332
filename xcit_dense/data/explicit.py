"""Classes that a user wrote into a config, which must not be replaced, and their colours."""
from mmengine.config import Config

from ..draw.classes import class_colours
from ..text import listed
from .datasets import LOADERS, named_datasets, type_of


def explicit_classes(cfg: Config) -> str:
    """Describe which data sets of a config with ``classes_from_data`` have classes that the config sets itself.

    Classes that an earlier run found and wrote into its dumped config do not count: they have our colours.

    Returns:
        A sentence with the fix; '' if there are none.
    """
    if not cfg.get('classes_from_data'):
        return ''
    written = {f'{key}.metainfo.classes': dataset.metainfo['classes']
               for _, key, dataset in named_datasets(cfg, LOADERS)
               if (dataset.get('metainfo') or {}).get('classes') and not _is_found(dataset.metainfo)}
    if not written:
        return ''
    names = next(iter(written.values()))
    return (f'{listed(written)}: the config sets classes ({names if isinstance(names, str) else listed(names, 3)}), '
            'but classes_from_data = True reads them from the data. Use only one: set classes_from_data=False with '
            '--cfg-options (and num_classes of the heads), or remove metainfo.classes')


def _is_found(metainfo):
    classes, palette = metainfo['classes'], metainfo.get('palette') or ()
    return not isinstance(classes, str) and list(map(tuple, palette)) == class_colours(classes)


def own_colours(cfg: Config) -> dict:
    """Return the colours by name of classes for which the config or the type of a data set has a palette."""
    found = {}
    for *_, dataset in named_datasets(cfg, LOADERS) if not cfg.get('classes_from_data') else ():
        meta = {**getattr(type_of(dataset), 'METAINFO', {}), **(dataset.get('metainfo') or {})}
        names, palette = meta.get('classes') or (), meta.get('palette') or ()
        if not isinstance(names, str) and not isinstance(palette, str) and len(palette) >= len(names):
            found = {**dict(zip(names, class_colours(names, palette), strict=True)), **found}
    return found
