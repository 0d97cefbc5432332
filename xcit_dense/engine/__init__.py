"""What runs a config: the runner, its options, prediction, plots and measurements."""
from .hooks import CompileHook, FuseHook, fuse_backbones
from .runner import DenseRunner, build_runner

__all__ = ['CompileHook', 'DenseRunner', 'FuseHook', 'build_runner', 'fuse_backbones']
