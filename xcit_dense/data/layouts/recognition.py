"""Points the data sets and metrics of a config to the data in a user's folder."""
import copy
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from ..._utils.processes import is_first_of_any_launcher
from ...errors import ConfigError, DataError
from ..datasets import LOADERS, datasets, is_elsewhere
from ..evaluators import annotation_files, evaluators
from .classification import find_class_folders, find_unlabelled, seen_for_classification
from .derived import KeptError, Made
from .detection import find_detection, seen_for_detection
from .layout import DataOptions, Layout, Part, below, describe
from .segmentation import find_segmentation, seen_for_segmentation

#: By the way in which a data set lists its images: the function that recognises a folder for it, and the keys of its
#: images and annotations.
_KINDS = dict(
    CocoDataset=(find_detection, 'img', None),
    CustomDataset=(find_class_folders, 'img_path', None),
    UnlabelledImages=(find_unlabelled, 'img_path', None),
    BaseSegDataset=(find_segmentation, 'img_path', 'seg_map_path'),
    ImageFolderDataset=(find_segmentation, 'img_path', 'seg_map_path'))
#: By that function: the function that describes such data in a folder, and the configs that can read it.
_CONFIGS = {
    find_detection: (seen_for_detection,
                     'maskrcnn_xcit_s12_p16_custom (masks) or fasterrcnn_xcit_s12_p16_custom (boxes)'),
    find_segmentation: (seen_for_segmentation, 'semfpn_xcit_s12_p16_custom'),
    find_class_folders: (seen_for_classification, 'xcit_s12_p16_custom')}
_NAMES = dict(zip(('train', 'val', 'test'), LOADERS, strict=True))


def place_data(cfg: Config, root, options: DataOptions, folder: Path, keep: bool = False):
    """Point the data sets and metrics of a config to the data in a folder, if it is not where they expect it.

    Args:
        cfg: The config, whose data root is ``root`` already; it is changed.
        root: The folder.
        options: The user's options about the data.
        folder: The folder to write into: converted annotations, and which images are held out for validation.
            Nothing is written into the data.
        keep: Whether the files of a training in that folder stay as they are, as for a test. If the data or the options
            are others now, a folder in it is used.

    Raises:
        ConfigError: An option does not work with this config.
        DataError: The data is not recognised, is for other models, or can be read in several ways; the message lists
            what was found and the options to use.
    """
    members = {name: datasets(cfg, [loader]) for name, loader in _NAMES.items()}
    used = [dataset for part in members.values() for dataset in part]
    kinds = {_KINDS.get(dataset.reader) for dataset in used}
    why = ('the config has data sets of unknown or different kinds' if None in kinds or len(kinds) != 1 else
           'a loader of the config has several data sets' if any(len(part) > 1 for part in members.values()) else
           'the data is not on a disk' if any(map(is_elsewhere, used)) else '')
    if why:
        if options.given:
            raise ConfigError(f'{", ".join(options.given)} cannot be used: {why}. Set its data with --cfg-options')
        return
    root, (find, images, maps) = Path(root).expanduser().absolute(), kinds.pop()
    if not options.given and find is not find_unlabelled and _is_in_place(used):
        layout = Layout('layout of the config', root, {
            name: Part(part[0].folder(images), part[0].folder(maps) if maps else
                       part[0].ann_file if part[0].get('ann_file') else None)
            for name, part in members.items() if part and (maps is None or part[0].prefixes.get(maps))})
    else:
        folder = Path(folder).absolute()
        try:
            layout = find(cfg, root, options, Made(folder, root, keep))
        except KeptError:
            layout = find(cfg, root, options, Made(folder, root, aside=True))
        if layout is None:
            _reject_other(find, root)
            return
        _point(cfg, layout, images, maps)
    if is_first_of_any_launcher():
        print_log(f'\n{describe(layout)}', logger='current')


def _reject_other(find, root):
    """Raise an error if a folder only has data for other models; the data check reports what is missing."""
    seen = {kind: words for kind, (look, _) in _CONFIGS.items() if root.is_dir() and (words := look(root))}
    if seen and find in _CONFIGS and find not in seen:
        words = '; '.join(f'{words} (use {_CONFIGS[kind][1]})' for kind, words in seen.items())
        raise DataError(f'{root} has no data that this config can read. It has {words}')


def _is_in_place(used):
    """Whether all paths of the data sets exist; missing files of the metrics are reported later."""
    return all(path.exists() for dataset in used for path in (
        *([dataset.ann_file] if dataset.get('ann_file') else []),
        *(dataset.folder(key) for key in dataset.prefixes if dataset.prefixes[key])))


def _point(cfg, layout, images, maps):
    """Make the data sets and metrics of a config read the parts of a layout."""
    for name, loader in _NAMES.items():
        part = layout.parts.get(name) or (layout.parts.get('val') if name == 'test' else None)
        if part is None or not cfg.get(loader):
            continue
        cfg[loader] = copy.deepcopy(cfg[loader])  # test and validation may share one
        dataset = datasets(cfg, [loader])[0]
        annotations, before = below(part.annotations, layout.root) if part.annotations else '', dataset.ann_file
        dataset['data_root'] = str(layout.root)
        prefix = {images: below(part.images, layout.root), **({maps: annotations} if maps else {})}
        dataset['data_prefix'] = dict(dataset.prefixes, **prefix)
        dataset.update(part.dataset, **({} if maps else dict(ann_file=annotations)))
        evaluator = loader.replace('dataloader', 'evaluator')
        if annotations and not maps and name != 'train' and cfg.get(evaluator):
            cfg[evaluator] = copy.deepcopy(cfg[evaluator])
            # another existing file is the user's own
            read = [key for key, file in annotation_files(cfg, [loader])
                    if file.absolute() == before or not file.exists()]
            for key, metric in evaluators(cfg, [loader]):
                if key in read:
                    metric.ann_file = str(part.annotations)
