"""How fast XCiT is beside other backbones, and what memory it takes."""
#: The checks in the order in which they run.
CHECKS = ()
