"""XCiT as a backbone for dense prediction."""
from mmengine.registry import MODELS
from torch import Tensor

from ..archs import check_bool, check_out_indices, get_arch
from ..weights import load_backbone
from . import fast
from .norms import make_norm_factory
from .pyramid import PYRAMID_STRIDES, build_level
from .trunk import Trunk, init_linear


@MODELS.register_module()
class XCiT(Trunk):
    """Cross-Covariance Image Transformer with a feature pyramid.

    Paper: `XCiT: Cross-Covariance Image Transformers <https://arxiv.org/abs/2106.09681>`_. State-dict
    keys are those of the authors' released dense checkpoints.

    Args:
        arch: Size and patch by name (``'small_12_p8'``, see `xcit_dense.archs.arch_names`), or an
            `xcit_dense.archs.Arch`, or a dict of its fields.
        in_channels: Channels of the image.
        out_indices: Blocks whose tokens are returned, 0-based and ascending. Default: the arch's.
        out_strides: Stride of each map: 4, 8, 16 or 32, ascending, one for each of ``out_indices``.
            None returns the plain token maps of stride ``patch_size``, without layers, for other necks.
        drop_path_rate: Probability of stochastic depth, the same for every block.
        attn_drop_rate: Probability that an entry of the attention, channel by channel, is dropped in training.
        norm_cfg: Norm of stem, LPI and pyramid. The default is synchronised over the GPUs of a
            distributed run. Elsewhere it computes what a plain batch norm does, and mmengine's runner
            (on several CPUs: this package's) replaces it by one.
        frozen_stages: -1 trains everything; 0 freezes stem and positions; n also the first n blocks.
        norm_eval: Keep batch norms in evaluation mode while training (small batches, fine-tuning).
        channels_last: Whether the channels of the maps are last in memory, which is fast in most heads. Set False for a
            head that calls ``view`` on its maps, and fails with "view size is not compatible".
        with_cp: Activation checkpointing: the backward pass computes a block's activations again,
            so only one token map per block is kept. Hooks that change values must stay until then, or
            the gradients are wrong. With stochastic depth or dropout, train in one thread at a time:
            PyTorch's random numbers on a CPU are those of all threads.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_ADDRESS)`` starts from a file of the authors,
            of timm, mmpretrain or PASSL, or from a whole model; loading is strict
            (`xcit_dense.weights.load_backbone`, which also explains ``prefix``).

    Raises:
        ValueError: An argument, or the input of a call, is wrong; the message shows the value and what is allowed.
    """

    def __init__(self, arch='small_12_p16', *, in_channels: int = 3, out_indices=None, out_strides=PYRAMID_STRIDES,
                 drop_path_rate: float = 0., attn_drop_rate: float = 0., norm_cfg=dict(type='SyncBN'),
                 frozen_stages: int = -1, norm_eval: bool = False, channels_last: bool = True, with_cp: bool = False,
                 init_cfg=None):
        arch = get_arch(arch)
        out_indices = arch.out_indices if out_indices is None else out_indices
        check_out_indices(out_indices, arch.depth)
        norm = make_norm_factory(norm_cfg)
        # blocks after the last map would never run, and would be an error in a distributed run
        super().__init__(arch, out_indices[-1] + 1, norm, in_channels=in_channels, drop_path_rate=drop_path_rate,
                         attn_drop_rate=attn_drop_rate, frozen_stages=frozen_stages, norm_eval=norm_eval,
                         with_cp=with_cp, init_cfg=init_cfg)
        self.out_indices, self.channels_last = tuple(out_indices), check_bool('channels_last', channels_last)
        self.out_strides = _check_out_strides(out_strides, out_indices)
        for stride in self.out_strides or ():
            level = build_level(arch.embed_dims, arch.patch_size, stride, norm)
            setattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}', level)
        self.blocks.apply(init_linear)
        self._freeze()

    def load_weights(self, source, prefix: str = None):
        """Load a file as ``init_cfg`` does, with `xcit_dense.weights.load_backbone`."""
        load_backbone(self, source, prefix)

    def forward(self, x: Tensor) -> tuple:
        """Return the feature maps of a batch of images.

        Args:
            x: Images (B, in_channels, H, W), normalised, of a floating type; any H and W.

        Returns:
            A tuple with one map (B, C, h, w) for each of ``out_indices``. With t = ceil(H / patch), h is
            4t, 2t, t, floor(t/2) for patch 16 and 2t, t, floor(t/2), floor(t/4) for patch 8, at least 1;
            without a pyramid, every h is t. The same holds for w.
        """
        return self._run(x) if self.graphs is None else self.graphs(self._run, x)

    def _run(self, x):
        return self.pyramid(self.token_maps(x, self.out_indices))

    def pyramid(self, maps) -> tuple:
        """Return the feature maps of `forward` from the token maps of ``out_indices``, see `token_maps`."""
        if self.out_strides is not None:
            levels = (getattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}') for stride in self.out_strides)
            maps = [fast.run(level, x) for level, x in zip(levels, maps, strict=True)]
        return tuple(maps if self.channels_last else (x.contiguous() for x in maps))


def _check_out_strides(strides, out_indices):
    if strides is None:
        return None
    if not isinstance(strides, (tuple, list)) or list(strides) != [s for s in PYRAMID_STRIDES if s in strides]:
        raise ValueError(f'out_strides must be different strides from {PYRAMID_STRIDES} in ascending order, '
                         f'or None, got {strides!r}')
    if len(strides) != len(out_indices):
        raise ValueError(f'out_strides must have one stride for each of out_indices {tuple(out_indices)}, '
                         f'got {tuple(strides)}')
    return tuple(strides)
