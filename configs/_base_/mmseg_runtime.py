# Shared by all runs of mmseg models: iterations instead of epochs.
_base_ = './default_runtime.py'

default_scope = 'mmseg'
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg'], allow_failed_imports=False)
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=8000),
    visualization=dict(type='DrawingHook'))
log_processor = dict(by_epoch=False)
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='DenseVisBackend')], name='visualizer')
