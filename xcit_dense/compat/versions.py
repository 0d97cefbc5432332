"""Which distributions provide each framework, which of their versions work, and whether those are installed.

setup.py runs this file alone, so nothing of the package is imported at its top.
"""
import shlex
from contextlib import suppress
from importlib import metadata

_TORCH = {'torch': {'torch': '>=2.6'}, 'torchvision': {'torchvision': '>=0.21'}}

#: By stack, then by import name: the distributions that install this folder, the preferred one first.
STACKS = {
    'openmmlab': {
        **_TORCH,
        'mmengine': {'mmengine': '>=0.10.4,<1', 'mmengine-lite': '>=0.10.4,<1'},
        'mmcv': {'mmcv-lite': '>=2.0.1', 'mmcv': '>=2.0.1'},
        'mmdet': {'mmdet': '>=3.2,<4'},
        'mmseg': {'mmsegmentation': '>=1.2,<2'},
    },
    'onedl': {  # the maintained forks
        **_TORCH,
        'mmengine': {'onedl-mmengine': '>=0.10.8,<1'},
        'mmcv': {'onedl-mmcv': '>=2.3,<3'},
        'mmdet': {'onedl-mmdetection': '>=3.4,<4'},
        'mmseg': {'onedl-mmsegmentation': '>=1.3,<2'},
    },
}
#: What classifiers need in addition, with either stack: a separate extra, which nothing else checks.
CLASSIFICATION = {
    'mmpretrain': {'mmpretrain': '>=1.2,<2'},
    'transformers': {'transformers': '<5'},  # mmpretrain imports it, and fails to import with version 5
}
#: The mmcv versions that these accept when they are imported, whichever distribution provides mmcv.
MMCV_OF = {'mmdet': '<2.2', 'mmsegmentation': '<2.2'}
#: What these import without declaring it as a requirement.
_UNDECLARED = {'mmsegmentation': ['ftfy', 'regex']}
_NEEDED = ('torch', 'torchvision', 'mmengine', 'mmcv')
#: By import name: versions of every distribution that provides it.
_ACCEPTED = {**{name: {**STACKS['openmmlab'][name], **STACKS['onedl'][name]} for name in STACKS['openmmlab']},
             **CLASSIFICATION}


def requirements(stack):
    """Return, by import name, what pip must install so that the frameworks of a stack and `CLASSIFICATION` work."""
    providers = {**STACKS[stack], **CLASSIFICATION}
    first = {name: next(iter(known)) for name, known in providers.items()}
    asked = {name: [distribution + providers[name][distribution], *_UNDECLARED.get(distribution, ())]
             for name, distribution in first.items()}
    limits = {MMCV_OF[distribution] for distribution in first.values() if distribution in MMCV_OF}
    asked['mmcv'][0] = ','.join([asked['mmcv'][0], *limits])
    return asked


def extras():
    """Return the extras of setup.py, the stacks and classification, with the requirements of each."""
    parts = {**{stack: (stack, STACKS[stack]) for stack in STACKS}, 'classification': ('openmmlab', CLASSIFICATION)}
    return {extra: [asked for name in names for asked in requirements(stack)[name]]
            for extra, (stack, names) in parts.items()}


def check_versions(*needed: str):
    """Raise one `SetupError` that names every missing, wrong or doubled framework and the command that fixes it.

    Args:
        needed: Import names that must be installed in addition to those of the backbone, such as ``'mmdet'``.
            Installed frameworks are checked even if not needed, except those of `CLASSIFICATION`.
    """
    from ..errors import SetupError
    installed = _installed()
    problems = []  # the framework to replace, and what is wrong
    for name, found in installed.items():
        if name in CLASSIFICATION and name not in needed:
            continue
        if len(found) > 1:
            both = ' and '.join(f'{distribution} {version}' for distribution, version in found.items())
            problems.append((name, f'{both} are installed together and overwrite each other in the folder {name}'))
        elif not found and name in _NEEDED + needed:
            problems.append((name, f'{name} is not installed'))
        for distribution, version in found.items():
            accepted, limit = _ACCEPTED[name][distribution], MMCV_OF.get(distribution, '')
            if not _is_in(version, accepted):
                problems.append((name, f'{distribution} {version} is installed, {accepted} is needed'))
            other = 'mmcv' if _stack(installed) == 'openmmlab' else name
            problems += [(other, f'{distribution} {version} needs mmcv {limit}, {mmcv} {its_version} is installed')
                         for mmcv, its_version in installed['mmcv'].items() if not _is_in(its_version, limit)]
    if problems:
        names, texts = zip(*problems, strict=True)
        raise SetupError(f'xcit_dense cannot run: {"; ".join(texts)}. Fix it with: {_fix_for(names)}')


def reinstall_mmcv(*, compiled: bool) -> str:
    """Return the command that reinstalls mmcv, with ops compiled for the installed torch or without ops."""
    installed = _installed()
    requirement, = requirements(_stack(installed))['mmcv']
    options = '--no-deps --no-cache-dir'  # the cache may hold the other kind, built before
    if compiled:
        requirement = requirement.replace('mmcv-lite', 'mmcv')
        options += ' --no-build-isolation'  # in isolation there is no torch, and mmcv builds without ops
    return f'pip uninstall -y {" ".join(installed["mmcv"])} && pip install {options} {shlex.quote(requirement)}'


def _fix_for(names):
    """Return the command that leaves one provider of each of these frameworks, all from the installed stack."""
    installed = _installed()
    stack = _stack(installed)
    first = {name: next(iter(providers)) for name, providers in {**STACKS[stack], **CLASSIFICATION}.items()}
    names = set(names)
    if names & {'torch', 'torchvision'}:
        names |= {'torch', 'torchvision'}  # compiled for each other
    if 'mmcv' in names:  # it installs the mmengine of its stack, and mmdet and mmseg of the other may reject it
        names |= {name for name, found in installed.items() if found.keys() - {first[name]}}
    names = [name for name in first if name in names]
    unwanted = [distribution for name in names if list(installed[name]) != [first[name]]
                for distribution in installed[name]]
    asked = ' '.join(shlex.quote(part) for name in names for part in requirements(stack)[name])
    return (f'pip uninstall -y {" ".join(unwanted)} && ' if unwanted else '') + f'pip install {asked}'


def _stack(installed):
    """Return which stack to complete: the forks, if any of them is installed."""
    forks = {distribution for name, known in STACKS['openmmlab'].items() for distribution in installed[name]
             if distribution not in known}
    return 'onedl' if forks else 'openmmlab'


def _is_in(version, accepted):
    from packaging.specifiers import SpecifierSet  # may be missing too if nothing is installed
    return SpecifierSet(accepted).contains(version, prereleases=True)


def _installed():
    """Return, by import name, the installed distributions that provide it, with their versions."""
    installed = {name: {} for name in _ACCEPTED}
    for name, distributions in _ACCEPTED.items():
        for distribution in distributions:
            with suppress(metadata.PackageNotFoundError):
                installed[name][distribution] = metadata.version(distribution)
    return installed
