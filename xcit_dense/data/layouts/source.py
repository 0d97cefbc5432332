"""The annotations of one part of a run: from a COCO file, or converted to its format."""
from dataclasses import dataclass, field
from pathlib import Path

from .layout import below


@dataclass
class Source:
    """Annotations in COCO format.

    Attributes:
        path: The file that they come from.
        content: Its content, possibly converted.
        images: Folder that the image names are relative to.
        changed: How ``content`` differs from the file, as text; empty if the file itself can be read.
        notes: Sentences on what a user might not expect.
    """
    path: Path
    content: dict
    images: Path
    changed: str = ''
    notes: list = field(default_factory=list)


def without_parents(sources, root: Path) -> list:
    """Drop categories that no object has and that others name as their ``supercategory``; Roboflow's exports have one.

    Args:
        sources: All sources of one data set; a category that one of them needs stays in all. They are changed.
        root: The folder of the data.

    Returns:
        The names that were dropped.
    """
    sources = list(sources)
    used = {annotation.get('category_id') for source in sources for annotation in source.content['annotations']}
    left_out = {}
    for source in sources:
        categories = source.content['categories']
        parents = {(category.get('supercategory'), other) for other, category in enumerate(categories)}
        gone = [place for place, category in enumerate(categories) if category.get('id') not in used
                and any(name == category.get('name') and other != place for name, other in parents)]
        if gone and len(gone) < len(categories):
            left_out.update((categories[place].get('name'), None) for place in gone)
            kept = [category for place, category in enumerate(categories) if place not in gone]
            source.content = dict(source.content, categories=kept)
            source.changed = source.changed or below(source.path, root)
    return list(left_out)


def with_ids_from_1(source: Source):
    """Renumber the ids of annotations from 1 if one of them is 0, which means "no object" to pycocotools."""
    annotations = source.content['annotations']
    if any(annotation.get('id') == 0 for annotation in annotations):
        annotations = [dict(annotation, id=number) for number, annotation in enumerate(annotations, 1)]
        source.content = dict(source.content, annotations=annotations)
        source.changed = source.changed or f'{source.path.name} with ids from 1'
