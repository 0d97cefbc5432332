"""Files of tools whose own formats are not read: what to export instead."""
from contextlib import suppress
from pathlib import Path

from ..errors import DataError
from .coco import folders_of
from .types import below

_VIA = 'in VIA 2: Annotation > Export Annotations (COCO format)'
#: What a file is, by its name and what stands near its beginning, and how to get from it to what is read.
_KINDS = (
    ('*.json', b'"segments_info"', 'COCO panoptic', 'for boxes and masks use instances_*.json of the same data, or let '
     'panopticapi write it: python converters/panoptic2detection_coco_format.py; for label maps, '
     'panoptic2semantic_segmentation.py'),
    ('*.json', b'"_via_', 'VGG Image Annotator', _VIA),
    ('*.json', b'"region_attributes"', 'VGG Image Annotator', _VIA),
    ('*.csv', b'region_shape_attributes', 'VGG Image Annotator', _VIA),
    ('*.json', b'"classTitle"', 'Supervisely', 'export with its app "Export to COCO", or "Convert Supervisely to '
     'Pascal VOC"'),
    ('*.xml', b'<annotations>', 'CVAT for images', 'in CVAT, export as "COCO 1.0"'),
    ('*.json', b'"completed_by"', 'Label Studio', 'in Label Studio, export as "COCO"'),
    ('*createml*.json', b'', 'CreateML', 'in Roboflow, download as "COCO"'),
    ('*.csv', b'xmin', 'tables of boxes', 'in Roboflow, download as "COCO"; otherwise export COCO or Pascal VOC from '
     'the tool that wrote it'),
    ('*.tfrecord', b'', 'TFRecord', 'in Roboflow or CVAT, export as "COCO"'))
_PROBES, _BYTES = 3, 2**29


def reject_foreign(root: Path):
    """Raise a `DataError` on files of a tool that are not read as they are: tool, file, and the export that is read."""
    for folder in folders_of(root):
        for pattern, mark, tool, advice in _KINDS:
            for path in sorted(folder.glob(pattern))[:_PROBES]:
                with suppress(OSError), open(path, 'rb') as file:
                    if mark in file.read(_BYTES):
                        raise DataError(f'{root} has data in the format of {tool} ({below(path, root)}), which is not '
                                        f'read as it is. Instead, {advice}. docs/own_data.md lists what is read')
