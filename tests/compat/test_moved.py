"""What was written before modules moved: imports, pickles, a dumped config and the checkpoint of its run."""
import importlib.util
import json
import operator
import re

import pytest
import torch
from mmengine.registry import MODELS

import xcit_dense
from helpers.paths import ROOT
from helpers.tools import python, run_tool
from xcit_dense import models
from xcit_dense.weights import read_checkpoint

NANO = dict(arch='nano_12_p8')


@pytest.mark.parametrize('path, kind, options', (
    ('backbone.XCiT', xcit_dense.XCiT, NANO), ('benchmark.plain.PlainXCiT', xcit_dense.ReferenceXCiT, NANO),
    ('layers.XCABlock', xcit_dense.XCABlock, dict(arch=xcit_dense.get_arch('nano_12_p8'), norm=torch.nn.BatchNorm2d)),
    ('xca.XCA', models.xca.XCA, dict(embed_dims=8, num_heads=2))))
def test_old_import_paths_lead_to_the_same_objects(path, kind, options):
    """In a dumped config, a pickle, and an import."""
    assert type(MODELS.build(dict(type=f'xcit_dense.{path}', **options))) is kind
    module, _, name = f'xcit_dense.{path}'.rpartition('.')
    found = importlib.import_module(module)
    assert getattr(found, name) is kind and importlib.util.find_spec(module).name == module
    assert operator.attrgetter(f'{module}.{name}'.removeprefix('xcit_dense.'))(xcit_dense) is kind


@pytest.mark.integration
@pytest.mark.parametrize('name', ('model', 'fused'))
def test_models_that_version_0_1_pickled_compute_what_they_did(name):
    """Also in a process that has not imported the package yet; written by commit f1d1645."""
    path = ROOT / 'tests/golden/models_of_0_1.pt'
    out = python(f"""
import torch
file = torch.load({str(path)!r}, weights_only=False)
model = file[{name!r}]
with torch.no_grad():
    level, = model(file['image'])
print((level - file['level']).norm().item() / file['level'].norm().item() < 5e-6, model.training,
      [model.train().blocks[0].drop_path.rate] if {name == 'model'} else model.is_fused)
""")
    assert out.split() == ['True', 'False', '[0.1]' if name == 'model' else 'True']


#: An old name, and the module that has it now.
PLACES = """
catalog.get_config config.loading, zoo.WEIGHTS weights.zoo, checkpoint.read_checkpoint weights.read,
checkpoint.convert.convert weights.convert, checkpoint.files.kind_of_file weights.files,
demo_data.make_demo_data data.demo, data_check.check_data_set data.check.check,
data_check.findings.Finding data.check.findings, data_files.read_json data.files, engine.build_runner train.runner,
engine.config.load_config config.loading, engine.config.set_amp config.options, engine.data.take_classes data.classes,
engine.data.find_images data.datasets, engine.hooks.FuseHook train.hooks, engine.loops.DenseIterLoop train.loops,
engine.runner.DenseRunner train.runner, engine.saving.DenseCheckpointHook train.saving,
engine.startup.StartupHook train.startup, engine.sharding.wrap_blocks train.sharding,
engine.loading.ResumableLoader train.loaders, engine.segmentation.ImageFolderDataset data.image_folders,
engine.settings.differences config.check.keys, engine.predict.build_predictor predict.predictor,
engine.check_config.check_config config.check"""


@pytest.mark.integration
def test_old_names_can_be_imported():
    """In a process that has loaded nothing else, as users import them, and as attributes of the package."""
    lines = ['import sys, xcit_dense', 'assert xcit_dense.zoo.WEIGHTS and xcit_dense.engine.build_runner']
    for place in PLACES.split(','):
        old, new = place.split()
        module, _, name = old.rpartition('.')
        lines += [f'from xcit_dense.{module} import {name} as old', f'from xcit_dense.{new} import {name} as new',
                  f'assert old is new, {old!r}']
    python('\n'.join(lines))


def test_a_run_of_version_0_1_goes_on_from_its_dumped_config_and_checkpoint(demo_data, tmp_path):
    """Written by commit 0324f58, which also ran on without the stop: its losses are those below."""
    checkpoint = ROOT / 'tests/golden/run_of_0_1.pth'
    (tmp_path / 'dumped.py').write_text(read_checkpoint(checkpoint)['meta']['cfg'])
    done = run_tool('train.py', 'dumped.py', '--resume', checkpoint, '--data-root', demo_data, '--work-dir', 'run',
                    '--cfg-options', 'train_cfg.max_iters=4', cwd=tmp_path)
    assert 'Failed to search registry' not in done.stdout
    file, = tmp_path.glob('run/*/vis_data/scalars.json')
    losses = {line['step']: line['loss'] for line in map(json.loads, file.read_text().splitlines()) if 'loss' in line}
    assert losses == pytest.approx({3: 1.7762670119603474, 4: 1.7833096385002136}, rel=1e-5)
    log, = tmp_path.glob('run/*/*.log')
    changed, = re.findall(r'settings that differ from before:\n((?:  .*\n)+)', log.read_text())
    assert [line.split(':')[0].strip() for line in changed.splitlines()] == [
        'data_root', 'test_dataloader.dataset.data_root', 'train_cfg.max_iters', 'train_dataloader.dataset.data_root',
        'val_dataloader.dataset.data_root']
