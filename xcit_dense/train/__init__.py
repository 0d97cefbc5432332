"""Training and testing of a config: the runner, its loops and hooks, saving and resuming."""
from .hooks import AverageHook, Bfloat16OptimWrapper, CompileHook, CUDAGraphHook, FuseHook
from .loops import DenseEpochLoop, DenseIterLoop
from .runner import DenseRunner, build_runner
from .saving import DenseCheckpointHook
from .startup import StartupHook
from .val_loss import ValLossHook

__all__ = ['AverageHook', 'Bfloat16OptimWrapper', 'CUDAGraphHook', 'CompileHook', 'DenseCheckpointHook',
           'DenseEpochLoop', 'DenseIterLoop', 'DenseRunner', 'FuseHook', 'StartupHook', 'ValLossHook', 'build_runner']
