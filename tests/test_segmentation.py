"""Segmentation through the tools, and data sets of images and label maps."""
import json
import re
import shutil

import cv2
import numpy as np
import pytest
import torch
from conftest import ROOT, SAMPLES, TINY_SEG_CONFIG, run_tool
from mmengine.registry import DATASETS, init_default_scope
from mmseg.structures import SegDataSample

from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.data.demo import CLASSES
from xcit_dense.errors import DataError
from xcit_dense.for_mmseg import LowMemoryEncoderDecoder
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.train.curves import read_curves
from xcit_dense.weights import read_checkpoint

NAMES = ('background', *CLASSES)


def test_training_evaluates_and_saves(trained_segmentor):
    work_dir, output = trained_segmentor
    assert re.search(r'Iter\(train\) +\[4/4\].*eta: .*loss: ', output)
    assert re.search(r'Iter\(val\).*aAcc: .*mIoU: ', output)
    assert all(re.search(rf'\| +{name} +\|', output) for name in NAMES)  # IoU per class
    checkpoint = read_checkpoint(work_dir)
    assert tuple(checkpoint['meta']['dataset_meta']['classes']) == NAMES
    assert checkpoint['state_dict']['decode_head.conv_seg.weight'].shape[0] == len(NAMES)
    curves = read_curves(work_dir)
    assert [step for step, _ in curves['loss']] == [1, 2, 3, 4]
    assert [step for step, _ in curves['val/mIoU']] == [2, 4]


def test_resume_goes_on_where_it_stopped(trained_segmentor, demo_data, tmp_path):
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--resume',
                    trained_segmentor[0] / 'iter_2.pth')
    assert 'resumed epoch: 0, iter: 2' in done.stdout
    assert [step for step, _ in read_curves(tmp_path)['loss']] == [3, 4]


def test_testing_draws_ground_truth_beside_predictions(trained_segmentor, demo_data, tmp_path):
    done = run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir', tmp_path,
                    '--show-dir', tmp_path / 'pictures', '--at-least', 'mIoU=0')
    assert re.search(r'Iter\(test\).*mIoU: ', done.stdout)
    pictures = sorted((tmp_path / 'pictures').iterdir())
    truth = sorted((demo_data / 'images/validation').iterdir())
    assert [p.name for p in pictures] == [p.name for p in truth]
    for picture, image in zip(pictures, truth, strict=True):
        height, width, _ = cv2.imread(str(image)).shape
        assert cv2.imread(str(picture)).shape == (height, width * 2, 3)


def test_pictures_of_sub_folders_do_not_overwrite_each_other(trained_segmentor, demo_data, tmp_path):
    for part in ('images', 'annotations'):
        for scene in ('x', 'y'):
            shutil.copytree(demo_data / part / 'validation', tmp_path / part / 'validation' / scene)
    shutil.copy(demo_data / 'classes.txt', tmp_path)
    run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', tmp_path, '--work-dir', tmp_path / 'run',
             '--show-dir', tmp_path / 'pictures')
    assert len(list((tmp_path / 'pictures').glob('[xy]/*.jpg'))) == 6


def test_prediction_writes_pictures_and_label_maps(trained_segmentor, demo_data, tmp_path):
    done = run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], demo_data / 'images/validation', '--out',
                    tmp_path / 'out', cwd=tmp_path)
    assert '3 pictures and 3 label maps' in done.stdout
    for image in (demo_data / 'images/validation').iterdir():
        labels = cv2.imread(str(tmp_path / f'out/labels/{image.stem}.png'), cv2.IMREAD_UNCHANGED)
        picture = cv2.imread(str(tmp_path / f'out/{image.name}'))
        assert labels.shape == picture.shape[:2] == cv2.imread(str(image)).shape[:2]
        assert labels.dtype == np.uint8 and labels.max() < len(NAMES)
    assert json.loads((tmp_path / 'out/classes.json').read_text()) == {str(i): n for i, n in enumerate(NAMES)}


def test_predicted_label_maps_are_numbered_as_the_data(trained_segmentor, demo_data, tmp_path):
    """The evaluation of the tool and one by hand from the written label maps agree."""
    args = [TINY_SEG_CONFIG, trained_segmentor[0]]
    run_tool('predict.py', *args, demo_data / 'images/validation', '--out', tmp_path)
    done = run_tool('test.py', *args, '--data-root', demo_data, '--work-dir', tmp_path / 'test')
    right = total = 0
    for path in (tmp_path / 'labels').iterdir():
        truth = cv2.imread(str(demo_data / 'annotations/validation' / path.name), cv2.IMREAD_UNCHANGED)
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        right, total = right + (labels == truth).sum(), total + truth.size
    accuracy = float(re.search(r'Iter\(test\).*aAcc: ([\d.]+)', done.stdout)[1])
    assert accuracy == pytest.approx(100 * right / total, abs=0.011)  # the log rounds


def folders(root, names=('a', 'b'), suffix='.png', labels=(0, 1, 255)):
    """A data set of two images and label maps."""
    for part in ('training', 'validation'):
        (root / 'images' / part).mkdir(parents=True)
        (root / 'annotations' / part).mkdir(parents=True)
        for name in names:
            cv2.imwrite(str(root / 'images' / part / f'{name}{suffix}'), np.zeros((4, 6, 3), np.uint8))
            maps = np.resize(np.array(labels, np.uint8), (4, 6))
            cv2.imwrite(str(root / 'annotations' / part / f'{name}.png'), maps)
    return root


def config_of(root):
    return load_config(TINY_SEG_CONFIG, data_root=root)


def test_class_names_come_from_the_list(tmp_path):
    (folders(tmp_path) / 'classes.txt').write_text('sky\nsea\nboat\n\n')
    cfg = config_of(tmp_path)
    take_classes(cfg)
    assert cfg.val_dataloader.dataset.metainfo.classes == ('sky', 'sea', 'boat')
    assert cfg.model.decode_head.num_classes == 3


def test_without_a_list_classes_are_the_labels(tmp_path):
    cfg = config_of(folders(tmp_path, labels=(0, 4, 255)))
    take_classes(cfg)
    assert cfg.train_dataloader.dataset.metainfo.classes == ('0', '1', '2', '3', '4')


@pytest.mark.parametrize('text, words', (
    (b'sky\nsky\n', 'each once'), (b'sky\n\nsea\n', 'none empty'), (b'', 'none empty'), (b'\xff\xfe', 'decode')))
def test_bad_list_of_classes(tmp_path, text, words):
    (folders(tmp_path) / 'classes.txt').write_bytes(text)
    with pytest.raises(DataError, match=words):
        take_classes(config_of(tmp_path))


@pytest.mark.parametrize('listed', (True, False))
@pytest.mark.parametrize('part', ('training', 'validation'))
def test_label_maps_that_cannot_be_used_are_named(listed, part, tmp_path):
    folders(tmp_path)
    if listed:
        (tmp_path / 'classes.txt').write_text('sky\nsea\n')
    path = tmp_path / f'annotations/{part}/b.png'
    cv2.imwrite(str(path), np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=f'{path} is no label map.*RGB'):
        take_classes(config_of(tmp_path))
    cv2.imwrite(str(path), np.full((4, 6), 7, np.uint8))
    if listed or part == 'validation':
        with pytest.raises(DataError, match=f'{path} has the label 7; there are 2 classes'):
            take_classes(config_of(tmp_path))
    path.write_bytes(b'no picture')
    with pytest.raises(DataError, match=f'{path} cannot be read'):
        take_classes(config_of(tmp_path))


def test_label_maps_may_be_links_and_have_a_suffix_of_their_own(tmp_path):
    """As when the framework reads them; to refuse links out of the data root is the data check's part."""
    folders(tmp_path / 'data', labels=(0, 1, 2))
    for path in (tmp_path / 'data').glob('annotations/*/*.png'):
        kept = tmp_path / f'{path.parent.name}_{path.name}'
        path.rename(kept)
        path.with_name(f'{path.stem}_labels.png').symlink_to(kept)
    cv2.imwrite(str(tmp_path / 'data/annotations/training/a_colours.png'), np.zeros((4, 6, 3), np.uint8))
    cfg = config_of(tmp_path / 'data')
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.seg_map_suffix = '_labels.png'
    take_classes(cfg)
    assert cfg.model.decode_head.num_classes == 3
    (tmp_path / 'training_b.png').unlink()
    with pytest.raises(DataError, match='b_labels.png cannot be read: it is not there'):
        take_classes(cfg)


@pytest.mark.parametrize('labels', ((255, ), (0, 255)))
def test_one_class_is_refused(labels, tmp_path):
    with pytest.raises(DataError, match='segmentation needs two.*255 is ignored'):
        take_classes(config_of(folders(tmp_path, labels=labels)))


def build_dataset(root):
    cfg = config_of(root)
    take_classes(cfg)
    init_default_scope('mmseg')
    return DATASETS.build(cfg.train_dataloader.dataset)


@pytest.mark.parametrize('suffix', ('.png', '.jpg', '.bmp', '.TIF'))
def test_images_of_any_format(tmp_path, suffix):
    dataset = build_dataset(folders(tmp_path, suffix=suffix))
    records = [dataset.get_data_info(i) for i in range(len(dataset))]
    assert [r['img_path'] for r in records] == [str(tmp_path / f'images/training/{n}{suffix}') for n in 'ab']
    assert [r['seg_map_path'] for r in records] == [str(tmp_path / f'annotations/training/{n}.png') for n in 'ab']


def test_image_without_label_map_is_named(tmp_path):
    (folders(tmp_path) / 'annotations/training/b.png').unlink()
    with pytest.raises(DataError, match=r'training/b\.png has no label map'):
        build_dataset(tmp_path)


def test_two_images_for_one_label_map_are_named(tmp_path):
    folders(tmp_path)
    shutil.copy(tmp_path / 'images/training/a.png', tmp_path / 'images/training/a.bmp')
    with pytest.raises(DataError, match=r'a\.bmp and .*a\.png have the same label map'):
        build_dataset(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'ade20k_sample').is_dir(), reason='no ADE20k sample beside the checkout')
def test_small_config_learns_from_real_images(tmp_path):
    """The small config on 20 images of ADE20k: the classes out of the maps, and a loss that clearly falls."""
    done = run_tool('train.py', ROOT / 'configs/semfpn_xcit_n12_p16_small.py', '--data-root',
                    SAMPLES / 'ade20k_sample/ADEChallengeData2016', '--work-dir', tmp_path, '--cfg-options',
                    'train_cfg.max_iters=80', 'train_cfg.val_interval=80')
    assert re.search(r'the classes are the labels 0 to 1\d\d in ', done.stdout)
    losses = [value for _, value in read_curves(tmp_path)['loss']]
    assert losses[-1] < 0.75 * losses[0], losses


@pytest.mark.slow
@pytest.mark.skipif(not (SAMPLES / 'ade20k_sample').is_dir(), reason='no ADE20k sample beside the checkout')
@pytest.mark.parametrize('name', ('semfpn_xcit_s12_p16_ade20k', 'upernet_xcit_s12_p16_ade20k'))
def test_full_configs_train_and_evaluate_real_images(name, tmp_path):
    done = run_tool('measure.py', name, '--data-root', SAMPLES / 'ade20k_sample/ADEChallengeData2016',
                    '--iterations', 2, '--images', 2, '--out', tmp_path / 'out.json')
    result = json.loads((tmp_path / 'out.json').read_text())['training']
    assert len(result['losses']) == 2 and {'mIoU', 'aAcc', 'mAcc'} <= set(result['metrics'])
    assert re.search(r'\| +wall +\|', done.stdout)


def test_large_images_are_predicted_with_some_classes_at_a_time(trained_segmentor, demo_data, monkeypatch):
    """The same labels as mmseg's, through padding, a flip and both resizes."""
    cfg = load_config(TINY_SEG_CONFIG, data_root=str(demo_data), pretrained=False)
    take_classes(cfg)
    model = build_predictor(cfg, trained_segmentor[0]).model
    assert isinstance(model, LowMemoryEncoderDecoder) and model.decode_head.out_channels == 6
    images = torch.randn(2, 3, 64, 96)
    torch.nn.init.normal_(model.decode_head.conv_seg.weight)
    with torch.no_grad():  # every class's mean score is 0, so that several win, whatever was drawn
        model.decode_head.conv_seg.bias -= model.encode_decode(images, [dict(img_shape=(64, 96))]).mean((0, 2, 3))

    def predict():
        samples = [SegDataSample(metainfo=dict(ori_shape=shape, img_shape=(60, 90), pad_shape=(64, 96),
                                               img_padding_size=(0, 6, 0, 4), flip=flip, flip_direction='horizontal'))
                   for shape, flip in (((120, 181), True), ((57, 80), False))]
        return model.predict(images, samples)

    with torch.no_grad():
        wanted = predict()
        monkeypatch.setattr(LowMemoryEncoderDecoder, 'SCORES', 1000)
        got = predict()
    for a, b in zip(got, wanted, strict=True):
        assert 'seg_logits' in b and 'seg_logits' not in a
        assert len(b.pred_sem_seg.data.unique()) > 1
        assert torch.equal(a.pred_sem_seg.data, b.pred_sem_seg.data)
