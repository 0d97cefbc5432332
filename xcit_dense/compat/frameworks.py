"""Which distributions provide each framework, and the versions of them that work.

Read by `versions.py`, and by setup.py, which runs this file alone: it imports nothing.
"""

_TORCH = {'torch': {'torch': '>=2.6'}, 'torchvision': {'torchvision': '>=0.21'}}

#: By stack, then by import name: the distributions that install that folder, the one to ask for first.
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
#: What classifiers need besides, of either stack. It is an extra of its own, and nothing else minds what is there.
CLASSIFICATION = {
    'mmpretrain': {'mmpretrain': '>=1.2,<2'},
    'transformers': {'transformers': '<5'},  # mmpretrain imports it, and does not import beside 5
}
#: What these assert of mmcv, whoever provides it, when they are imported.
MMCV_OF = {'mmdet': '<2.2', 'mmsegmentation': '<2.2'}
#: What these import and do not require.
_UNDECLARED = {'mmsegmentation': ['ftfy', 'regex']}


def requirements(stack):
    """What to ask pip for so that the frameworks of a stack, and `CLASSIFICATION`, work together: by import name."""
    providers = {**STACKS[stack], **CLASSIFICATION}
    first = {name: next(iter(known)) for name, known in providers.items()}
    asked = {name: [distribution + providers[name][distribution], *_UNDECLARED.get(distribution, ())]
             for name, distribution in first.items()}
    limits = {MMCV_OF[distribution] for distribution in first.values() if distribution in MMCV_OF}
    asked['mmcv'][0] = ','.join([asked['mmcv'][0], *limits])
    return asked


def extras():
    """The extras of setup.py with what each asks pip for: the stacks, and classification."""
    parts = {**{stack: (stack, STACKS[stack]) for stack in STACKS}, 'classification': ('openmmlab', CLASSIFICATION)}
    return {extra: [asked for name in names for asked in requirements(stack)[name]]
            for extra, (stack, names) in parts.items()}
