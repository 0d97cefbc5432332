"""The annotations of one part of a run on their way into a layout: those of a COCO file, or made into its form."""
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Source:
    """Annotations in COCO's form.

    Attributes:
        path: The file that they are from.
        content: What it holds, or was made of it.
        images: Folder that the names of the images are below.
        changed: How ``content`` differs from the file, in words; empty where the file itself can be read.
        notes: Sentences on what a user might not expect.
    """
    path: Path
    content: dict
    images: Path
    changed: str = ''
    notes: list = field(default_factory=list)


def without_parents(sources) -> list:
    """Leave out categories that no object has and that others name as their ``supercategory``, as Roboflow's exports
    have one.

    Args:
        sources: All of one data set; a category that one of them needs stays in all. They are changed.

    Returns:
        The names that were left out.
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
            source.changed = source.changed or f'{source.path.name} without a category'
    return list(left_out)


def with_ids_from_1(source: Source):
    """Count the ids of annotations from 1 where one of them is 0, which pycocotools takes for no object."""
    annotations = source.content['annotations']
    if any(annotation.get('id') == 0 for annotation in annotations):
        annotations = [dict(annotation, id=number) for number, annotation in enumerate(annotations, 1)]
        source.content = dict(source.content, annotations=annotations)
        source.changed = source.changed or f'{source.path.name} with ids from 1'
