"""Package of xcit_dense. Exact versions that are known to work together stand in requirements.txt."""
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = next(line.split("'")[1] for line in (ROOT / 'xcit_dense/__init__.py').read_text().splitlines()
               if line.startswith('__version__'))

# Frameworks are extras, never requirements: mmcv and mmcv-lite install the same folder, and so do the maintained
# forks and the originals, so that requiring one would overwrite a user's other. What is missing or too old is said
# on import, with the command that mends it (xcit_dense/compat/versions.py).
TORCH = ['torch>=2.6', 'torchvision>=0.21']

setup(
    name='xcit_dense',
    version=VERSION,
    description='XCiT backbones for detection and segmentation in OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['xcit_dense', 'xcit_dense.*']),
    install_requires=['numpy', 'packaging', 'tqdm'],
    extras_require={
        'openmmlab': TORCH + [
            'mmengine>=0.10.4,<1', 'mmcv-lite>=2.0.1,<2.2', 'mmdet>=3.2,<4', 'mmsegmentation>=1.2,<2', 'ftfy', 'regex'
        ],
        'onedl': TORCH + [
            'onedl-mmengine>=0.10.8,<1', 'onedl-mmcv>=2.3,<3', 'onedl-mmdetection>=3.4,<4',
            'onedl-mmsegmentation>=1.3,<2'
        ],
        'test': ['pytest', 'safetensors', 'ruff'],
    },
    classifiers=[
        'License :: OSI Approved :: Apache Software License',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
)
