# Sharded model (FSDP): each process of a run holds a part of the parameters, gradients and optimizer state, and the
# XCiT blocks are gathered one at a time. A run of one process does not change.
model_wrapper_cfg = dict(type='MMFullyShardedDataParallel', auto_wrap_policy='xcit_blocks')
