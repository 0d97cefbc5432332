"""What the installed framework versions need, in one place."""
from .mmcv_ops import install_stand_in
from .versions import check_versions


def prepare():
    """Check the frameworks and complete mmcv-lite; called once, when the package is imported."""
    check_versions()
    install_stand_in()
