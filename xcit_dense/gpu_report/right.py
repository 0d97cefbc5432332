"""Whether results on the device are right: against golden tensors, float64 and the plain path."""
#: The checks in the order in which they run.
CHECKS = ()
