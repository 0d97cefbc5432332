"""Which data sets a config has and where they are, also not on a disk; what their pipelines read."""
from pathlib import Path

import pytest
from mmdet.datasets.transforms import LoadAnnotations
from mmengine.config import Config, ConfigDict

from helpers.faulty_data import ANNOTATIONS, coco, folders, kinds_in, only, rewrite
from helpers.paths import MAIN_CONFIG, TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import set_data_root
from xcit_dense.data.check.check import check_before_training, check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.datasets import DataSet, check_data
from xcit_dense.data.demo import CLASSES
from xcit_dense.data.folders import find_images
from xcit_dense.data.pipelines import loads_masks
from xcit_dense.errors import DataError
from xcit_dense.for_mmseg import ImageFolderDataset


def test_images_are_found_in_order_below_a_folder(tmp_path):
    (tmp_path / 'deep.png').mkdir()
    for name in ('c.webp', 'a.tif', 'b.tiff', 'd.bmp', 'deep.png/z.JPG', 'e.jpeg', 'f.PNG', 'x.gif', 'y.txt', 'png'):
        (tmp_path / name).touch()
    folder, found = find_images(tmp_path)
    assert folder == tmp_path and [p.relative_to(tmp_path).as_posix() for p in found] == [
        'a.tif', 'b.tiff', 'c.webp', 'd.bmp', 'deep.png/z.JPG', 'e.jpeg', 'f.PNG']
    assert find_images(tmp_path / 'y.txt') == (tmp_path, [tmp_path / 'y.txt'])  # what is named is taken


def test_missing_and_empty_data_is_one_error_with_the_layout(tmp_path):
    """Only of the given loaders; if nothing is missing, there is no message."""
    parts = [f'{part}/{split}' for part in ('annotations', 'images') for split in ('training', 'validation')]
    for name in ('empty', 'full', *parts):
        (tmp_path / name).mkdir(parents=True)
    for name in ('full/a', 'annotations/instances_train2017.json'):
        (tmp_path / name).write_text('{}')

    def dataset(folder, **more):
        return dict(dataset=dict(type='CocoDataset', data_root=str(tmp_path), data_prefix=dict(img=folder), **more))

    cfg = Config(dict(train_dataloader=dataset('full', ann_file='none.json'), val_dataloader=dataset('full'),
                      test_dataloader=dataset('empty')))
    check_data(cfg, ['val_dataloader'])
    for config, wanted in (
            (cfg, dict(missing=['none.json'], found=['full'], empty=['empty'])),
            (load_config(MAIN_CONFIG, data_root=tmp_path), dict(
                found=['annotations/instances_train2017.json'],
                missing=['annotations/instances_val2017.json', 'train2017', 'val2017'])),
            (load_config('semfpn_xcit_n12_p16_ade20k', data_root=tmp_path), dict(empty=parts))):
        with pytest.raises(DataError, match='--data-root') as caught:
            check_data(config)
        states = {}
        for state, path in (line.split() for line in str(caught.value).splitlines() if line.startswith('  ')):
            states.setdefault(state, []).append(str(Path(path).relative_to(tmp_path)))
        assert {state: sorted(paths) for state, paths in states.items()} == wanted


def test_the_steps_of_a_data_set_are_of_its_own_framework():
    """The same name may be in both: what has label maps is mmseg's."""
    for kind, keys, framework in (
            ('CityscapesDataset', ['img_path'], 'mmseg'), ('CityscapesDataset', ['seg_map_path'], 'mmseg'),
            ('CityscapesDataset', [], 'mmdet'), ('ADE20KPanopticDataset', [], 'mmdet'),
            ('ImageFolderDataset', [], 'mmseg'), ('RefCocoDataset', ['img_path'], 'mmdet'),
            ('ADE20KSegDataset', ['img_path', 'seg_map_path'], 'mmdet'), ('ADE20KDataset', [], 'mmseg')):
        dataset = DataSet(dict(type=kind, data_prefix=dict.fromkeys(keys, 'x')))
        for found in (dataset.type, dataset.class_of('TRANSFORMS', 'LoadAnnotations')):
            assert found.__module__.split('.')[0] == framework or found is ImageFolderDataset, dataset.node


def test_folders_are_below_the_root_which_may_be_an_address():
    for options, wanted in ((dict(data_root='a', data_prefix=dict(img='b')), Path('a/b')),
                            (dict(data_root='a', data_prefix=dict(img='/b')), Path('/b')),
                            (dict(data_root=None, data_prefix=None), Path('.')),
                            (dict(data_root='~/a'), Path.home() / 'a')):
        assert DataSet(options).folder('img') == wanted
    cfg = Config(dict(train_dataloader=dict(dataset=dict(type='x', data_root='data/old', ann_file='a.json')),
                      val_evaluator=dict(ann_file='data/old/b/c.json')))
    set_data_root(cfg, 's3://bucket/new/')
    assert cfg.train_dataloader.dataset.data_root == 's3://bucket/new/'
    assert cfg.val_evaluator.ann_file == 's3://bucket/new/b/c.json'
    cfg.train_dataloader.dataset.update(data_root='data', backend_args=dict(backend='petrel'))
    set_data_root(cfg, 'keys')
    assert cfg.train_dataloader.dataset.data_root == 'keys'  # what a path_mapping of the backend replaces


@pytest.mark.parametrize('place', (
    dict(data_root='data', backend_args=dict(backend='petrel')), dict(data_root='s3://data/'),
    dict(ann_file=f's3://data/{ANNOTATIONS}'), dict(data_prefix=dict(img='s3://data/train2017/'))), ids=str)
def test_data_that_is_not_on_a_disk_is_left_to_the_framework(root, place):
    dataset = ConfigDict(coco(root, **place))
    only(check_data_set(dataset), 'not-checked')
    check_data(Config(dict(train_dataloader=dict(dataset=dataset))))
    with pytest.raises(DataError, match='classes_from_data=False'):
        classes_of_data(dataset)


@pytest.mark.parametrize('backend', (dict(backend='petrel'), dict(backend='lmdb', db_path='x')))
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # mmengine's own for LMDB, half built
def test_a_backend_that_does_not_answer_is_said_and_refuses_nothing(root, backend):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.update(backend_args=backend, metainfo=dict(classes=CLASSES))
    cfg.classes_from_data = False
    cfg.val_evaluator.ann_file = 's3://bucket/annotations.json'
    check_data(cfg, ['train_dataloader', 'val_dataloader'])
    check_before_training(cfg)
    only(check_data_set(folders(root, backend_args=backend)), 'not-checked')


def test_images_alone_may_be_elsewhere(root):
    """Where the step that loads maps their paths to another place."""
    (root / 'train2017').rename(root / 'kept')
    away = dict(backend='petrel', path_mapping={'a': 's3://a'})
    for step in (dict(backend_args=away), dict(file_client_args=dict(backend='petrel'))):
        dataset = coco(root, pipeline=[dict(type='LoadImageFromFile', **step)])
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))))
        assert kinds_in(dataset) == {'not-checked'} and classes_of_data(dataset)['classes'] == CLASSES
    for name in ('disk', 'local'):
        local = dict(backend_args=dict(backend=name))
        dataset = coco(root, pipeline=[dict(type='LoadImageFromFile', **local)], **local)
        assert kinds_in(dataset) == {'image-missing'}
    with pytest.raises(DataError, match='train2017'):
        check_data(Config(dict(train_dataloader=dict(dataset=dataset))))


def test_what_is_missing_is_told_and_the_run_goes_on_where_that_is_asked(root, capfd):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    rewrite(root, lambda content: content['categories'].reverse(), ANNOTATIONS.replace('train', 'val'))
    take_classes(cfg, on_findings='warn')
    assert cfg.model.roi_head.bbox_head.num_classes == 5
    cfg.val_dataloader.dataset.data_prefix.img = 'none'
    check_data(cfg, ['val_dataloader'], 'warn')
    assert str(root / 'none') in ''.join(capfd.readouterr())


@pytest.mark.parametrize('tool', ('train.py', 'test.py'))
def test_the_tools_name_the_file_of_a_metric_that_is_not_there(tool, call_tool, demo_data, tmp_path):
    """A training without validation needs none."""
    name = 'val' if tool == 'train.py' else 'test'
    file = [] if tool == 'train.py' else [tmp_path / 'weights.pth']
    code, text = call_tool(tool, TINY_CONFIG, *file, '--data-root', demo_data, '--work-dir', tmp_path,
                           '--cfg-options', f'{name}_evaluator.ann_file=gone.json')
    assert code == 1 and f'{name}_evaluator' in text and 'gone.json does not exist' in text


class MyAnnotations(LoadAnnotations):

    def __init__(self, with_mask=True, **options):
        super().__init__(with_mask=with_mask, **options)


def test_masks_are_looked_at_where_a_step_reads_them(root):
    rewrite(root, lambda content: [annotation.pop('segmentation') for annotation in content['annotations']])
    masks = dict(with_bbox=True, with_mask=True)
    for reads, steps in ((True, (
            dict(type='LoadAnnotations', **masks), dict(type=LoadAnnotations, **masks), dict(type=MyAnnotations),
            dict(type='RandomChoice', transforms=[[dict(type='Resize')], [dict(type='LoadAnnotations', **masks)]]),
            dict(type='MultiBranch', branch_field=['a'], a=dict(
                type='Compose', transforms=[dict(type='mmdet.LoadAnnotations', **masks)])))), (False, (
            dict(type='mmdet.LoadAnnotations', with_bbox=True), dict(type=LoadAnnotations), None,
            dict(type=MyAnnotations, with_mask=False), dict(type='of.nobody.Known')))):
        for step in steps:
            dataset = coco(root, pipeline=[step] if step else [])
            assert loads_masks(DataSet(dataset)) == loads_masks(DataSet(Config(dataset))) == reads, step
            assert kinds_in(dataset) == ({'mask-missing'} if reads else set()), step
