"""Package of xcit_dense. Exact versions that are known to work together stand in requirements.txt."""
import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = next(line.split("'")[1] for line in (ROOT / 'xcit_dense/__init__.py').read_text().splitlines()
               if line.startswith('__version__'))

# Frameworks are extras, never requirements: mmcv and mmcv-lite install the same folder, and so do the maintained
# forks and the originals, so that requiring one would overwrite a user's other. What is missing or too old is said
# on import, with the command that mends it (xcit_dense/compat/versions.py).
FRAMEWORKS = runpy.run_path(str(ROOT / 'xcit_dense/compat/frameworks.py'))

class BuildWithConfigs(build_py):
    """Adds configs, tools and the model index as ``xcit_dense/.mim``, where mim and xcit_dense look."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # they are read from the checkout
        target = Path(self.build_lib, 'xcit_dense/.mim')
        for name in ('configs', 'tools'):
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns('__pycache__', 'model_table.py'))
        for name in ('model-index.yml', 'README.md'):
            shutil.copy(ROOT / name, target)


setup(
    name='xcit_dense',
    version=VERSION,
    description='XCiT backbones for detection and segmentation in OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    cmdclass=dict(build_py=BuildWithConfigs),
    packages=find_packages(include=['xcit_dense', 'xcit_dense.*']),
    package_data={'xcit_dense.data': ['imagenet_classes.txt']},
    entry_points=dict(console_scripts=['xcit-dense = xcit_dense.cli:main']),
    install_requires=['numpy', 'orjson', 'packaging', 'tqdm'],
    extras_require={
        **FRAMEWORKS['extras'](),
        'video': ['av'],
        'test': ['pytest', 'pytest-xdist', 'pytest-random-order', 'coverage', 'safetensors', 'ruff', 'av',
                 'supervision'],
    },
    classifiers=[
        'License :: OSI Approved :: Apache Software License',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
)
