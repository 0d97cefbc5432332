"""The names of ImageNet's classes."""
import re
from pathlib import Path

import pytest

from xcit_dense.data.imagenet import are_imagenet_names, imagenet_classes


def test_a_thousand_ids_in_order_with_a_name_of_its_own_each():
    classes = imagenet_classes()
    assert len(classes) == 1000 and list(classes) == sorted(classes)
    assert all(re.fullmatch(r'n\d{8}', number) for number in classes)
    assert len({name.lower() for name in classes.values()}) == 1000  # Cardigan, a dog, and cardigan are two
    assert max(map(len, classes.values())) < 40


def test_order_and_names_are_those_of_mmpretrain():
    categories = pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES
    others = {name: theirs for name, theirs in zip(imagenet_classes().values(), categories, strict=True)
              if name != theirs.partition(',')[0]}
    assert others == {'crane (bird)': 'crane', 'crane (machine)': 'crane', 'maillot (tights)': 'maillot',
                      'maillot (bathing suit)': 'maillot, tank suit',
                      'Cardigan Welsh corgi': 'Cardigan, Cardigan Welsh corgi'}


def test_ids_are_those_of_timm():
    info = Path(pytest.importorskip('timm').__file__).parent / 'data/_info/imagenet_synsets.txt'
    assert info.read_text().split() == list(imagenet_classes())


def test_names_of_imagenet_are_known_with_all_synonyms_and_with_one():
    categories = pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES
    own = tuple(imagenet_classes().values())
    assert are_imagenet_names(categories) and are_imagenet_names(own)
    assert not are_imagenet_names(own[:999]) and not are_imagenet_names(own[::-1])
    assert not are_imagenet_names(list(imagenet_classes()))
