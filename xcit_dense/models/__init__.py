"""The network as the paper writes it. Its parts run in faster forms (`fast`) where nobody touched them."""
from .backbone import XCiT
from .block import XCABlock
from .fast import set_fast
from .pyramid import PYRAMID_STRIDES
from .reference import ReferenceXCiT

__all__ = ['PYRAMID_STRIDES', 'ReferenceXCiT', 'XCABlock', 'XCiT', 'set_fast']
