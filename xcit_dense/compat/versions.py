"""Are the frameworks installed, and do their versions work together?"""
import shlex
from contextlib import suppress
from importlib import metadata

from ..errors import SetupError
from .frameworks import CLASSIFICATION, MMCV_OF, STACKS, requirements

_NEEDED = ('torch', 'torchvision', 'mmengine', 'mmcv')
#: By import name: versions of every distribution that provides it.
_ACCEPTED = {**{name: {**STACKS['openmmlab'][name], **STACKS['onedl'][name]} for name in STACKS['openmmlab']},
             **CLASSIFICATION}


def check_versions(*needed: str):
    """Raise one error that names every missing, wrong or doubled framework and the command that fixes it.

    Args:
        needed: Import names that must be installed in addition to those of the backbone, such as ``'mmdet'``.
            Installed frameworks are checked even if not needed, except those of `CLASSIFICATION`.

    Raises:
        SetupError: Something is missing, installed by two distributions, or of a version that does not work.
    """
    installed = _installed()
    problems, broken = [], []
    for name, found in installed.items():
        if name in CLASSIFICATION and name not in needed:
            continue
        if len(found) > 1:
            both = ' and '.join(f'{distribution} {version}' for distribution, version in found.items())
            problems.append(f'{both} are installed together and overwrite each other in the folder {name}')
            broken.append(name)
        elif not found and name in _NEEDED + needed:
            problems.append(f'{name} is not installed')
            broken.append(name)
        for distribution, version in found.items():
            accepted = _ACCEPTED[name][distribution]
            if not _is_in(version, accepted):
                problems.append(f'{distribution} {version} is installed, {accepted} is needed')
                broken.append(name)
            limit = MMCV_OF.get(distribution, '')
            for mmcv, its_version in installed['mmcv'].items():
                if not _is_in(its_version, limit):
                    problems.append(f'{distribution} {version} needs mmcv {limit}, {mmcv} {its_version} is installed')
                    broken.append('mmcv' if _stack(installed) == 'openmmlab' else name)
    if problems:
        raise SetupError(f'xcit_dense cannot run: {"; ".join(problems)}. Fix it with: {_fix_for(broken)}')


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
