"""A data set of plain image folders, which mmseg lacks. The segmentation configs import it; it needs mmseg."""
from pathlib import Path

from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from ..errors import DataError
from .channels import ARRAY_SUFFIXES, LoadImageChannels
from .files import IGNORED
from .folders import IMAGE_SUFFIXES, find_images, label_map_of, names_in_list
from .label_maps import label_map


@DATASETS.register_module()
class ImageFolderDataset(BaseSegDataset):
    """Images of any usual format, and label maps with the same names, except for the suffix, in another folder.

    Args:
        ignore_labels: Labels in the files, from 0 to 255, to ignore: they are 255 after loading, and the numbers of
            higher labels move down.
        image_ending: The part before the suffix that only the names of images have, such as ``_leftImg8bit``.
        classes_file: A list of class names below the data root, for configs with ``classes_from_data``.
        **options: Options of mmseg's data sets. ``ann_file`` lists images below their folder with their suffixes, one
            per line; by default all are read.

    Raises:
        DataError: An image has no label map, or two images have the same name except for the suffix.
    """

    def __init__(self, *, ignore_labels=(), image_ending: str = '', classes_file: str = 'classes.txt', **options):
        self.ignore_labels, self.image_ending = tuple(ignore_labels), image_ending
        super().__init__(**options)

    def get_label_map(self, new_classes=None):
        """Return the class of each label that changes, as mmseg's step that loads label maps expects it."""
        first = int(self.reduce_zero_label)
        return label_map(first, set(self.ignore_labels), IGNORED if new_classes is None else len(new_classes))

    def load_data_list(self):
        """Return one record per image, in the order of paths or of the list, as mmseg's transforms expect them."""
        folder = Path(self.data_prefix['img_path']).expanduser()
        reads_arrays = any(isinstance(step, LoadImageChannels) for step in self.pipeline.transforms)
        suffixes = (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES) if reads_arrays else IMAGE_SUFFIXES
        paths = ([folder / name for name in names_in_list(self.ann_file)] if self.ann_file else
                 find_images(folder, suffixes)[1])
        records, seen = [], {}
        for path in paths:
            record = dict(img_path=str(path), label_map=self.label_map, reduce_zero_label=self.reduce_zero_label,
                          seg_fields=[])
            if self.data_prefix.get('seg_map_path'):
                found = label_map_of(path, folder, self.data_prefix['seg_map_path'], self.seg_map_suffix,
                                     ending=self.image_ending)
                if not found.is_file():
                    raise DataError(f'the image {path} has no label map {found}')
                if found in seen:
                    raise DataError(f'the images {seen[found]} and {path} have the same label map {found}')
                seen[found] = path
                record['seg_map_path'] = str(found)
            records.append(record)
        return records
