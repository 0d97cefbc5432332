"""How fast compiled models are: a stage of its own, since a compiler takes minutes."""
from .fast import COMPILED_CHECKS as CHECKS  # noqa: F401
