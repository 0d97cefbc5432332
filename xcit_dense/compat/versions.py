"""Are the frameworks there, and do their versions work together?"""
import shlex
from contextlib import suppress
from importlib import metadata

from packaging.specifiers import SpecifierSet

from ..errors import SetupError
from .frameworks import CLASSIFICATION, MMCV_OF, STACKS, requirements

_NEEDED = ('torch', 'torchvision', 'mmengine', 'mmcv')
#: By import name: versions of every distribution that provides it.
_ACCEPTED = {**{name: {**STACKS['openmmlab'][name], **STACKS['onedl'][name]} for name in STACKS['openmmlab']},
             **CLASSIFICATION}


def check_versions(*needed: str):
    """Raise one error that names every missing, wrong or doubled framework and the command that mends it.

    Args:
        needed: Import names that must be there besides those of the backbone, such as ``'mmdet'``.
            Installed frameworks are checked whether needed or not, but for those of `CLASSIFICATION`.

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
            problems.append(f'{both} are installed at once and overwrite each other in the folder {name}')
            broken.append(name)
        elif not found and name in _NEEDED + needed:
            problems.append(f'{name} is not installed')
            broken.append(name)
        for distribution, version in found.items():
            accepted = _ACCEPTED[name][distribution]
            if not _lies_in(version, accepted):
                problems.append(f'{distribution} {version} is installed, {accepted} is needed')
                broken.append(name)
            limit = MMCV_OF.get(distribution, '')
            for mmcv, its_version in installed['mmcv'].items():
                if not _lies_in(its_version, limit):
                    problems.append(f'{distribution} {version} needs mmcv {limit}, {mmcv} {its_version} is installed')
                    broken.append('mmcv' if _stack(installed) == 'openmmlab' else name)
    if problems:
        raise SetupError(f'xcit_dense cannot run here: {"; ".join(problems)}. Mend it with: {_mend(broken)}')


def reinstall_mmcv(*, compiled: bool) -> str:
    """The command that installs mmcv anew, with ops compiled for the installed torch or with none."""
    installed = _installed()
    requirement, = requirements(_stack(installed))['mmcv']
    options = '--no-deps --no-cache-dir'  # the cache may hold the other kind, built before
    if compiled:
        requirement = requirement.replace('mmcv-lite', 'mmcv')
        options += ' --no-build-isolation'  # in isolation there is no torch to compile for, and mmcv goes without
    return f'pip uninstall -y {" ".join(installed["mmcv"])} && pip install {options} {shlex.quote(requirement)}'


def _mend(names):
    """The command that leaves one provider of each of these frameworks, all of the stack that is there."""
    installed = _installed()
    stack = _stack(installed)
    first = {name: next(iter(providers)) for name, providers in {**STACKS[stack], **CLASSIFICATION}.items()}
    names = set(names)
    if names & {'torch', 'torchvision'}:
        names |= {'torch', 'torchvision'}  # compiled for each other
    if 'mmcv' in names:  # the one of the stack brings its mmengine, and mmdet and mmseg of the other may refuse it
        names |= {name for name, found in installed.items() if found.keys() - {first[name]}}
    names = [name for name in first if name in names]
    unwanted = [distribution for name in names if list(installed[name]) != [first[name]]
                for distribution in installed[name]]
    asked = ' '.join(shlex.quote(part) for name in names for part in requirements(stack)[name])
    return (f'pip uninstall -y {" ".join(unwanted)} && ' if unwanted else '') + f'pip install {asked}'


def _stack(installed):
    """Which stack to complete: that of the forks as soon as one of them is there."""
    forks = {distribution for name, known in STACKS['openmmlab'].items() for distribution in installed[name]
             if distribution not in known}
    return 'onedl' if forks else 'openmmlab'


def _lies_in(version, accepted):
    return SpecifierSet(accepted).contains(version, prereleases=True)


def _installed():
    """By import name: the installed distributions that provide it, with their versions."""
    installed = {name: {} for name in _ACCEPTED}
    for name, distributions in _ACCEPTED.items():
        for distribution in distributions:
            with suppress(metadata.PackageNotFoundError):
                installed[name][distribution] = metadata.version(distribution)
    return installed
