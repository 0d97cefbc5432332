"""What the installed framework versions need, in one place."""
from .versions import check_versions


def prepare():
    """Check the frameworks and complete mmcv-lite; called once, when the package is imported.

    Raises:
        SetupError: A framework is missing, or versions do not work together.
    """
    check_versions()
    from .mmcv_ops import install_stand_in  # needs torch, which the check has found
    install_stand_in()
