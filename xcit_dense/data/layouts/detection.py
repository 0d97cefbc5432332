"""Folders with data for detection."""


def find_detection(cfg, root, options, folder):
    """Recognise a folder with data for detection, see `xcit_dense.data.layouts.placing`.

    Returns:
        A `Layout`, or None where the config stays as it is.
    """
