# Shared by all runs of mmpretrain models.
_base_ = './default_runtime.py'

default_scope = 'mmpretrain'
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmpretrain'], allow_failed_imports=False)
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='DenseVisBackend')], name='visualizer')
