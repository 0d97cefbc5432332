"""Are the frameworks there, and do their versions work together?"""
from importlib import metadata

from packaging.specifiers import SpecifierSet

from ..errors import SetupError

#: Import name: distributions that provide it (originals, then maintained forks), accepted versions, and the
#: requirement that mends it.
_FRAMEWORKS = {
    'torch': (('torch', ), '>=2.6', 'torch torchvision'),
    'torchvision': (('torchvision', ), '>=0.21', 'torch torchvision'),
    'mmengine': (('mmengine', 'mmengine-lite', 'onedl-mmengine'), '>=0.10.4,<1', 'mmengine>=0.10.4,<1'),
    'mmcv': (('mmcv', 'mmcv-lite', 'onedl-mmcv'), '>=2.0.1,<3', 'mmcv-lite==2.1.0'),
    'mmdet': (('mmdet', 'onedl-mmdetection'), '>=3.2,<4', 'mmdet==3.3.0'),
    'mmseg': (('mmsegmentation', 'onedl-mmsegmentation'), '>=1.2,<2', 'mmsegmentation==1.2.2 ftfy regex'),
}
_NEEDED = ('torch', 'torchvision', 'mmengine', 'mmcv')
#: The original mmdet and mmseg refuse newer mmcv; the forks do not.
_MMCV_OF_ORIGINALS = '<2.2'


def check_versions(*needed: str):
    """Raise one error that names every missing or wrong framework and the command that mends it.

    Args:
        needed: Import names that must be there besides those of the backbone, such as ``'mmdet'``.
            Installed frameworks are checked whether needed or not.

    Raises:
        SetupError: Something is missing, or has a version that does not work.
    """
    problems, mends = [], []
    found = {}
    for name, (distributions, accepted, mend) in _FRAMEWORKS.items():
        found[name] = installed = _installed(distributions)
        if installed is None:
            if name in _NEEDED + needed:
                problems.append(f'{name} is not installed')
                mends.append(mend)
            continue
        distribution, version = installed
        if not SpecifierSet(accepted).contains(version, prereleases=True):
            problems.append(f'{distribution} {version} is installed, {accepted} is needed')
            mends.append(mend)
    mmcv = found['mmcv']
    if mmcv and not mmcv[0].startswith('onedl') and not SpecifierSet(_MMCV_OF_ORIGINALS).contains(mmcv[1]):
        for user in filter(None, (found['mmdet'], found['mmseg'])):
            if not user[0].startswith('onedl'):
                problems.append(f'{user[0]} {user[1]} needs mmcv {_MMCV_OF_ORIGINALS}, {mmcv[0]} {mmcv[1]} '
                                'is installed')
                mends.append(f'{mmcv[0]}==2.1.0')
    if problems:
        quoted = ' '.join(f"'{part}'" if '<' in part or '>' in part else part
                          for mend in dict.fromkeys(mends) for part in mend.split())
        raise SetupError(f'xcit_dense cannot run here: {"; ".join(problems)}. Mend it with: pip install {quoted}')


def _installed(distributions):
    for name in distributions:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
