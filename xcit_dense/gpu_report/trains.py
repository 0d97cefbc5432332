"""Whether training works on the device: mixed precision, interrupted runs, groups of processes, full configs."""
#: The checks in the order in which they run.
CHECKS = ()
