"""From the folder that a user names to the data sets and metrics of a config."""
import copy
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from ...errors import ConfigError, DataError
from ...processes import is_first_of_any_launcher
from ..datasets import LOADERS, ann_file_of, datasets, folder_of, is_elsewhere, prefixes_of, reader_of
from ..evaluators import annotation_files, evaluators
from .class_folders import find_class_folders
from .detection import find_detection, seen_for_detection
from .layout import Layout, Part, below, describe
from .options import DataOptions
from .segmentation import find_segmentation, seen_for_segmentation

#: By the way in which a data set lists its images: what recognises a folder for it, and the key of its images and of
#: its annotations.
_KINDS = dict(
    CocoDataset=(find_detection, 'img', None),
    CustomDataset=(find_class_folders, 'img_path', None),
    BaseSegDataset=(find_segmentation, 'img_path', 'seg_map_path'),
    ImageFolderDataset=(find_segmentation, 'img_path', 'seg_map_path'))
#: By what recognises a folder: what tells in words what it has of that kind, and which configs take it.
_CONFIGS = {
    find_detection: (seen_for_detection,
                     'maskrcnn_xcit_s12_p16_custom (masks) or fasterrcnn_xcit_s12_p16_custom (boxes)'),
    find_segmentation: (seen_for_segmentation, 'semfpn_xcit_s12_p16_custom')}
_NAMES = dict(zip(('train', 'val', 'test'), LOADERS, strict=True))


def place_data(cfg: Config, root, options: DataOptions, folder: Path):
    """Point the data sets and metrics of a config to what lies in a folder, where it lies elsewhere than they say.

    Args:
        cfg: The config, whose data root is ``root`` already; it is changed.
        root: The folder.
        options: What the user says beside it.
        folder: Gets what has to be written: converted annotations, and which images are held out for validation.
            Nothing is written into the data.

    Raises:
        ConfigError: An option is of no use for this config.
        DataError: What is there is not recognised, is for other models, or may be meant in several ways; it lists what
            was seen, and the options that say what is meant.
    """
    members = {name: datasets(cfg, [loader]) for name, loader in _NAMES.items()}
    used = [dataset for part in members.values() for dataset in part]
    kinds = {_KINDS.get(reader_of(dataset)) for dataset in used}
    why = ('the config has data sets of its own kind' if None in kinds or len(kinds) != 1 else
           'a loader of the config has several data sets' if any(len(part) > 1 for part in members.values()) else
           'the data does not lie on a disk' if any(_is_elsewhere(dataset) for dataset in used) else '')
    if why:
        if options.given:
            raise ConfigError(f'{", ".join(options.given)}: {why}; set its data with --cfg-options')
        return
    root, (find, images, maps) = Path(root).expanduser().absolute(), kinds.pop()
    if not options.given and _is_in_place(used):
        layout = Layout('as the config says', root, {
            name: Part(folder_of(part[0], images), folder_of(part[0], maps) if maps else
                       ann_file_of(part[0]) if part[0].get('ann_file') else None)
            for name, part in members.items() if part and (maps is None or prefixes_of(part[0]).get(maps))})
    else:
        layout = find(cfg, root, options, Path(folder).absolute())
        if layout is None:
            _refuse_other(find, root)
            return
        _point(cfg, layout, images, maps)
    if is_first_of_any_launcher():
        print_log(f'\n{describe(layout)}', logger='current')


def _refuse_other(find, root):
    """Stop at a folder that has data for other models and none for these; what is missing the check of it tells."""
    seen = {kind: words for kind, (look, _) in _CONFIGS.items() if root.is_dir() and (words := look(root))}
    if seen and find not in seen:
        words = '; '.join(f'{words}, which {_CONFIGS[kind][1]} take' for kind, words in seen.items())
        raise DataError(f'{root} has nothing that this config can read. It has {words}')


def _is_elsewhere(dataset):
    return is_elsewhere(dataset, dataset.get('ann_file') or '', *prefixes_of(dataset).values())


def _is_in_place(used):
    """Whether all that the data sets name is there; what the metrics lack is told with the rest that is missing."""
    return all(path.exists() for dataset in used for path in (
        *([ann_file_of(dataset)] if dataset.get('ann_file') else []),
        *(folder_of(dataset, key) for key in prefixes_of(dataset) if prefixes_of(dataset)[key])))


def _point(cfg, layout, images, maps):
    """Make the data sets and metrics of a config read the parts of a layout."""
    for name, loader in _NAMES.items():
        part = layout.parts.get(name) or (layout.parts.get('val') if name == 'test' else None)
        if part is None or not cfg.get(loader):
            continue
        cfg[loader] = copy.deepcopy(cfg[loader])  # that of the test may be that of the validation
        dataset = datasets(cfg, [loader])[0]
        annotations, before = below(part.annotations, layout.root) if part.annotations else '', ann_file_of(dataset)
        dataset.data_root = str(layout.root)
        prefix = {images: below(part.images, layout.root), **({maps: annotations} if maps else {})}
        dataset.data_prefix = dict(prefixes_of(dataset), **prefix)
        dataset.update(part.dataset, **({} if maps else dict(ann_file=annotations)))
        evaluator = loader.replace('dataloader', 'evaluator')
        if annotations and not maps and name != 'train' and cfg.get(evaluator):
            cfg[evaluator] = copy.deepcopy(cfg[evaluator])
            # another one that is there is the user's own
            read = [key for key, file in annotation_files(cfg, [loader])
                    if file.absolute() == before or not file.exists()]
            for key, metric in evaluators(cfg, [loader]):
                if key in read:
                    metric.ann_file = str(part.annotations)
