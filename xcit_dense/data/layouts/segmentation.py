"""Folders of images and label maps."""


def find_segmentation(cfg, root, options, folder):
    """Recognise a folder with data for segmentation, see `xcit_dense.data.layouts.placing`.

    Returns:
        A `Layout`, or None where the config stays as it is.
    """
