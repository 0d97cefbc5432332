"""Images of five channels all the way: checked, trained on, tested with pictures, predicted, and from Python."""
import json
import shutil

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample

import xcit_dense
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.errors import ConfigError
from xcit_dense.for_mmdet import ChannelsDetDataPreprocessor

pytestmark = pytest.mark.filterwarnings('ignore')
STATISTICS = 'mean=[1000., 2000., 500., 800., 1500.], std=[900., 1200., 400., 700., 1000.]'
CONFIGS = dict(det=(TINY_CONFIG, '', 'custom_imports = dict(imports=["xcit_dense", "xcit_dense.for_mmdet"])',
                    'type="ChannelsDetDataPreprocessor", bgr_to_rgb=False'),
               seg=(TINY_SEG_CONFIG, 'img_suffix="{}", seg_map_suffix=".png"', '', 'bgr_to_rgb=False'))


def five_channels(source, root, suffix):
    """Copy the generated data, with images of five channels of 16 bits."""
    shutil.copytree(source, root, ignore=shutil.ignore_patterns('classes', '.made_by*'))
    for path in root.rglob('*.jpg'):
        rgb = cv2.imread(str(path)).astype(np.uint16)[..., ::-1] * 16
        image = np.concatenate([rgb, 4095 - rgb[..., :2]], -1)
        path.unlink()
        if suffix == '.npy':
            np.save(path.with_suffix(suffix), image)
        else:
            cv2.imwritemulti(str(path.with_suffix(suffix)), [np.ascontiguousarray(image[..., i]) for i in range(5)])
    for path in (root / 'annotations').glob('*.json'):
        path.write_text(path.read_text().replace('.jpg', suffix))
    return root


def check(config, data, folder, run):
    done = run('check_data.py', config, '--data-root', data, '--out', folder / 'check', '--strict')
    sheet = cv2.imread(str(folder / 'check/train_dataloader.png'))
    assert sheet is not None and len(np.unique(sheet.reshape(-1, 3), axis=0)) > 500
    return done


@pytest.mark.parametrize('task, suffix', (('seg', '.npy'), pytest.param('det', '.tif', marks=pytest.mark.slow)))
def test_five_channels_all_the_way(task, suffix, demo_data, tmp_path):
    (base, dataset, imports, preprocessor), config = CONFIGS[task], tmp_path / 'five.py'
    data = five_channels(demo_data, tmp_path / 'data', suffix)
    parts = [f'{part} = dict(dataset=dict(pipeline=[load, *_base_.{pipeline}[1:]], {dataset.format(suffix)}))'
             for part, pipeline in (('train_dataloader', 'train_pipeline'), ('val_dataloader', 'test_pipeline'))]
    config.write_text('\n'.join([
        f'_base_ = "{base}"', imports, 'load = dict(type="LoadImageChannels", channels=5)', *parts,
        'test_dataloader = val_dataloader',
        f'model = dict(data_preprocessor=dict({preprocessor}, {STATISTICS}), backbone=dict(in_channels=5))']))
    run, images = tmp_path / 'run', data / ('val2017' if task == 'det' else 'images/validation')
    if task == 'det':
        check(config, data, tmp_path, run_tool)
    run_tool('train.py', config, '--data-root', data, '--work-dir', run, '--no-pretrained',
             *(('--iterations', 1) if task == 'seg' else ()))
    run_tool('test.py', config, run, '--data-root', data, '--work-dir', tmp_path / 'test', '--show-dir',
             tmp_path / 'shown')
    assert len([path for path in (tmp_path / 'shown').iterdir() if path.suffix != '.json']) == 3
    run_tool('predict.py', config, run, images, '--out', tmp_path / 'out', '--score-thr', '0.1')
    drawn = sorted((tmp_path / 'out').glob('*.jpg'))
    assert len(drawn) == 3 and cv2.imread(str(drawn[0])).std() > 20
    model, file = xcit_dense.load(config, run), sorted(images.glob(f'*{suffix}'))[0]
    if task == 'det':
        records = json.loads((tmp_path / 'out/results.json').read_text())
        assert {record['file_name'].rpartition('.')[2] for record in records} == {suffix[1:]}
        array = np.stack(cv2.imreadmulti(str(file), flags=-1)[1], -1)
        assert np.array_equal(model(array, threshold=0).boxes, model(file, threshold=0).boxes)
    else:
        assert np.array_equal(model(np.load(file)).labels, model(file).labels)


@pytest.mark.parametrize('channels, words', (
    (4, '5 channels, but the config reads 4'),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in ((None, 'LoadImageChannels'), (5, '')))))
def test_the_check_knows_arrays_that_the_config_does_not_read(channels, words, demo_data, tmp_path, call_tool):
    config = tmp_path / 'five.py'
    load = f'dict(type="LoadImageChannels", channels={channels})' if channels else 'dict(type="LoadImageFromFile")'
    loader = ('dict(dataset=dict(img_suffix=".npy", type="ADE20KDataset", '
              f'pipeline=[{load}, dict(type="PackSegInputs")]))')
    config.write_text(f'_base_ = "{TINY_SEG_CONFIG}"\n' + ''.join(
        f'{part}_dataloader = {loader}\n' for part in ('train', 'val', 'test')))
    code, _ = check(config, five_channels(demo_data, tmp_path / 'data', '.npy'), tmp_path, call_tool)
    assert code == bool(words) and words in (tmp_path / 'check/findings.json').read_text()


def test_each_channel_has_its_statistics():
    preprocess = ChannelsDetDataPreprocessor([1., 2., 3., 4., 5.], [1., 2., 1., 2., 1.])
    batch = preprocess(dict(inputs=[torch.full((5, 2, 2), 7.)], data_samples=[DetDataSample()]))
    assert batch['inputs'][0, :, 0, 0].tolist() == [6, 2.5, 4, 1.5, 2]
    for mean, std in (([0.] * 5, [1.] * 4), ([0.], [1.] * 5)):
        with pytest.raises(ConfigError, match='one number for each channel'):
            ChannelsDetDataPreprocessor(mean, std)
