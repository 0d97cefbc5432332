"""The seven published XCiT sizes, as one table of frozen records.

Source: XCiT paper (arXiv 2106.09681), table 1, and the authors' release.
"""
from dataclasses import dataclass, fields, replace
from numbers import Real

PATCH_SIZES = (8, 16)


@dataclass(frozen=True)
class Arch:
    """One XCiT size.

    Args:
        embed_dims: Channels C of every token. A multiple of ``num_heads`` and of ``patch_size / 2``
            (the stem starts at ``2 * C / patch_size`` channels).
        depth: Number of XCA blocks.
        num_heads: Heads of the cross-covariance attention.
        patch_size: Pixels per token side, 8 or 16.
        eta: Initial value of the three LayerScale vectors of a block.
        out_indices: The four blocks that feed the pyramid, 0-based. Default: the authors' choice for 12
            and 24 blocks, otherwise the last block of each quarter.
        mlp_ratio: Hidden channels of the FFN, divided by ``embed_dims``.
        qkv_bias: Whether the query-key-value projection has a bias.
        tokens_norm: Whether the second norm of a class-attention block covers every token or only the
            class token. Unused by dense models; needed to read and write classifier files.

    Raises:
        ValueError: A value is of the wrong type or out of range.
    """
    embed_dims: int
    depth: int
    num_heads: int
    patch_size: int = 16
    eta: float = 1.0
    out_indices: tuple = None
    mlp_ratio: float = 4
    qkv_bias: bool = True
    tokens_norm: bool = True

    def __post_init__(self):
        for name in ('embed_dims', 'depth', 'num_heads'):
            check_int(f'arch.{name}', getattr(self, name), 1)
        if self.patch_size not in PATCH_SIZES or not _is_int(self.patch_size):
            raise ValueError(f'arch.patch_size must be one of {PATCH_SIZES}, got {self.patch_size!r}')
        for name in ('eta', 'mlp_ratio'):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not value > 0:
                raise ValueError(f'arch.{name} must be a number above 0, got {value!r}')
        for name in ('qkv_bias', 'tokens_norm'):
            check_bool(f'arch.{name}', getattr(self, name))
        if self.embed_dims % self.num_heads:
            raise ValueError(f'arch.embed_dims must be a multiple of num_heads, '
                             f'got {self.embed_dims} channels for {self.num_heads} heads')
        if self.embed_dims % (self.patch_size // 2):
            raise ValueError(f'arch.embed_dims must be a multiple of {self.patch_size // 2} for patch '
                             f'{self.patch_size} (the stem halves its channels), got {self.embed_dims}')
        if self.out_indices is None:
            object.__setattr__(self, 'out_indices', _default_out_indices(self.depth))
        check_out_indices(self.out_indices, self.depth)
        object.__setattr__(self, 'out_indices', tuple(self.out_indices))


def _default_out_indices(depth):
    if depth == 12:
        return 3, 5, 7, 11
    if depth == 24:
        return 7, 11, 15, 23
    return tuple(depth * part // 4 - 1 for part in (1, 2, 3, 4)) if depth >= 4 else tuple(range(depth))


def check_out_indices(out_indices, depth, name='out_indices'):
    """Raise ``ValueError`` unless ``out_indices`` are different block numbers in ascending order."""
    valid = (isinstance(out_indices, (tuple, list)) and len(out_indices) > 0
             and all(_is_int(i) and 0 <= i < depth for i in out_indices)
             and list(out_indices) == sorted(set(out_indices)))
    if not valid:
        raise ValueError(f'{name} must be different block numbers from 0 to {depth - 1} in ascending order, '
                         f'got {out_indices!r}')


def check_int(name, value, low, high=None):
    """Return ``value`` if it is an integer from ``low`` to ``high``, else raise ``ValueError``."""
    if _is_int(value) and low <= value and (high is None or value <= high):
        return value
    allowed = f'of at least {low}' if high is None else f'from {low} to {high}'
    raise ValueError(f'{name} must be an integer {allowed}, got {value!r}')


def check_bool(name, value):
    """Return ``value`` if it is True or False, else raise ``ValueError``."""
    if not isinstance(value, bool):
        raise ValueError(f'{name} must be True or False, got {value!r}')
    return value


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


_DEEP = dict(depth=24, eta=1e-5)

#: Size name to record, with patch 16; `get_arch` sets the patch size.
SIZES = {
    'nano_12': Arch(embed_dims=128, depth=12, num_heads=4, tokens_norm=False),
    'tiny_12': Arch(embed_dims=192, depth=12, num_heads=4),
    'small_12': Arch(embed_dims=384, depth=12, num_heads=8),
    'tiny_24': Arch(embed_dims=192, num_heads=4, **_DEEP),
    'small_24': Arch(embed_dims=384, num_heads=8, **_DEEP),
    'medium_24': Arch(embed_dims=512, num_heads=8, **_DEEP),
    'large_24': Arch(embed_dims=768, num_heads=16, **_DEEP),
}


def arch_names():
    """Return the names that `get_arch` accepts: every size with both patch sizes."""
    return [f'{size}_p{patch}' for size in SIZES for patch in PATCH_SIZES]


def get_arch(arch):
    """Turn what a user writes for ``arch`` into a record.

    Args:
        arch: A name such as ``'small_12_p8'``, an `Arch`, or a dict of its fields.

    Raises:
        ValueError: The name is unknown, or a field is unknown, missing or wrong.
    """
    if isinstance(arch, Arch):
        return arch
    if isinstance(arch, str):
        size, _, patch = arch.rpartition('_p')
        if size in SIZES and patch in map(str, PATCH_SIZES):
            return replace(SIZES[size], patch_size=int(patch))
        raise ValueError(f'unknown arch {arch!r}; choose one of {", ".join(arch_names())}, '
                         f'or pass a dict of the fields of xcit_dense.archs.Arch')
    if isinstance(arch, dict):
        known = [f.name for f in fields(Arch)]
        unknown = sorted(set(arch) - set(known))
        missing = [name for name in ('embed_dims', 'depth', 'num_heads') if name not in arch]
        if unknown or missing:
            raise ValueError(f'arch dict: unknown fields {unknown}, missing fields {missing}; the fields are {known}')
        return Arch(**arch)
    raise ValueError(f'arch must be a name, a dict or an Arch, got {arch!r}')
