"""Stem, positions and XCA blocks: what the dense model and the classifier have in common."""
import threading
import weakref
from contextlib import contextmanager
from numbers import Real

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .._utils.text import type_name
from ..archs import Arch, check_bool, check_int, check_out_indices
from ..compat.internals import keep_sizes_dynamic
from . import fast
from .block import XCABlock
from .positions import FourierPositions
from .stem import ConvPatchEmbed
from .tokens import map_to_tokens, tokens_to_map


class Trunk(BaseModule):
    """From images to tokens, block by block. The base of `xcit_dense.XCiT` and `xcit_dense.XCiTClassifier`.

    Args:
        depth, norm: Number of blocks to build, and a callable that builds a batch norm for a number of channels.
        in_channels, drop_path_rate, attn_drop_rate, frozen_stages, norm_eval, with_cp, init_cfg: As for
            `xcit_dense.XCiT`, with its errors.
    """

    #: A method that loads weights from the checkpoint and the prefix of ``init_cfg``; see `xcit_dense.weights`.
    load_weights = None

    #: A `xcit_dense.models.graphs.Graphs` that runs the model, or None.
    graphs = None

    def __init__(self, arch: Arch, depth: int, norm, *, in_channels, drop_path_rate, attn_drop_rate=0.,
                 frozen_stages, norm_eval, with_cp, init_cfg):
        super().__init__(init_cfg)
        self.is_fused = False
        _find_pretrained(init_cfg)
        self.arch = arch
        self.in_channels = check_int('in_channels', in_channels, 1)
        _check_rate('drop_path_rate', drop_path_rate)
        _check_rate('attn_drop_rate', attn_drop_rate)
        self.frozen_stages = check_int('frozen_stages', frozen_stages, -1, depth)
        self.norm_eval = check_bool('norm_eval', norm_eval)
        self.with_cp = check_bool('with_cp', with_cp)

        self.patch_embed = ConvPatchEmbed(in_channels, arch.embed_dims, arch.patch_size, norm)
        self.pos_embeder = FourierPositions(arch.embed_dims)
        self.blocks = nn.ModuleList(XCABlock(arch, norm, drop_path_rate, attn_drop_rate) for _ in range(depth))

    @property
    def embed_dims(self) -> int:
        """Channels C of every token."""
        return self.arch.embed_dims

    @property
    def min_size(self) -> int:
        """Smallest height and width of an image, in pixels."""
        return 1

    def init_weights(self):
        """Load the weights that ``init_cfg`` names, or keep the initial ones of the constructor."""
        if pretrained := _find_pretrained(self.init_cfg):
            self.load_weights(pretrained['checkpoint'], pretrained.get('prefix'))
            self._is_init = True
        elif self.init_cfg:
            super().init_weights()

    def train(self, mode: bool = True):
        """Set the training mode. Frozen parts stay in evaluation mode, and with ``norm_eval`` batch norms do too.

        Raises:
            ValueError: The model is fused.
        """
        if mode and self.is_fused:
            raise ValueError(f'this {type(self).__name__} is fused and stays in evaluation mode. To train it, or to '
                             'use a tool that switches it to training mode, build a new model.')
        super().train(mode)
        if mode:
            norms = [module for module in self.modules() if isinstance(module, _BatchNorm)] if self.norm_eval else []
            for module in (*self._frozen_parts(), *norms):
                module.eval()
        return self

    def fuse(self):
        """Fold the batch norms of stem and pyramid into their convolutions, for inference, and return the model.

        Outputs change only by rounding: relative 1e-5 at most in float32. What was replaced, wrapped or hooked is left
        as it is. There is no way back to training: parameters are gone, and the state dict fits only a model that is
        fused too, so save the model before. If the model, or a part of it, is used elsewhere, fuse a copy.
        """
        if not self.is_fused:
            self.eval().requires_grad_(False)
            stem = [self.patch_embed.proj] if type(self.patch_embed) is ConvPatchEmbed else []
            for part in (*stem, *(level for name, level in self.named_children() if name.startswith('fpn'))):
                fast.fuse(part)
            self.is_fused = True
        return self

    def compile_blocks(self, **options):
        """Compile the XCA blocks for images of any size: one graph for all of them, so that it takes a fraction of the
        time that `torch.compile` takes for the whole model.

        Options are those of `torch.compile`. With Inductor, every compiled model of this process then calls torch's own
        gradient of convolutions.
        """
        if options.get('backend', 'inductor') == 'inductor':
            keep_sizes_dynamic()
        for block in self.blocks:
            block.compile(dynamic=True, **options)

    def token_maps(self, x: Tensor, blocks) -> list:
        """Return the patch tokens after some XCA blocks, as maps; blocks after the last of them do not run.

        Args:
            x: Images as for ``forward``.
            blocks: Indices of the blocks, 0-based and ascending, as ``out_indices`` of `xcit_dense.XCiT`.

        Returns:
            A map (B, C, h, w) for each block, with h = ceil(H / patch).
        """
        if not torch.compiler.is_compiling():
            check_out_indices(blocks, len(self.blocks), 'blocks')
        x, height, width = self._embed(x)
        maps = []
        for i, block in enumerate(self.blocks):
            x = self._run_block(block, x, height, width)
            if i in blocks:
                maps.append(tokens_to_map(x, height, width))
            if i == blocks[-1]:
                break
        return maps

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple:
        """Return the depth of a parameter, 0 in the stem, and the number of depths, as backbones of mmpretrain do."""
        layers = [('patch_embed.', 'pos_embeder.'), *(f'{part}.{i}.' for part in ('blocks', 'cls_attn_blocks')
                                                      for i in range(len(getattr(self, part, ()))))]
        name = param_name.removeprefix(prefix)
        return next((i for i, start in enumerate(layers) if name.startswith(start)), len(layers)), len(layers) + 1

    def _embed(self, x):
        """Return the tokens (B, N, C) of images before the first block, height and width of their grid."""
        self._check_input(x)
        x = self.patch_embed(x)
        height, width = x.shape[-2:]
        positions = self.pos_embeder(x.detach())  # it uses only size, type and device of x
        x = (map_to_tokens(x) + map_to_tokens(positions)).contiguous()
        # no view, and of the type that autocast gives it later: so a compiler makes one graph for all blocks
        x = x.to(torch.promote_types(x.dtype, next(self.pos_embeder.parameters(), x).dtype))
        return x, height, width

    def _run_block(self, block, *args):
        if not (self.with_cp and torch.is_grad_enabled()):
            return block(*args)
        if type(args[0]) is not Tensor and not torch.compiler.is_compiling() and fast.are_traceable(args[:1]):
            args = args[0].as_subclass(Tensor), *args[1:]  # a checkpoint runs the block again on a plain tensor
        # a compiled graph updates the running statistics only once by itself, and does not accept this context
        context = {} if torch.compiler.is_compiling() else dict(context_fn=_Recompute(block).contexts)
        return checkpoint(block, *args, use_reentrant=False, **context)

    def _frozen_parts(self):
        frozen = self.frozen_stages
        return [] if frozen < 0 else [self.patch_embed, self.pos_embeder, *self.blocks[:frozen]]

    def _freeze(self):
        for part in self._frozen_parts():
            part.requires_grad_(False)

    def _check_input(self, x):
        if torch.compiler.is_compiling() or isinstance(x, torch.fx.Proxy):
            return  # a traced graph accepts the sizes that its shape constraints allow
        if x.dim() != 4:
            raise ValueError(f'images must have shape (B, {self.in_channels}, H, W), got {tuple(x.shape)}')
        if not x.is_floating_point():
            raise ValueError(f'images must be normalised, of a floating type, got {x.dtype}')
        if x.shape[1] != self.in_channels:
            raise ValueError(f'XCiT was built for in_channels={self.in_channels}, got an image of shape '
                             f'{tuple(x.shape)}')
        if min(x.shape[-2:]) < self.min_size:
            raise ValueError(f'XCiT needs images of at least {self.min_size} x {self.min_size}, got {x.shape[-2]} x '
                             f'{x.shape[-1]}')


def _check_rate(name, value):
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f'{name} must be a number in [0, 1), got {value!r}')


def _find_pretrained(init_cfg):
    """Return the part of ``init_cfg`` that names weights, or None; raise ``ValueError`` if it is not valid."""
    parts = init_cfg if isinstance(init_cfg, (list, tuple)) else [init_cfg or {}]
    if not any(type_name(part.get('type')) in ('Pretrained', 'PretrainedInit') for part in parts):
        return None
    if len(parts) > 1 or not parts[0].get('checkpoint') or set(parts[0]) - {'type', 'checkpoint', 'prefix'}:
        raise ValueError("init_cfg must be a single dict(type='Pretrained', checkpoint=FILE_OR_ADDRESS), with prefix "
                         f'as the only other key, got {init_cfg!r}')
    return parts[0]


def init_linear(module):
    """Initialise linear layers: truncated normal of std 0.02, bias 0. Convolutions keep the framework's default."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


_locks = weakref.WeakKeyDictionary()  # by block: of all threads that train a model, one runs it


class _Recompute:
    """Runs a checkpointed block a second time with the buffers of the first time, and the fast path on or off as then.

    So a batch is counted into the running statistics only once, and power iterations start at the same point. Each
    backward through the graph enters it.
    """

    def __init__(self, block):
        self._block, self._lock = block, _locks.setdefault(block, threading.RLock())
        self._is_fast = fast.is_on()

    def contexts(self):
        """Return the contexts of the first run and of the others, as `torch.utils.checkpoint` wants them."""
        return self._first(), self

    @contextmanager
    def _first(self):
        with self._lock:
            self._owners = [(module, name) for module in self._block.modules() for name in module._buffers
                            if module._buffers[name] is not None]
            self._start = [getattr(*owner).clone() for owner in self._owners]
            yield

    def __enter__(self):
        self._lock.acquire()
        try:
            self._now = [getattr(*owner) for owner in self._owners]
        except AttributeError:  # a buffer was removed
            self._lock.release()
            raise
        for owner, value in zip(self._owners, self._start, strict=True):
            setattr(*owner, value.clone())
        self._switch = fast.set_fast(self._is_fast)

    def __exit__(self, *error):
        self._switch.__exit__(*error)
        for owner, value in zip(self._owners, self._now, strict=True):
            setattr(*owner, value)
        self._lock.release()


def backbones_of(model) -> list:
    """Return every XCiT and `XCiTClassifier` in a model."""
    return [module for module in model.modules() if isinstance(module, Trunk)]


def fuse_backbones(model):
    """Fuse every backbone of a model (see `XCiT.fuse`) and return the model."""
    for backbone in backbones_of(model):
        backbone.fuse()
    return model
