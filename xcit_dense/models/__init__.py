"""The network as the paper writes it. Its parts run in faster forms (`fast`) where nobody touched them."""
from .backbone import XCiT
from .block import XCABlock
from .classifier import XCiTClassifier, attention_maps
from .fast import set_fast
from .pyramid import PYRAMID_STRIDES
from .reference import ReferenceXCiT
from .trunk import Trunk

__all__ = ['PYRAMID_STRIDES', 'ReferenceXCiT', 'Trunk', 'XCABlock', 'XCiT', 'XCiTClassifier', 'attention_maps',
           'set_fast']
