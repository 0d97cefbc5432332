"""The public interface. Importing it checks the frameworks and registers everything."""
from .compat import prepare

prepare()  # before anything imports torch or mmcv's ops

from . import train  # noqa: E402, F401
from .archs import Arch, arch_names, get_arch  # noqa: E402, F401
from .config.loading import get_config, list_models  # noqa: E402, F401
from .export.exporting import export_model  # noqa: E402, F401
from .models import ReferenceXCiT, XCABlock, XCiT, XCiTClassifier, attention_maps, set_fast  # noqa: E402, F401
from .predict import drawing  # noqa: E402, F401
from .predict.attention import principal_components  # noqa: E402, F401
from .predict.load import load  # noqa: E402, F401
from .report import hooks  # noqa: E402, F401
