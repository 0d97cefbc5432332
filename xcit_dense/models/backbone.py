"""XCiT as a backbone for dense prediction."""
from numbers import Real

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..archs import check_out_indices, get_arch
from ..weights import load_backbone
from . import fast
from .block import XCABlock, is_as_built
from .norms import make_norm_factory
from .positions import FourierPositions
from .pyramid import PYRAMID_STRIDES, build_level
from .stem import ConvPatchEmbed
from .tokens import map_to_tokens, tokens_to_map


@MODELS.register_module()
class XCiT(BaseModule):
    """Cross-Covariance Image Transformer with a feature pyramid.

    Paper: `XCiT: Cross-Covariance Image Transformers <https://arxiv.org/abs/2106.09681>`_. State-dict
    keys are those of the authors' released dense checkpoints.

    Args:
        arch: Size and patch by name (``'small_12_p8'``, see `xcit_dense.archs.arch_names`), or an
            `xcit_dense.archs.Arch`, or a dict of its fields.
        in_channels: Channels of the image.
        out_indices: Blocks whose tokens are given out, 0-based and ascending. Default: the arch's.
        out_strides: Stride of each map, from 4, 8, 16 and 32, ascending and one per ``out_indices``.
            None gives the plain token maps of stride ``patch_size``, without layers, for other necks.
        drop_path_rate: Probability of stochastic depth, the same for every block.
        attn_drop_rate: Probability that an entry of the attention, channel by channel, is dropped in training.
        norm_cfg: Norm of stem, LPI and pyramid. The default synchronises over the GPUs of a
            distributed run. Elsewhere it computes what a plain batch norm does, and mmengine's runner
            (on several CPUs: this package's) puts one in its place.
        frozen_stages: -1 trains everything; 0 freezes stem and positions; n also the first n blocks.
        norm_eval: Keep batch norms in evaluation mode while training (small batches, fine-tuning).
        with_cp: Activation checkpointing: a block's activations are computed again in the backward,
            so that one token map per block is kept.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_ADDRESS)`` starts from a file of the authors,
            of timm, mmpretrain or PASSL, or from a whole model; loading is strict
            (`xcit_dense.weights.load_backbone`, which also says what ``prefix`` is for).

    Raises:
        ValueError: An argument, or the input of a call, is wrong; the message gives the value and
            what is allowed.
    """

    def __init__(self,
                 arch='small_12_p16',
                 *,
                 in_channels: int = 3,
                 out_indices=None,
                 out_strides=PYRAMID_STRIDES,
                 drop_path_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 norm_cfg=dict(type='SyncBN'),
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 init_cfg=None):
        super().__init__(init_cfg)
        self.is_fused = False
        _find_pretrained(init_cfg)
        self.arch = arch = get_arch(arch)
        self.in_channels = _check_int('in_channels', in_channels, 1)
        self.out_indices = arch.out_indices if out_indices is None else out_indices
        check_out_indices(self.out_indices, arch.depth)
        self.out_strides = _check_out_strides(out_strides, self.out_indices)
        _check_rate('drop_path_rate', drop_path_rate)
        _check_rate('attn_drop_rate', attn_drop_rate)
        self.frozen_stages = _check_int('frozen_stages', frozen_stages, -1, self.out_indices[-1] + 1)
        self.norm_eval = _check_bool('norm_eval', norm_eval)
        self.with_cp = _check_bool('with_cp', with_cp)

        norm = make_norm_factory(norm_cfg)
        self.patch_embed = ConvPatchEmbed(in_channels, arch.embed_dims, arch.patch_size, norm)
        self.pos_embeder = FourierPositions(arch.embed_dims)
        # blocks behind the last map would never run; in a distributed run they would be an error
        depth = self.out_indices[-1] + 1
        self.blocks = nn.ModuleList(XCABlock(arch, norm, drop_path_rate, attn_drop_rate) for _ in range(depth))
        for stride in self.out_strides or ():
            level = build_level(arch.embed_dims, arch.patch_size, stride, norm)
            setattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}', level)
        self.blocks.apply(_init_linear)
        self._freeze()

    @property
    def embed_dims(self) -> int:
        """Channels of every output map."""
        return self.arch.embed_dims

    @property
    def min_size(self) -> int:
        """Smallest height and width of an image, in pixels: the smallest map still has one cell."""
        pooled = max(self.out_strides or (1, )) // self.arch.patch_size
        return (max(pooled, 1) - 1) * self.arch.patch_size + 1

    def init_weights(self):
        """Load the weights that ``init_cfg`` names, or leave the fresh ones of the constructor."""
        pretrained = _find_pretrained(self.init_cfg)
        if pretrained:
            load_backbone(self, pretrained['checkpoint'], pretrained.get('prefix'))
            self._is_init = True
        elif self.init_cfg:
            super().init_weights()

    def forward(self, x: Tensor) -> tuple:
        """Give the feature maps of a batch of images.

        Args:
            x: Images (B, in_channels, H, W), normalised, of a floating type; any H and W from
                `min_size` up.

        Returns:
            A tuple with one map (B, C, h, w) per ``out_indices``. With t = ceil(H / patch), h is 4t,
            2t, t, floor(t/2) for patch 16 and 2t, t, floor(t/2), floor(t/4) for patch 8; t each
            without pyramid.
        """
        self._check_input(x)
        x = self.patch_embed(x)
        height, width = x.shape[-2:]
        x = map_to_tokens(x + self.pos_embeder(x.detach())).contiguous()  # its sizes, type and device
        outs = []
        for i, block in enumerate(self.blocks):
            x = self._run_block(block, x, height, width)
            if i in self.out_indices:
                outs.append(tokens_to_map(x, height, width))
        if self.out_strides is None:
            return tuple(outs)
        return tuple(fast.run(self._level(stride), out) for stride, out in zip(self.out_strides, outs, strict=True))

    def train(self, mode: bool = True):
        """Set the training mode; frozen parts stay in evaluation mode, batch norms too with ``norm_eval``.

        Raises:
            ValueError: The model is fused.
        """
        if mode and self.is_fused:
            raise ValueError('this XCiT is fused and stays in evaluation mode; to train it, or to let a tool switch it '
                             'to training mode, build it anew')
        super().train(mode)
        if mode:
            for part in self._frozen_parts():
                part.eval()
            if self.norm_eval:
                for module in self.modules():
                    if isinstance(module, _BatchNorm):
                        module.eval()
        return self

    def fuse(self):
        """Fold LayerScale and most norms into the weights beside them, for inference, and return the model.

        Outputs change by rounding only: in float32 by 1e-5 of them at most. What was replaced, wrapped or hooked is
        left as it is. There is no way back to training: parameters are gone, and the state dict is another one. Fuse a
        copy where the model, or a part of it, is used elsewhere.
        """
        if not self.is_fused:
            self.eval().requires_grad_(False)
            fast.fuse(self.patch_embed.proj if type(self.patch_embed) is ConvPatchEmbed else None,
                      [block for block in self.blocks if is_as_built(block)],
                      [self._level(stride) for stride in self.out_strides or ()])
            self.is_fused = True
        return self

    def _run_block(self, block, x, height, width):
        if not (self.with_cp and torch.is_grad_enabled()):
            return block(x, height, width)
        # a compiled graph counts the running statistics once by itself, and takes no such context
        context = {} if torch.compiler.is_compiling() else dict(context_fn=_Recompute(block).contexts)
        return checkpoint(block, x, height, width, use_reentrant=False, **context)

    def _level(self, stride):
        return getattr(self, f'fpn{PYRAMID_STRIDES.index(stride) + 1}')

    def _frozen_parts(self):
        if self.frozen_stages < 0:
            return []
        return [self.patch_embed, self.pos_embeder, *self.blocks[:self.frozen_stages]]

    def _freeze(self):
        for part in self._frozen_parts():
            part.requires_grad_(False)

    def _check_input(self, x):
        if torch.compiler.is_compiling() or isinstance(x, torch.fx.Proxy):
            return  # a traced graph takes the sizes that its shape constraints allow
        if x.dim() != 4:
            raise ValueError(f'XCiT takes images of shape (B, {self.in_channels}, H, W), got {tuple(x.shape)}')
        if not x.is_floating_point():
            raise ValueError(f'XCiT takes normalised images of a floating type, got {x.dtype}')
        if x.shape[1] != self.in_channels:
            raise ValueError(f'XCiT was built for in_channels={self.in_channels}, got an image of shape '
                             f'{tuple(x.shape)}')
        if min(x.shape[-2:]) < self.min_size:
            raise ValueError(f'XCiT with patch {self.arch.patch_size} and strides {self.out_strides} takes images '
                             f'from {self.min_size} x {self.min_size} up, got {x.shape[-2]} x {x.shape[-1]}')


def _check_int(name, value, low, high=None):
    """Return ``value`` if it is an integer from ``low`` to ``high``, else raise ``ValueError``."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return value
    upper = '' if high is None else f' to {high}'
    raise ValueError(f'{name} must be an integer from {low}{upper}{" up" if high is None else ""}, got {value!r}')


def _check_bool(name, value):
    if not isinstance(value, bool):
        raise ValueError(f'{name} must be True or False, got {value!r}')
    return value


def _check_rate(name, value):
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f'{name} must be a number in [0, 1), got {value!r}')


def _find_pretrained(init_cfg):
    """Return the part of ``init_cfg`` that names weights, or None; raise ``ValueError`` if it cannot be followed."""
    parts = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
    pretrained = [part for part in parts if _name_of_type(part.get('type')) in ('Pretrained', 'PretrainedInit')]
    if not pretrained:
        return None
    valid = len(parts) == 1 and parts[0].get('checkpoint') and set(parts[0]) <= {'type', 'checkpoint', 'prefix'}
    if not valid:
        raise ValueError("init_cfg must be dict(type='Pretrained', checkpoint=FILE_OR_ADDRESS), alone and with no "
                         f'other key than prefix, got {init_cfg!r}')
    return pretrained[0]


def _name_of_type(kind):
    """Return the last part of the name of a type given as text, with or without a scope, or as a class."""
    return getattr(kind, '__name__', str(kind).rpartition('.')[2])


def _check_out_strides(strides, out_indices):
    if strides is None:
        return None
    valid = isinstance(strides, (tuple, list)) and all(s in PYRAMID_STRIDES for s in strides) \
        and list(strides) == sorted(set(strides))
    if not valid:
        raise ValueError(f'out_strides must be different strides from {PYRAMID_STRIDES} in ascending order, '
                         f'or None, got {strides!r}')
    if len(strides) != len(out_indices):
        raise ValueError(f'out_strides must have one stride for each of out_indices {tuple(out_indices)}, '
                         f'got {tuple(strides)}')
    return tuple(strides)


def _init_linear(module):
    """Linear layers: truncated normal of std 0.02, bias 0. Convolutions keep the framework's default."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class _Recompute:
    """Runs a checkpointed block again as it ran: with its buffers as they were, in the same forms.

    So a batch is counted once into running statistics, power iterations start where they started, and a hook that was
    taken off or a switch that was turned since changes nothing. Each backward through the graph enters it anew.

    Args:
        block: The block, about to run.
    """

    def __init__(self, block):
        self._owners = [(module, name) for module in block.modules() for name in module._buffers
                        if module._buffers[name] is not None]
        self._start = [getattr(*owner).clone() for owner in self._owners]
        self._routes = fast.Routes()

    def contexts(self):
        """Return the contexts of the first run and of the others, as `torch.utils.checkpoint` wants them."""
        return self._routes.recorded(), self

    def __enter__(self):
        self._now = [getattr(*owner) for owner in self._owners]
        for owner, value in zip(self._owners, self._start, strict=True):
            setattr(*owner, value.clone())
        self._repetition = self._routes.repeated()
        self._repetition.__enter__()

    def __exit__(self, *error):
        self._repetition.__exit__(*error)
        for owner, value in zip(self._owners, self._now, strict=True):
            setattr(*owner, value)
