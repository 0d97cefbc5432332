"""Describe what a file holds, for errors and for tools/convert_checkpoint.py --inspect."""
import re
from dataclasses import dataclass
from typing import ClassVar

from ..archs import Arch, arch_names, get_arch
from ..errors import CheckpointError
from ..text import counted
from .layouts import LAYOUTS, part_of, to_official

_COUNTERS = ('running_mean', 'running_var', 'num_batches_tracked')


@dataclass(frozen=True)
class Contents:
    """The tensors of one model of a file.

    Args:
        layout: Its name in `LAYOUTS`; None if there is no XCiT.
        tensors: XCiT's tensors by the authors' names.
        rest: The other tensors of a whole model by their own names.
    """
    layout: str | None
    tensors: dict
    rest: dict

    #: What errors say about a file with a class token and without classes, and what it can be used for.
    WITHOUT_CLASSES: ClassVar[str] = (
        'has no classes, like the files of DINO: measure its features with `test CONFIG FILE --knn` or `--linear` and '
        'the config of a classifier, show what it attends to with `attention FILE`, or fine-tune from it with '
        "--init-from or init_cfg=dict(type='Pretrained', checkpoint=FILE)")

    @classmethod
    def of(cls, state: dict, source):
        """Recognise tensors of any layout by their names.

        Raises:
            CheckpointError: A part of a tensor of the XCiT is missing, or there are several XCiT models.
        """
        try:
            return cls(*to_official(state))
        except ValueError as error:
            raise CheckpointError(f'{source} {error}') from error

    @property
    def size(self) -> str:
        """Name of the size and patch, or their figures, derived from shapes."""
        embed_dims, num_heads = map(self._length, ('blocks.0.attn.proj.weight', 'blocks.0.attn.temperature'))
        return size_title(embed_dims, self._depth, num_heads, self._patch_size)

    @property
    def arch(self) -> Arch:
        """The size, from names and shapes; for a published size also the fields that these do not show.

        Raises:
            CheckpointError: There is no complete backbone.
        """
        try:
            embed_dims = self.tensors['blocks.0.mlp.fc1.weight'].shape[1]
            found = Arch(embed_dims=embed_dims, depth=self._depth, num_heads=self._length('blocks.0.attn.temperature'),
                         patch_size=self._patch_size, mlp_ratio=self._length('blocks.0.mlp.fc1.weight') / embed_dims,
                         qkv_bias='blocks.0.attn.qkv.bias' in self.tensors)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CheckpointError(f'{self} is not a complete backbone: {error}') from error
        published = get_arch(self.size) if self.size in arch_names() else found
        same = (published.mlp_ratio, published.qkv_bias) == (found.mlp_ratio, found.qkv_bias)
        return published if same else found

    @property
    def is_fused(self) -> bool:
        """Whether the model was fused: a convolution before a batch norm has no bias, one that contains it does."""
        return 'patch_embed.proj.0.0.bias' in self.tensors

    @property
    def num_classes(self) -> int | None:
        """Classes of the classifier's head, if it has one."""
        return self._length('head.bias')

    @property
    def parts(self) -> list:
        """The parts other than the backbone: classifier, pyramid, projection head; neck and heads by their modules."""
        found = {part_of(name) for name in (*self.tensors, *self.rest)}
        return [part for part in ('classifier', 'pyramid', 'projection head') if part in found] + sorted(
            {name.split('.')[0] for name in self.heads})

    @property
    def heads(self) -> dict:
        """The tensors of the neck and heads of a whole model by their own names."""
        return {name: value for name, value in self.rest.items() if part_of(name) != 'projection head'}

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without the statistics of batch norms."""
        return sum(v.numel() for n, v in {**self.tensors, **self.rest}.items() if not n.endswith(_COUNTERS))

    def __str__(self):
        if self.layout is None:
            names = list(self.rest)
            if not names:
                return 'no XCiT weights'
            return f'no XCiT weights, but {counted(len(names), "tensors")} such as {", ".join(names[:3])}'
        parts = [part if part != 'classifier' or self.num_classes else 'class token' for part in self.parts]
        parts = f' with {", ".join(parts)}' if parts else ''
        fused = ' after fuse(), which cannot be undone: save the weights before it' if self.is_fused else ''
        return f'{LAYOUTS[self.layout].title} of XCiT {self.size}{parts}{fused}'

    @property
    def _depth(self):
        return len({block[0] for n in self.tensors if (block := re.match(r'blocks\.\d+\.', n))})

    @property
    def _patch_size(self):
        return 2**len({n for n in self.tensors if re.match(r'patch_embed\.proj\.\d+\.0\.weight$', n)})

    def _length(self, name):
        return next(iter(self.tensors[name].shape), None) if name in self.tensors else None


def size_title(embed_dims, depth, num_heads, patch_size) -> str:
    """Return the name of a published size, or the figures of any other size."""
    for name in arch_names():
        arch = get_arch(name)
        if (arch.embed_dims, arch.depth, arch.num_heads, arch.patch_size) == (embed_dims, depth, num_heads, patch_size):
            return name
    return f'({embed_dims} channels, {depth} blocks, {num_heads} heads, patch {patch_size})'


def arch_title(arch: Arch) -> str:
    """Return the `size_title` of an arch."""
    return size_title(arch.embed_dims, arch.depth, arch.num_heads, arch.patch_size)
