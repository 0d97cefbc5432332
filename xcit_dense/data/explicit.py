"""Classes that somebody wrote into a config, which nothing may take the place of."""
import colorsys

from mmengine.config import Config

from ..text import listed
from .datasets import LOADERS, named_datasets


def palette_of(classes):
    """Return an RGB colour for each class; neighbours are far apart in hue, the background is grey."""
    hues = [(i * 0.618034) % 1 for i in range(len(classes))]
    colours = [tuple(round(c * 255) for c in colorsys.hsv_to_rgb(hue, 0.85, 0.95)) for hue in hues]
    return [(90, 90, 90) if name == 'background' else colour for name, colour in zip(classes, colours, strict=True)]


def explicit_classes(cfg: Config) -> str:
    """Say which data sets of a config with ``classes_from_data`` have classes that the config names itself.

    Those that an earlier run found, and which its dumped config has, are none: they have our colours.

    Returns:
        It in words, with what to drop; '' where there are none.
    """
    if not cfg.get('classes_from_data'):
        return ''
    written = {f'{key}.metainfo.classes': dataset.metainfo['classes']
               for _, key, dataset in named_datasets(cfg, LOADERS)
               if (dataset.get('metainfo') or {}).get('classes') and not _is_found(dataset.metainfo)}
    if not written:
        return ''
    names = next(iter(written.values()))
    return (f'{listed(written)}: the config names classes ({names if isinstance(names, str) else listed(names, 3)}), '
            'and classes_from_data = True takes them from the data. Drop one: set classes_from_data=False with '
            '--cfg-options (and num_classes of the heads), or leave metainfo.classes out')


def _is_found(metainfo):
    classes, palette = metainfo['classes'], metainfo.get('palette') or ()
    return not isinstance(classes, str) and list(map(tuple, palette)) == palette_of(classes)
