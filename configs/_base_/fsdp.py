# The model in shares: each process of a run holds a part of parameters, gradients and optimizer, and the XCiT blocks
# are gathered one at a time. A run of one process is not changed.
model_wrapper_cfg = dict(type='MMFullyShardedDataParallel', auto_wrap_policy='xcit_blocks')
