"""Whether training works on the device: mixed precision, interrupted runs, groups of processes, full configs."""
from . import trains_demos, trains_exact, trains_full

#: The checks in the order in which they run.
CHECKS = (trains_demos.CHECK, *trains_exact.CHECKS, *trains_full.CHECKS)
