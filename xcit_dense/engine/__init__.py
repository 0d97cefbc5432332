"""What runs a config: the runner, its options, prediction, plots and measurements."""
from .runner import DenseRunner, build_runner

__all__ = ['DenseRunner', 'build_runner']
