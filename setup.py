"""Package of xcit_dense. requirements.txt has exact versions that work together."""
import re
import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = next(line.split("'")[1] for line in (ROOT / 'xcit_dense/__init__.py').read_text().splitlines()
               if line.startswith('__version__'))

#: Address of the source files, such as 'https://github.com/NAME/xcit_dense/blob/main'. While it is empty, relative
#: links of the README are plain text in the package's description.
SOURCE_URL = ''

# Frameworks are extras, never requirements: mmcv and mmcv-lite install the same folder, and so do the maintained forks
# and the originals. A requirement would overwrite the one that a user has. If one is missing or too old, the import
# raises an error with the command that fixes it (xcit_dense/compat/versions.py).
FRAMEWORKS = runpy.run_path(str(ROOT / 'xcit_dense/compat/versions.py'))


def description():
    """Return the README with links that work outside the repository; without `SOURCE_URL` only their text is left."""

    def replace(found):
        picture, text, target = found.groups()
        if not SOURCE_URL:
            return '' if picture else text
        return f'{picture}[{text}]({SOURCE_URL}/{target}{"?raw=true" if picture else ""})'

    link = r'(!?)\[([^\[\]]*)\]\((?![a-z]+:|#)([^()\s]+)\)'
    parts = re.split(r'(^```.*?^```$)', (ROOT / 'README.md').read_text(), flags=re.M | re.S)  # every other one is code
    parts[::2] = [re.sub(link, replace, text) for text in parts[::2]]
    return ''.join(parts)


class BuildWithConfigs(build_py):
    """Adds configs, tools, docs and the model index as ``xcit_dense/.mim``, where mim and xcit_dense look for them."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # the package reads them from the checkout
        target = Path(self.build_lib, 'xcit_dense/.mim')
        for name in ('configs', 'tools'):
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns('__pycache__', 'model_table.py'))
        shutil.rmtree(target / 'docs', ignore_errors=True)
        (target / 'docs').mkdir()
        for page in (ROOT / 'docs').glob('*.md'):
            shutil.copy(page, target / 'docs')
        for name in ('model-index.yml', 'README.md'):
            shutil.copy(ROOT / name, target)


setup(
    name='xcit_dense',
    version=VERSION,
    description='XCiT backbones for detection and segmentation in OpenMMLab',
    long_description=description(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    keywords='XCiT, vision transformer, backbone, object detection, instance segmentation, semantic segmentation, '
             'image classification, OpenMMLab, mmdetection, mmsegmentation, mmpretrain, PyTorch',
    project_urls={'Source': SOURCE_URL.partition('/blob/')[0]} if SOURCE_URL else {},
    python_requires='>=3.10',
    cmdclass=dict(build_py=BuildWithConfigs),
    packages=find_packages(include=['xcit_dense', 'xcit_dense.*']),
    package_data={'xcit_dense.data': ['imagenet_classes.txt'], 'xcit_dense.report': ['template/*']},
    entry_points=dict(console_scripts=['xcit-dense = xcit_dense.cli:main']),
    install_requires=['numpy', 'orjson', 'packaging', 'pycocotools', 'tqdm'],
    extras_require={
        **FRAMEWORKS['extras'](),
        'video': ['av'],
        'export': ['onnx>=1.18', 'onnxscript>=0.5', 'onnxruntime>=1.20'],
        'openvino': ['openvino>=2025.0'],
        'tensorboard': ['tensorboard'],
        'wandb': ['wandb'],
        'test': ['pytest', 'pytest-xdist', 'pytest-random-order', 'coverage', 'safetensors', 'ruff', 'av', 'build',
                 'twine', 'supervision', 'onnx', 'onnxscript', 'onnxruntime', 'openvino',
                 'tensorboard', 'wandb'],
    },
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
)
