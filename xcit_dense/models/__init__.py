"""The network as the paper describes it. Its parts run in faster forms (`fast`) unless somebody modified them."""
from .backbone import XCiT
from .block import XCABlock
from .classifier import XCiTClassifier, attention_maps
from .fast import set_fast
from .pyramid import PYRAMID_STRIDES
from .reference import ReferenceXCiT
from .trunk import Trunk

__all__ = ['PYRAMID_STRIDES', 'ReferenceXCiT', 'Trunk', 'XCABlock', 'XCiT', 'XCiTClassifier', 'attention_maps',
           'set_fast']
