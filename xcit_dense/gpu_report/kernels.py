"""Where the time of a block goes, and the least that it could take."""
#: The checks in the order in which they run.
CHECKS = ()
