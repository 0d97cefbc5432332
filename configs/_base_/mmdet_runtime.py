# Shared by all runs of mmdet models.
_base_ = './default_runtime.py'

default_scope = 'mmdet'
default_hooks = dict(visualization=dict(type='DrawingHook'))
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='DenseVisBackend')], name='visualizer')
