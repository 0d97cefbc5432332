"""Everything that depends on the versions of the installed frameworks."""


def prepare():
    """Check the frameworks (`check_versions`) and complete mmcv-lite; called once, when the package is imported."""
    from .versions import check_versions
    check_versions()
    from .mmcv_ops import install_stand_in  # needs torch, which the check above requires
    install_stand_in()
    from .internals import format_configs_once
    format_configs_once()
