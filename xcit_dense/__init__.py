"""XCiT for dense prediction in OpenMMLab. Importing the package registers the backbone."""
__version__ = '0.1.0'

from .compat import prepare as _prepare

_prepare()  # before anything imports torch or mmcv's ops

from . import train  # noqa: E402, F401
from .archs import Arch, arch_names, get_arch  # noqa: E402
from .compat.moved import install_old_paths as _install_old_paths  # noqa: E402
from .config.catalog import get_config, list_models  # noqa: E402
from .models import ReferenceXCiT, XCABlock, XCiT, set_fast  # noqa: E402

_install_old_paths(__name__)

__all__ = [
    'Arch', 'ReferenceXCiT', 'XCABlock', 'XCiT', 'arch_names', 'get_arch', 'get_config', 'list_models', 'set_fast'
]
