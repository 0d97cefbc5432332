"""Words in the names of files and folders: the part of a run that they are for, and label maps."""
import re
from pathlib import Path

#: Words in names by the part that they mean, the usual ones first.
WORDS = dict(train=('train', 'training', 'trn'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
_PARTS = {word: part for part, words in WORDS.items() for word in words}
#: Names of folders of label maps, as `plain` writes them.
MAPS = ('masks', 'mask', 'labels', 'label', 'annotations', 'annotation', 'annots', 'annot', 'anndir', 'gt', 'gtfine',
        'segmentation', 'segmentations', 'segmentationclass', 'labelmaps', 'groundtruth', 'target', 'targets',
        'semantic', 'segmaps', 'seg')
#: Suffixes of label maps; JPEG would change labels.
MAP_SUFFIXES = ('.png', '.bmp', '.tif', '.tiff', '.gif')


def plain(name) -> str:
    """Return a name in lower case, without blanks, ``-``, ``_`` and dots."""
    return re.sub(r'[\s_.-]+', '', name.lower())


def part_of(path: Path, root: Path):
    """Return ``train``, ``val`` or ``test`` if the name of a file or folder, or of a folder above it, says so.

    The nearest name counts; a name with two of them is ignored.
    """
    names = [path.stem if path.suffix else path.name, *(folder.name for folder in path.parents if folder != root
                                                        and folder.is_relative_to(root))]
    for name in names if path != root else ():
        part, rest = part_in(name)
        if part or rest is None:
            return part
    return None


def part_in(name: str):
    """Return ``train``, ``val`` or ``test`` if a name says so, and what the names of the other parts have in common.

    ``val2017`` is ``val`` and ``*0``, as is ``val2014``. Without such a word, both are '' and the name; with words of
    two parts, None and None.
    """
    words = re.findall('[a-z]+', name.lower())
    found = {_PARTS[word] for word in words if word in _PARTS}
    if len(found) > 1:
        return None, None
    rest = re.sub('[a-z]+', lambda word: '*' if word[0] in _PARTS else word[0], re.sub('[0-9]+', '0', name.lower()))
    return (found.pop(), rest) if found else ('', name)
