"""The classes of a config's data sets: read from the data or a checkpoint, compared, and set in the heads."""
import logging
from itertools import zip_longest

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.processes import is_first_of_any_launcher
from .._utils.text import counted, listed, type_name
from ..draw.classes import class_colours
from ..errors import DataError
from ..weights import classes_of_checkpoint
from ..weights.contents import get_dataset_meta
from .class_folders import ClassImages
from .datasets import LOADERS, DataSet, datasets, dicts_in, is_elsewhere, stop_or_warn
from .evaluators import set_top_k
from .files import IGNORED, cached, read_class_list, read_json
from .label_maps import LabelMaps, names_path_of, pad_as_ignored, without_class, without_ignored
from .pipelines import ignored_labels

#: Parts of a model with their own number of classes, by the ends of their keys and by their types: one class for any
#: object, the classes of a backbone's own classifier, classes of stuff, and a boundary.
_OTHER_CLASSES = ('rpn_head', 'backbone', 'semantic_head')
_OTHER_CLASSES_TYPES = ('FusedSemanticHead', 'STDCHead')
#: The number of classes in the configs of this package: of COCO, ADE20k and ImageNet, and none.
_OF_RECIPES = 80, 150, 1000, 0


def take_classes(cfg: Config, checkpoint=None, source=None, loaders=LOADERS[:2], on_findings: str = 'stop'):
    """Fill in the classes of data sets and heads of a config with ``classes_from_data``; others only get `set_top_k`.

    Args:
        checkpoint: A checkpoint that was trained with the classes. Without one, they come from the training data.
        source: The file of the checkpoint, for errors.
        loaders: The data that will be used; it must have the same classes in the same order, because the frameworks
            use class numbers and never compare names.
        on_findings: ``stop``, or ``warn`` to log different classes and label maps that cannot be used, and continue.

    Raises:
        CheckpointError: The checkpoint holds no class names.
        DataError: Data has no or different classes, or the config sets classes itself.
    """
    pad_as_ignored(cfg)
    if words := explicit_classes(cfg):
        stop_or_warn(words, on_findings)
    if words or not cfg.get('classes_from_data'):
        if count := outputs_of(cfg.get('model')):
            set_top_k(cfg, count)
        return
    others = datasets(cfg, loaders)
    ignored = ignored_labels(cfg, LOADERS[0])
    if checkpoint is None:
        first = datasets(cfg, LOADERS[:1])[0]
        others = [dataset for dataset in others if dataset.data is not first.data]
        wanted, origin = classes_of_data(first, on_findings=on_findings, ignored=ignored), 'the training data'
    else:
        wanted, origin = dict(classes=classes_of_checkpoint(checkpoint, source)), source
    for dataset in others:
        try:
            found = classes_of_data(dataset, wanted['classes'], on_findings, ignored)
        except DataError as error:
            stop_or_warn(str(error), on_findings)
            continue
        differences = {key: difference_of(found.get(key, ()), values) for key, values in wanted.items()}
        if differences.pop('category_ids', '') and not any(differences.values()):  # mmdet numbers them in each file
            print_log(f'{dataset.name} has other category ids than {origin}: its classes are matched by name',
                      logger='current')
        if words := '; '.join(f'{key}: {difference}' for key, difference in differences.items() if difference):
            advice = ClassImages(dataset).advice if dataset.reader == 'CustomDataset' else ''
            stop_or_warn(f'{dataset.name} ({dataset.root.absolute()}) has different classes than {origin}, or a '
                         f'different order: {words}. Make them the same'
                         + (', or use a checkpoint of a model for this data' if checkpoint else '')
                         + f'. {advice}'.rstrip(), on_findings)
    set_classes(cfg, **wanted)


def known_classes(checkpoint, source=None) -> tuple:
    """Return the class names in a checkpoint, or () if it has none."""
    return classes_of_checkpoint(checkpoint, source) if get_dataset_meta(checkpoint).get('classes') else ()


def difference_of(found, wanted) -> str:
    """Describe how a list of classes differs from another: missing and extra names, or the order; '' if it does not."""
    sides = (('without', [name for name in wanted if name not in found]),
             ('with', [name for name in found if name not in wanted]))
    words = [f'{word} {listed(map(repr, names))}' for word, names in sides if names]
    pairs = enumerate(zip_longest(found, wanted))
    return ' and '.join(words) or next((f'class {i} is {a!r}, not {b!r}' for i, (a, b) in pairs if a != b), '')


def set_classes(cfg: Config, classes, **metainfo):
    """Set ``classes`` (names, in the order of the model's outputs) in data sets, heads and metrics."""
    set_top_k(cfg, len(classes))
    for dataset in datasets(cfg, LOADERS):
        dataset['metainfo'] = dict(classes=tuple(classes), palette=class_colours(classes), **metainfo)
    heads = [*heads_of_classes(cfg.model)]
    given = {class_count(head) for head in heads} - {len(classes), None, *_OF_RECIPES}
    if given and is_first_of_any_launcher():
        print_log(f'num_classes={listed(map(str, given))} in the config is replaced by {len(classes)}, the number of '
                  'classes in the data: classes_from_data is True', logger='current')
    weighted = [part for head in heads for part in dicts_in(head) if part.get('class_weight')]
    for head in heads:
        set_class_count(head, len(classes))
    if any(part['class_weight'] is None for part in weighted):
        print_log('class_weight in the config weighs other classes and is omitted. To weigh '
                  f'those of the data, give {counted(len(classes), "numbers")} in their order', logger='current',
                  level=logging.WARNING)
    for part in dicts_in(cfg.get('data_preprocessor') or {}):  # mmengine puts it into the model
        if 'num_classes' in part:
            part['num_classes'] = len(classes)


def class_count(head):
    """Return the number of classes in the config of a head, or None."""
    return head.get(count_key(head))


def count_key(head) -> str:
    """Return the key of `class_count`."""
    return 'num_things_classes' if 'num_things_classes' in head else 'num_classes'


def set_class_count(head, count: int):
    """Set the number of classes of a head, and as many weights in a loss that also weighs 'no object'.

    Weights for each of as many classes as it had before are for those: a loss without weights remains.
    """
    before, head[count_key(head)] = class_count(head), count
    for part in dicts_in(head):
        weights = part.get('class_weight')
        if not isinstance(weights, (list, tuple)) or before == count:
            continue
        if len(weights) == (before or 0) + 1 and len({*weights[:-1]}) == 1:
            part['class_weight'] = [weights[0]] * count + [weights[-1]]
        elif len(weights) == before:
            part['class_weight'] = None


def heads_of_classes(node, key=''):
    """Yield every dict in a model's config whose `class_count` is, or should be, the number of classes of the data."""
    if isinstance(node, dict):
        name = type_name(node.get('type'))
        # the backbone whose own classifier is that of the model, unless that has a head
        is_classifier = name == 'XCiTClassifier' and node.get('num_classes') != 0
        if not is_classifier and (key.endswith(_OTHER_CLASSES) or name in _OTHER_CLASSES_TYPES):
            return
        has_things_only = 'num_things_classes' in node and node.get('num_stuff_classes') == 0
        if 'num_classes' in node or has_things_only or is_classifier:
            yield node
    for key, value in node.items() if isinstance(node, dict) else [(key, value) for value in node]:
        if isinstance(value, (dict, list, tuple)):
            yield from heads_of_classes(value, str(key))


def outputs_of(model):
    """Return the number of classes of a classifier according to its config; None if the config does not say."""
    head, backbone = ((model or {}).get(key) or {} for key in ('head', 'backbone'))
    counts = [part.get('num_classes') for part in (head, backbone) if isinstance(part, dict)]
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def classes_of_data(dataset, known=None, on_findings: str = 'stop', ignored=()) -> dict:
    """Return the names of the ``classes`` of a data set; for a COCO file also ``category_ids``.

    The order is that of the file, as in mmdet, of labels, or of the sorted names of class folders, as in mmpretrain.

    Args:
        known: Names for label maps without ``classes.txt``; by default the labels are the names.
        on_findings: ``stop``, or ``warn`` to log label maps that cannot be used and continue with the others.
        ignored: Labels that the heads ignore, in addition to those that the data set ignores.

    Raises:
        DataError: The annotation file is not a COCO file, ``classes.txt`` or a label map cannot be used, or there are
            no class folders.
    """
    dataset = DataSet.of(dataset)
    if is_elsewhere(dict(dataset, pipeline=())):  # a step of the pipeline reads only images
        raise DataError(f'the files of the data set {dataset["type"]} are not on a disk, so its classes cannot be read '
                        'from them. Set classes_from_data=False, metainfo.classes of the data sets, and num_classes '
                        'of the heads')
    if dataset.reader == 'CustomDataset':
        return dict(classes=ClassImages(dataset).classes(known))
    if dataset.reader == 'UnlabelledImages':
        raise DataError('images without labels (UnlabelledImages) have no classes: set classes_from_data=False')
    if not dataset.get('ann_file') or dataset.prefixes.get('seg_map_path'):
        return dict(classes=_classes_of_folders(dataset, known, on_findings, ignored))
    try:
        categories = cached('classes', dataset.ann_file, lambda: [
            [c['name'], c['id']] for c in read_json(dataset.ann_file)['categories']])
        return dict(classes=tuple(name for name, _ in categories), category_ids=tuple(id for _, id in categories))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise DataError(f'the classes of the data cannot be read from {dataset.ann_file}: {error}') from error


def _classes_of_folders(dataset, known, on_findings, ignored):
    folder, names_file = dataset.folder('seg_map_path').absolute(), names_path_of(dataset)
    maps = LabelMaps(dataset, ignored)
    # the classes of a type of the user's number the labels
    listed = dataset.own_classes or read_class_list(names_file)
    names = without_ignored(listed, maps.first, maps.skipped) if listed else known
    labels = _labels_of_maps(maps, names, on_findings)
    highest, first = max(labels, default=-1), maps.first
    if not names:
        names = tuple(str(label) for label in range(first, highest + 1) if label not in maps.skipped)
        print_log(f'no {names_file}: the classes are the labels {first} to {highest} in {folder}. If one of them means '
                  '"no class" (void, border), --ignore-label LABEL leaves it out', logger='current')
    if len(names) < 2:
        stop_or_warn(f'the label maps in {folder} have {"only one class" if names else "no class"}, but segmentation '
                     f'needs at least two. A pixel is the number of its class from {first}; {IGNORED} is ignored. If '
                     'objects are drawn as 255 on 0, write them as 1, or use --palette FILE with the lines '
                     '"background 0 0 0" and "object 255 255 255"', on_findings)
    if wrong := {label: found for label, found in labels.items() if label not in maps.labels(len(names))}:
        label, (path, *_) = max(wrong.items())
        totals = {label: (images, pixels) for label, (_, images, pixels) in sorted(wrong.items())}
        stop_or_warn(f'{path} has the label {label}, but the {counted(len(names), "classes")} have '
                     f'{maps.in_words(len(names))}. {without_class(totals)}', on_findings)
    return names


def _labels_of_maps(maps, names, on_findings):
    """Return every label below a folder except ignored ones, with an example file and the numbers of images and pixels.

    There are none if the classes have names and it is unknown what reads the maps.
    """
    if not maps.is_read:
        if not names:
            raise DataError(f'the label maps in {maps.folder} are read by a step of your own, which alone knows their '
                            'labels: write the names of the classes into classes.txt in the data root, one per line')
        return {}
    # a class may occur only in the images that were held out
    paths, found = maps.paths(whole=not names), {}
    for path, state in zip(paths, maps.read(paths), strict=True):
        if state.fault:
            stop_or_warn(f'{path} cannot be read: {state.value or "it does not exist"}', on_findings)
        elif 'labels' not in state.content:
            stop_or_warn(f'{path} is not a label map: a pixel must be one number from 0 to 255, but the file has the '
                         f'mode {state.content["mode"]}. --palette FILE converts colours', on_findings)
        else:
            for label, amount in state.content['labels']:
                if label not in maps.ignored:
                    _, images, pixels = found.get(label, (path, 0, 0))
                    found[label] = path, images + 1, pixels + amount
    return found


def explicit_classes(cfg: Config) -> str:
    """Say which data sets of a config with ``classes_from_data`` have classes that the config sets, and the fix; or ''.

    Classes that an earlier run found and wrote into its dumped config do not count: they have our colours.
    """
    if not cfg.get('classes_from_data'):
        return ''
    metas = [(dataset.key, meta.get('classes') or (), meta.get('palette') or ())
             for dataset in datasets(cfg, LOADERS) if (meta := dataset.get('metainfo'))]
    written = [f'{key}.metainfo.classes' for key, classes, palette in metas if classes and (
        isinstance(classes, str) or list(map(tuple, palette)) != class_colours(classes))]
    if not written:
        return ''
    return (f'{listed(written)}: the config sets classes, but classes_from_data = True reads them from the data. Use '
            'only one: set classes_from_data=False with --cfg-options (and num_classes of the heads), or remove '
            'metainfo.classes')


def own_colours(cfg: Config) -> dict:
    """Return the colours by name of classes for which the config or the type of a data set has a palette."""
    found = {}
    for dataset in datasets(cfg, LOADERS) if not cfg.get('classes_from_data') else ():
        meta = {**getattr(dataset.type, 'METAINFO', {}), **(dataset.get('metainfo') or {})}
        names, palette = meta.get('classes') or (), meta.get('palette') or ()
        if not isinstance(names, str) and not isinstance(palette, str) and len(palette) >= len(names):
            found = {**dict(zip(names, class_colours(names, palette), strict=True)), **found}
    return found
