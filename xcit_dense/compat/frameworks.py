"""Which distributions provide each framework, and which of their versions work.

Read by `versions.py`, and by setup.py, which runs this file alone: it imports nothing.
"""

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
