"""A data set of plain image folders, which mmseg lacks; imported by the segmentation configs, needs mmseg."""
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from ..errors import DataError
from .channels import ARRAY_SUFFIXES, LoadImageChannels
from .datasets import IMAGE_SUFFIXES, find_images
from .folders import label_map_of


@DATASETS.register_module()
class ImageFolderDataset(BaseSegDataset):
    """Images of any usual format, and label maps of the same names but for the suffix in another folder.

    Raises:
        DataError: An image has no label map, or two images have the same name but for the suffix.
    """

    def load_data_list(self):
        """Return one record per image, in the order of their paths, as mmseg's transforms expect it."""
        reads_arrays = any(isinstance(step, LoadImageChannels) for step in self.pipeline.transforms)
        folder, paths = find_images(self.data_prefix['img_path'],
                                    (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES) if reads_arrays else IMAGE_SUFFIXES)
        records, seen = [], {}
        for path in paths:
            record = dict(img_path=str(path), label_map=self.label_map, reduce_zero_label=self.reduce_zero_label,
                          seg_fields=[])
            if self.data_prefix.get('seg_map_path'):
                label_map = label_map_of(path, folder, self.data_prefix['seg_map_path'], self.seg_map_suffix)
                if not label_map.is_file():
                    raise DataError(f'the image {path} has no label map {label_map}')
                if label_map in seen:
                    raise DataError(f'the images {seen[label_map]} and {path} have the same label map {label_map}')
                seen[label_map] = path
                record['seg_map_path'] = str(label_map)
            records.append(record)
        return records
