"""What runs a config: the runner, its options, prediction and plots."""
from .runner import DenseRunner  # noqa: F401 (registered on import)
