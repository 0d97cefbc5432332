"""Variables that a base used before the config changed them, and options that are meant for them."""
import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.check.options import find_new_keys
from xcit_dense.config.check.top_level import check_top_level
from xcit_dense.config.loading import load_config, read_config


@pytest.fixture
def leaf(tmp_path):
    """A function that writes a config with some lines and returns it."""

    def write(text, base=TINY_SEG_CONFIG):
        path = tmp_path / 'mine.py'
        path.write_text(f"_base_ = '{base}'\n{text}\n")
        return path

    return write


@pytest.mark.parametrize('line, old, words', (
    ('scale = (320, 320)', '(192, 192)', ('train_dataloader.dataset.pipeline.2.scale',
                                          'test_dataloader.dataset.pipeline.1.scale', '--image-size')),
    ('crop_size = (96, 96)', '(160, 160)', ('model.data_preprocessor.size', '--image-size')),
    ("data_root = 'mine/'", "'data/folders/'", ('train_dataloader.dataset.data_root', '--data-root')),
    ('max_iters = 30', '700', ('param_scheduler.1.end', ))))
def test_one_that_reaches_nothing_is_told(line, old, words, leaf):
    found, = check_top_level(load_config(leaf(line)))
    assert found.startswith(line.partition(' ')[0]) and f'{old} stays' in found
    assert all(word in found for word in words)


@pytest.mark.parametrize('lines', (
    'scale = (192, 192)',  # as it was
    'mine = 3', 'max_iters = 30\nparam_scheduler = [dict(type="PolyLR", by_epoch=False, begin=0, end=max_iters)]',
    'scale = (320, 320)\ntest_dataloader = dict(dataset=dict(serialize_data=scale == 3))',  # it knows what it does
    'max_iters = 30\nparam_scheduler = [dict(type="PolyLR", by_epoch=False, begin=0, end=30)]'))  # by hand
def test_one_that_is_used_or_done_by_hand_is_not(lines, leaf):
    assert not check_top_level(load_config(leaf(lines)))


def test_what_the_base_computes_from_it_counts(leaf, tmp_path):
    """A number in a list and in a product; and lists of steps, which the file that sets them must put in itself."""
    base = tmp_path / 'base.py'
    base.write_text(f"_base_ = '{TINY_CONFIG}'\nnum_classes = 5\nsteps = [dict(type='A')]\n"
                    'model = dict(roi_head=dict(bbox_head=dict(num_classes=num_classes), mask_head=dict('
                    'num_classes=num_classes), note=[1, num_classes * 2]))\nvisualizer = dict(steps=steps)\n')
    first, second = check_top_level(load_config(leaf("num_classes = 7\nsteps = [dict(type='B')]", base)))
    assert 'model.roi_head.bbox_head.num_classes' in first + second and 'roi_head.note' in first + second
    assert 'visualizer.steps.0.type' in first + second
    fixed = 'num_classes = 7\nmodel = dict(roi_head=dict(bbox_head=dict(num_classes=7), mask_head=dict(num_classes=7)))'
    found, = check_top_level(load_config(leaf(fixed, base)))
    assert 'roi_head.note' in found and 'mask_head' not in found  # what is left


def test_options_that_change_the_keys_are_the_mend(leaf):
    path = leaf('max_iters = 30')
    assert not check_top_level(load_config(path, cfg_options={'param_scheduler.1.end': 30, 'train_cfg.max_iters': 30}))


def test_what_lies_above_a_framework_or_cannot_be_read_again(leaf, tmp_path):
    """A base in an installed package stays where it is; a value that the base cannot use is no finding here."""
    base = tmp_path / 'base.py'
    base.write_text(f"_base_ = '{TINY_CONFIG}'\nsides = (3, 4)\nwhole = sides[0] + 1\nvisualizer = dict(side=whole)\n")
    assert not check_top_level(load_config(leaf('sides = None', base)))
    path = leaf('max_epochs = 3', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py')
    assert not check_top_level(read_config(path))


@pytest.mark.parametrize('option, value, words', (
    ('max_iters', 5, ('param_scheduler.1.end', )), ('scale', (8, 8), ('pipeline.2.scale', '--image-size')),
    ('lr', 0.1, ('--lr', )), ('batch_size', 4, ('--batch-size', )), ('max_epochs', 4, ('--epochs', )),
    ('unheard', 1, ('no framework reads it', ))))
def test_options_for_variables_name_what_is_meant(option, value, words):
    line = find_new_keys(read_config(TINY_SEG_CONFIG), {option: value})[option]
    assert all(word in line for word in words)
