"""The names of XCiT's tensors in the files of each project: recognise, describe and translate them.

The authors' names are the common form: every layout is translated to them and from them.
"""
import re
from dataclasses import dataclass

import torch

from .._utils.text import counted
from ..archs import Arch, arch_names, get_arch
from ..errors import CheckpointError

#: How the names of each part begin, in the authors' layout. DINO's projection head has the centre of its outputs.
_PARTS = {'backbone': re.compile(r'(patch_embed|pos_embeder|blocks)\.'),
          'classifier': re.compile(r'(cls_token$|cls_attn_blocks\.|norm\.|head\.(weight|bias)$)'),
          'pyramid': re.compile(r'fpn[1-4]\.'),
          'projection head': re.compile(r'(head\.(mlp|last_layer)\.|centre$)')}
_ANY_XCIT = re.compile(r'(|.*\.)(blocks|xca_layers)\.\d+\.attn\.temperature$')
_QKV = re.compile(r'(cls_attn_blocks\.\d+\.attn)\.([qkv])\.(weight|bias)$')


@dataclass(frozen=True)
class Layout:
    """How one project lays out a file.

    Args:
        title: What messages call a file of this layout.
        names: Pairs of name parts, the authors' and this layout's, each between dots.
        container: Key of the dict that holds the tensors; None if the file is that dict.
        in_whole_model: Whether the backbone's names begin with ``backbone.``; the classifier's ``head.`` does not.
        holds: Which parts it can hold in addition to the backbone: classifier, pyramid, rest (neck and heads).
        splits_qkv: Whether class attention has separate q, k and v.
        transposes: Whether the weights of linear layers, XCiT's only tensors of two dimensions, are transposed.
    """
    title: str
    names: tuple = ()
    container: str | None = None
    in_whole_model: bool = False
    holds: tuple = ('classifier', )
    splits_qkv: bool = False
    transposes: bool = False


LAYOUTS = {
    'official': Layout('weights in the official ImageNet layout', container='model'),
    'dense': Layout('weights in the dense layout', container='state_dict', in_whole_model=True,
                    holds=('pyramid', 'rest')),
    'timm': Layout("weights in timm's layout", names=(('.pos_embeder.', '.pos_embed.'), ), splits_qkv=True),
    'mmpretrain': Layout(
        "weights in mmpretrain's layout", container='state_dict', in_whole_model=True, splits_qkv=True,
        names=(*((f'.patch_embed.proj.{2 * i}.0.', f'.patch_embed.proj.{i}.conv.') for i in range(4)),
               *((f'.patch_embed.proj.{2 * i}.1.', f'.patch_embed.proj.{i}.bn.') for i in range(4)),
               ('.pos_embeder.token_projection.', '.pos_embed.token_projection.conv.'),
               ('.blocks.', '.xca_layers.'), ('.cls_attn_blocks.', '.ca_layers.'),
               ('.local_mp.conv1.', '.local_mp.conv1.conv.'), ('.local_mp.conv2.', '.local_mp.conv2.conv.'),
               ('.local_mp.bn.', '.local_mp.conv1.bn.'),
               ('.mlp.fc1.', '.ffn.layers.0.0.'), ('.mlp.fc2.', '.ffn.layers.1.'), ('.head.', '.head.fc.'))),
    'PASSL': Layout(
        "weights in PASSL's layout", in_whole_model=True, transposes=True,
        names=(('.head.', '.head.fc_cls.'), ('.running_mean.', '._mean.'), ('.running_var.', '._variance.')))}


def part_of(name: str) -> str:
    """Return which of `_PARTS` a tensor is of, by its name in the authors' layout, or ``rest`` if it is not XCiT's."""
    return next((part for part, pattern in _PARTS.items() if pattern.match(name)), 'rest')


def holds_xcit(state: dict) -> bool:
    """Whether there is an XCiT of any layout among tensors by name."""
    return any(map(_ANY_XCIT.match, state))


def renamed(name: str, layout: Layout, back: bool = False) -> str:
    """Return the name that a tensor with the authors' name has in a layout; or, back, the authors' name."""
    table = {theirs: ours for ours, theirs in layout.names} if back else dict(layout.names)
    if not table:
        return name
    pattern = '|'.join(map(re.escape, table))
    return re.sub(pattern, lambda match: table[match[0]], f'.{name}.')[1:-1]


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

    @classmethod
    def of(cls, state: dict, source):
        """Recognise tensors by their names, and translate those of an XCiT to the authors' names.

        If XCiT's names begin with ``backbone.`` or another prefix, the other tensors are the rest of a whole model.
        `CheckpointError`: a query, key or value of class attention is missing, or there are several XCiT models.
        """
        if not holds_xcit(state):
            return cls(None, {}, state)
        prefix = _prefix(state, source)
        inside = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        rest = {n: v for n, v in state.items() if not n.startswith(prefix)}
        title = _recognise(inside)
        layout = LAYOUTS[title]
        for name in [n for n in rest if (new := renamed(n, layout, back=True)) != n and part_of(new) == 'classifier']:
            inside[name] = rest.pop(name)
        inside = {renamed(name, layout, back=True): value.t().contiguous()
                  if layout.transposes and value.dim() == 2 else value for name, value in inside.items()}
        return cls(title, _joined(inside, source) if layout.splits_qkv else inside, rest)

    @property
    def size(self) -> str:
        """Name of the size and patch, or their figures, derived from shapes."""
        embed_dims, num_heads = map(self._length, ('blocks.0.attn.proj.weight', 'blocks.0.attn.temperature'))
        return size_title((embed_dims, self._depth, num_heads, self._patch_size))

    @property
    def arch(self) -> Arch:
        """The size, from names and shapes; for a published size also the fields that these do not show.

        Without a complete backbone, it raises `CheckpointError`.
        """
        try:
            hidden, embed_dims = self.tensors['blocks.0.mlp.fc1.weight'].shape
            found = Arch(embed_dims=embed_dims, depth=self._depth, num_heads=self._length('blocks.0.attn.temperature'),
                         patch_size=self._patch_size, mlp_ratio=hidden / embed_dims,
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

    def __str__(self):
        if self.layout is None:
            others = f', but {counted(len(self.rest), "tensors")} such as {", ".join([*self.rest][:3])}'
            return 'no XCiT weights' + others * bool(self.rest)
        parts = ', '.join('class token' if (part, self.num_classes) == ('classifier', None) else part
                          for part in self.parts)
        parts = f' with {parts}' if parts else ''
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


def figures_of(arch: Arch) -> tuple:
    """Return the figures of an arch that its tensors show: channels, blocks, heads, patch size."""
    return arch.embed_dims, arch.depth, arch.num_heads, arch.patch_size


def size_title(figures: tuple) -> str:
    """Return the name of the published size with these `figures_of`, or the figures of any other size."""
    return next((name for name in arch_names() if figures_of(get_arch(name)) == figures),
                '({} channels, {} blocks, {} heads, patch {})'.format(*figures))


def _prefix(state, source):
    """Return what the names of XCiT's tensors begin with."""
    found = sorted({match[1] for match in map(_ANY_XCIT.match, state) if match})
    if len(found) == 1:
        return found[0]
    for usual in ('backbone.', ''):
        if usual in found:
            return usual
    raise CheckpointError(f'{source} holds several XCiT models, with the prefixes {", ".join(found)}. Choose one with '
                          f"the prefix of init_cfg: dict(type='Pretrained', checkpoint=..., prefix='{found[0]}')")


def _recognise(state):
    if any(name.startswith('xca_layers.') for name in state):
        return 'mmpretrain'
    if any(name.endswith('._mean') for name in state):
        return 'PASSL'
    if any(name.startswith('pos_embed.') or _QKV.match(name) for name in state):
        return 'timm'
    return 'official' if any(part_of(name) == 'classifier' for name in state) else 'dense'


def _joined(state, source):
    """Put q, k and v of class attention into one tensor each."""
    joined = {}
    for name, value in state.items():
        if not (match := _QKV.match(name)):
            joined[name] = value
            continue
        thirds = [state.get(f'{match[1]}.{third}.{match[3]}') for third in 'qkv']
        if any(third is None or third.shape != value.shape for third in thirds):
            raise CheckpointError(f'{source} is damaged: q, k and v of {match[1]} must be three tensors of one shape')
        joined[f'{match[1]}.qkv.{match[3]}'] = torch.cat(thirds)
    return joined
