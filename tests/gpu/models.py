"""Models with random parameters, and what a step of one gives, part by part."""
import random

import torch
from torch import Tensor

from benchmarks.models import randomise
from gpu.checking import Check, worst
from helpers.models import loss_of, relative_error
from xcit_dense.archs import Arch, get_arch
from xcit_dense.config.loading import get_config
from xcit_dense.models import PYRAMID_STRIDES, ReferenceXCiT, XCiT

HALF_TYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
#: Parameters by a piece of their name, in the order of the search: norms count with the branch that they feed.
_PARTS = (('gamma', 'LayerScale'), ('attn', 'attention'), ('norm1', 'attention'), ('local_mp', 'LPI'),
          ('norm3', 'LPI'), ('mlp', 'FFN'), ('norm2', 'FFN'), ('patch_embed', 'stem'), ('pos_embeder', 'positions'),
          ('fpn', 'pyramid'))


def build(check: Check, patch_size: int, *, depth: int = 12, eta: float = None, **options):
    """Return an `XCiT` on the CPU in float32, in training mode, the same at every call: small 12, or a tiny one.

    Its pyramid has no max pooling: where rounding changes which of four cells is the largest, the gradient changes by
    far more than by rounding. ``eta`` is the LayerScale of every block; by default there are random factors about 1.
    """
    small = get_arch(f'small_12_p{patch_size}')
    arch = check.choose(Arch(small.embed_dims, depth, small.num_heads, patch_size), Arch(32, 4, 4, patch_size))
    strides = [stride for stride in PYRAMID_STRIDES if stride <= patch_size]
    torch.manual_seed(0)
    model = XCiT(arch, out_indices=arch.out_indices[:len(strides)], out_strides=strides, norm_cfg=dict(type='BN'),
                 **options)
    randomise(model)
    for block in model.blocks if eta else ():
        for gamma in (block.gamma1, block.gamma2, block.gamma3):
            torch.nn.init.constant_(gamma, eta)
    return model.train()


def plain_of(model):
    plain = ReferenceXCiT(model.arch, out_indices=model.out_indices, out_strides=model.out_strides,
                          norm_cfg=dict(type='BN'))
    plain.load_state_dict(model.state_dict())
    return plain.train(model.training)


def odd_images(check: Check, patch_size: int, seed: int = 0, batch: int = 2) -> Tensor:
    """Return random images whose sides no patch divides, just large enough that XCA takes its Gram form."""
    rows, columns = check.choose((26, 29), (9, 8))
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, rows * patch_size - 3, columns * patch_size - 5, generator=generator)


def recipe_sizes(check: Check, count: int) -> list[tuple[int, int]]:
    """Return the padded sizes of batches that COCO's multi-scale recipe gives, an eighth of them for tiny runs."""
    cfg = get_config('maskrcnn_xcit_s12_p16_coco')
    divisor = check.choose(cfg.model.data_preprocessor.pad_size_divisor, 8)
    draw, sizes = random.Random(0), []
    while len(sizes) < count:
        short, long = draw.choice(cfg.train_scales)
        ratio = draw.choice((4 / 3, 3 / 2, 16 / 9, 1.))
        short = check.choose(1, 1 / 8) * min(short, long / ratio)
        sides = [-(-int(side + 0.5) // divisor) * divisor for side in (short, short * ratio)]
        sizes.append(tuple(sides if draw.random() < 0.7 else sides[::-1]))
    return sizes


def step(model, images: Tensor, dtype: torch.dtype = None) -> dict[str, Tensor]:
    """Return the maps, and in training mode the gradients of each part as one vector, by name, in float64."""
    torch.manual_seed(0)  # of stochastic depth
    scale = 2.**12 if dtype == torch.float16 else 1.  # as in a gradient scaler: without it gradients underflow
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(model.training), torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        levels = model(images)
    found = {f'map {i}': level.detach().double() for i, level in enumerate(levels, 1)}
    if not model.training:
        return found
    (loss_of([level.to(torch.promote_types(level.dtype, torch.float32)) for level in levels]) * scale).backward()
    parts = {}
    for name, parameter in model.named_parameters():
        part = next(part for piece, part in _PARTS if piece in name)
        parts.setdefault(f'gradient of {part}', []).append(parameter.grad.double().flatten() / scale)
    model.zero_grad(set_to_none=True)
    return found | {part: torch.cat(grads) for part, grads in parts.items()}


def errors_of(found: dict, wanted: dict) -> dict[str, float]:
    """Return the relative errors of what `step` returned: the worst of the maps, and of each part's gradients."""
    errors = {name: relative_error(found[name], value) for name, value in wanted.items()}
    maps = [errors.pop(name) for name in list(errors) if name.startswith('map')]
    return {'maps': worst(maps), **errors}


def labelled(label: str, errors: dict) -> dict[str, float]:
    return {f'{label}: {name}': error for name, error in errors.items()}
