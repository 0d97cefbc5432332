"""The classes of ImageNet-1k, in the order of the outputs of published classifiers."""
from functools import cache
from pathlib import Path


@cache
def imagenet_classes() -> dict:
    """Return the names of the 1,000 classes by their WordNet ids (``n01440764``), sorted by the ids.

    The folders of the data set are named by the ids. A name is the first synonym, unless two classes share it: every
    name is unique.
    """
    lines = Path(__file__).with_name('imagenet_classes.txt').read_text(encoding='utf-8').splitlines()
    return dict(line.split(' ', 1) for line in lines)


def are_imagenet_names(names) -> bool:
    """Whether names are those of the 1,000 classes in order, also with all synonyms, as in mmpretrain.

    A name there is ``tench, Tinca tinca``.
    """
    own = imagenet_classes().values()
    return len(names) == len(own) and all(
        {name, name.partition(' (')[0]} & {*str(theirs).split(', ')} for name, theirs in zip(own, names, strict=True))


def same_classes(names, others) -> bool:
    """Whether two lists name the same classes; ids and names of ImageNet mean the same."""
    names, others = list(names), list(others)
    return names == others or all(are_imagenet_names(some) or some == list(imagenet_classes())
                                  for some in (names, others))


def short_names(names) -> tuple:
    """Return the names of `imagenet_classes` if the names are those of ImageNet, and other names unchanged."""
    return tuple(imagenet_classes().values() if are_imagenet_names(names) else names)
