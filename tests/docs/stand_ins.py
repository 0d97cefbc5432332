"""Small configs, data, checkpoints and images that replace those that the documentation names."""
import json
import os
import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from docs.documented import DROPPED
from mmdet.datasets import CocoDataset

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import build, config_name, nano
from helpers.tools import Done, run_tool
from xcit_dense import XCiTClassifier
from xcit_dense.config.loading import list_models, load_config, read_config
from xcit_dense.config.settings import Settings
from xcit_dense.weights import newest_checkpoint
from xcit_dense.weights.zoo import PREFIX, WEIGHTS, get_weights

#: Options of a command with more than this are run with this: time.
CAPS = {'--epochs': 1, '--iterations': 2, '--batch-size': 2, '--workers': 0, '--image-size': 64, '--size': 64,
        '--tile': 48, '--train': 4, '--val': 2}
#: The same for other words.
SMALLER = {'scale=(6000,4000)': 'scale=(96,64)', '--minutes': '--iterations'}
#: Options that make a run short where neither the command nor its config does.
SHORT = dict(train=('--image-size', '--epochs', '--batch-size', '--workers'),
             make_demo_data=('--train', '--val', '--size'))
_TASKS = dict(mmdet='detection', mmseg='segmentation', mmpretrain='classification')
_WIDTHS = {'in_channels', 'out_channels', 'feat_channels', 'conv_out_channels', 'channels', 'fc_out_channels',
           'embed_dim'}


def small_config(name, folder):
    """Write a config of the package with all its parts, but arch nano, narrow heads, small images and a short run."""
    path = Path(folder, f'{name}.py')
    if not path.exists():
        cfg = load_config(name)
        counted = 'epochs' if 'max_epochs' in cfg.train_cfg else 'iterations'
        cfg = nano(load_config(name, settings=Settings(image_size=CAPS['--image-size'], batch_size=2, workers=0,
                                                       **{counted: CAPS[f'--{counted}']})), keep_weights=True)
        for part in ('neck', 'decode_head', 'auxiliary_head', 'rpn_head', 'roi_head', 'bbox_head'):
            _narrow(cfg.model.get(part))
        path.parent.mkdir(parents=True, exist_ok=True)
        cfg.dump(path)
    return path


def _narrow(part, width=128):
    for key, value in part.items() if isinstance(part, dict) else ():
        if key in _WIDTHS and isinstance(value, int):
            part[key] = width
        for one in value if isinstance(value, (list, tuple)) else (value, ):
            _narrow(one, width)


class Place:
    """A folder in which the commands and the Python of a page run, with what they need from before; empty at first."""

    def __init__(self, folder, fixture):
        self.folder, self.fixture = folder, fixture
        self._data = {}  # options that the data at a path was made for
        self.variables = dict(TORCH_HOME=folder / 'torch', XDG_CACHE_HOME=os.environ['XDG_CACHE_HOME'])

    def path(self, text):
        """Return where a path of the documentation is here: absolute ones are below the folder."""
        return self.folder / re.sub(r'^[/~]+', '', str(text))

    def prepare(self, tool, words, args: Namespace):
        """Put everything that a command reads into the folder, and return its words for here."""
        words = [word for word in words if word not in DROPPED]
        given = {key: value for key, value in vars(args).items() if isinstance(value, str)}
        task, config = self._config(tool, given, args)
        work_dir = self.path(given.get('work_dir') or f'work_dirs/{Path(given.get("config", "")).stem}')
        if tool == 'train' and not (args.resume or args.overwrite or args.suggest):
            shutil.rmtree(work_dir, ignore_errors=True)  # two trainings of a fence in one work dir are a choice
        changed = {}
        if 'data_root' in given:
            changed[args.data_root] = str(self._data_folder(task, args))
            del given['data_root']
        for key, value in given.items():
            maker = getattr(self, f'_make_{key}', None)
            outside = value.startswith(('/', '~/'))
            path = self.path(value)
            if maker and not path.exists() and not value.startswith('http'):
                changed[value] = maker(task, path, value, args) or (str(path) if outside else value)
            elif outside:
                changed[value] = str(path)
        if config:
            changed[given['config']] = str(config)
            for name in re.findall(rf'{PREFIX}\w+', read_config(self.folder / config).pretty_text):
                self._fill_cache(name)
        words = [changed.get(word, word) for word in words]
        for large, small in SMALLER.items():
            words = [word.replace(large, small) for word in words]
        words = self._capped(tool, words, config)
        if getattr(args, 'resume', None) and not work_dir.exists():  # it goes on with a run of before
            self.run(tool, [word for word in words if word not in ('--resume', args.resume)])
        return words

    def prepare_python(self, code):
        """Put the files that a script names into the folder, which is the working one."""
        for name in re.findall(r"""['"]([\w./]+)['"]""", code):
            path = self.path(name)
            if path.exists():
                continue
            if name.startswith('work_dirs/'):
                make_run(self._run_of('detection'), path)
            elif name.endswith('.jpg'):
                make_images(self.fixture('demo_data'), path)
            elif name == 'DIR' and '.npy' in code:  # images of five channels, of which one is 0 and one 2,000
                for number, file in enumerate(('a.npy', 'deep/b.npy')):
                    (path / file).parent.mkdir(parents=True)
                    np.save(path / file, np.full((16, 16, 5), 2000 * number, np.uint16))

    def run(self, tool, words, variables=(), **options):
        """Run a tool in the folder; what a fixture has exported in the same way is taken from there."""
        if tool == 'export' and words[0] == str(TINY_CONFIG) and len(words) == 3:
            shutil.copy(self.fixture('exported'), self.folder / words[2])
            return Done(0, '')
        return run_tool(f'{tool}.py', *words, cwd=self.folder, env={
            key: str(value) for key, value in {**self.variables, **dict(variables)}.items()}, **options)

    def _config(self, tool, given, args):
        """Return the task of a command, and the config that replaces its own, if it has one."""
        name = given.get('config', '')
        family = Path(name).stem.partition('_xcit_')[0]
        task = ('classification' if tool == 'classify' or family.startswith('xcit') or getattr(args, 'size', None)
                else 'segmentation' if family in ('semfpn', 'upernet', 'segformer')
                or getattr(args, 'scores', False) else 'detection')
        if not name:
            return task, None
        if 'checkpoint' in vars(args) and args.checkpoint is None:  # a work dir in place of both
            if not self.path(name).is_dir():
                make_run(self._run_of(task), self.path(name))
            return task, None
        if self.path(name).is_file():
            return _TASKS[read_config(self.path(name)).default_scope], Path(name)
        checkpoint = given.get('checkpoint', '')
        if Path(name).stem in list_models() and (
                not checkpoint or checkpoint.startswith(PREFIX) or self.path(checkpoint).exists()):
            return task, small_config(Path(name).stem, self.folder / 'configs')
        # it comes with a checkpoint of before: that of a fixture, whose config it is
        tiny = dict(detection=TINY_CONFIG, segmentation=TINY_SEG_CONFIG)[task]
        if Path(name).suffix == '.py':  # mine.py
            self.path(name).write_text(f'_base_ = {str(tiny)!r}\n')
            return task, Path(name)
        return task, tiny

    def _data_folder(self, task, args):
        """Return the data folder of a command; it is written again if the command has other options than before."""
        path = self.path(args.data_root)
        if path.exists() and path not in self._data:
            path = path.with_name(f'{path.name}_data')  # the same placeholder for an output
        options = task, args.config.endswith('_coco')
        if self._data.get(path) != options:
            shutil.rmtree(path, ignore_errors=True)
            self._make_data(task, path, args)
            self._data[path] = options
        return path

    def _run_of(self, task):
        if task == 'classification':
            folder = self.folder / 'trained_classifier'
            if not folder.exists():
                folder.mkdir()
                _write_classifier(folder / 'epoch_1.pth', 16)
            return folder
        return self.fixture(dict(detection='trained', segmentation='trained_segmentor')[task])[0]

    def _make_checkpoint(self, task, path, value, args):
        if value.startswith(PREFIX) or value in WEIGHTS:
            self._fill_cache(value)
        elif value.endswith('.onnx'):
            shutil.copy(self.fixture('exported' if task == 'detection' else 'exported_segmentor'), path)
        elif hasattr(args, 'block') and not path.suffix:  # of `attention`, which shows blocks of a whole backbone
            path.mkdir(parents=True)
            _write_model(path / 'epoch_1.pth', 'maskrcnn_xcit_n12_p16_small', self.folder / 'configs')
        else:
            make_run(self._run_of(task), path)

    _make_init_from = _make_checkpoint

    def _make_source(self, task, path, value, args):
        if value.startswith(PREFIX):
            self._fill_cache(value)
        else:
            _write_classifier(path / 'epoch_1.pth' if value.startswith('work_dirs/') else path, 16, which=args.which)

    def _make_work_dir(self, task, path, value, args):
        if 'config' not in vars(args):  # of `plot_curves`: others write it
            make_run(self._run_of(task), path)

    def _make_images(self, task, path, value, args):
        make_images(self.fixture('demo_data'), path)

    def _make_data(self, task, path, args):
        if task == 'classification':
            shutil.copytree(self.fixture('demo_data') / 'classes', path)
            for part in ('train', 'val') if args.config.endswith('_imagenet') else ():  # as many classes as it has
                for number in range(1000 - len(list((path / part).iterdir()))):
                    (path / part / f'n{number:08}').mkdir()
        else:
            shutil.copytree(self.fixture('demo_data'), path, ignore=shutil.ignore_patterns('classes', '.made_by*'))
            for file in path.glob('annotations/*.json') if args.config.endswith('_coco') else ():
                content = json.loads(file.read_text())
                content['categories'] = [dict(id=number, name=name)
                                         for number, name in enumerate(CocoDataset.METAINFO['classes'], 1)]
                file.write_text(json.dumps(content))

    def _fill_cache(self, name):
        """Write random weights of a published file's layout, of arch nano, to where it would be kept."""
        weights = get_weights(name)
        path = self.folder / 'torch/hub/checkpoints' / weights.url.rpartition('/')[2]
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        family = name.removeprefix(PREFIX).removesuffix(weights.arch).strip('_')
        if family in ('maskrcnn', 'semfpn', 'upernet'):
            _write_model(path, config_name(family, weights.arch), self.folder / 'configs')
        else:
            _write_classifier(path, int(weights.arch.rpartition('p')[2]), head=not name.endswith('_dino'))

    def _capped(self, tool, words, config):
        """Cut numbers behind the options of `CAPS`, write one for a placeholder, and add what makes a run short."""
        found, option = [], ''
        for word in words:
            option = word if word.startswith('--') else option
            if option in CAPS and word != option:
                word = str(min(int(word), CAPS[option]) if word.isdecimal() else CAPS[option])
            found.append(word)
        options = SHORT.get(tool, ())
        if tool == 'train' and (config.is_absolute() or config.parent.name == 'configs' or '--suggest' in words):
            return found
        return found + [word for option in options if option not in words for word in (option, str(CAPS[option]))]


def make_run(source, path):
    """Copy a work dir to a path, or its newest checkpoint, or its config, with the names of the path."""
    is_file = path.suffix in ('.pth', '.py')
    folder = path.parent if is_file else path
    if not (is_file and folder.exists()):
        shutil.copytree(source, folder, dirs_exist_ok=True)
    if is_file:
        shutil.copy(newest_checkpoint(source) if path.suffix == '.pth' else next(source.glob('*.py')), path)


def make_images(data, path):
    images = sorted((data / 'val2017').iterdir())[:1 if path.suffix else 2]
    (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
    for file in images:
        shutil.copy(file, path)


def _write_classifier(path, patch_size, head=True, which=None):
    """Write a file of random weights, under ``model``, bare as DINO's, or with a second model, such as an average."""
    options = dict(norm_cfg=dict(type='BN'), **({} if head else dict(num_classes=0)))
    state = XCiTClassifier(f'nano_12_p{patch_size}', **options).state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = dict(model=state) if head else state
    torch.save({**content, which: state} if which else content, path)


def _write_model(path, name, folder):
    torch.save(dict(state_dict=build(read_config(small_config(name, folder))).state_dict()), path)
