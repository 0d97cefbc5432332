"""The names of XCiT's tensors in the files of each project: recognise and translate them.

The authors' names are the common form: every layout is translated to them and from them.
"""
import re
from dataclasses import dataclass

import torch

_BACKBONE = re.compile(r'(patch_embed|pos_embeder|blocks)\.')
_CLASSIFIER = re.compile(r'(cls_token$|cls_attn_blocks\.|norm\.|head\.(weight|bias)$)')
_PYRAMID = re.compile(r'fpn[1-4]\.')
_PROJECTION = re.compile(r'(head\.(mlp|last_layer)\.|centre$)')
_ANY_XCIT = re.compile(r'(|.*\.)(blocks|xca_layers)\.\d+\.attn\.temperature$')
_QKV = re.compile(r'(cls_attn_blocks\.\d+\.attn)\.([qkv])\.(weight|bias)$')
_LINEAR = re.compile(r'(.*\.(qkv|attn\.proj|fc1|fc2)|head)\.weight$')


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
        transposes: Whether the weights of linear layers are transposed.
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
        names=(('.head.', '.head.fc_cls.'), ('.running_mean.', '._mean.'), ('.running_var.', '._variance.'))),
}


def part_of(name: str) -> str:
    """Return which part a tensor belongs to, by its name in the authors' layout.

    Returns:
        ``backbone``, ``classifier``, ``pyramid``, ``projection head`` (DINO's, with the centre of its outputs), or
        ``rest`` for everything that is not part of XCiT.
    """
    for part, pattern in (('backbone', _BACKBONE), ('classifier', _CLASSIFIER), ('pyramid', _PYRAMID),
                          ('projection head', _PROJECTION)):
        if pattern.match(name):
            return part
    return 'rest'


def holds_xcit(state: dict) -> bool:
    """Whether there is an XCiT of any layout among tensors by name."""
    return any(map(_ANY_XCIT.match, state))


def to_official(state: dict):
    """Translate the tensors of a file to the authors' names.

    Args:
        state: Tensors by name, of any layout. If XCiT's names begin with ``backbone.`` or another prefix, the
            other tensors are the rest of a whole model.

    Returns:
        The name of the layout in `LAYOUTS`; XCiT's tensors by the authors' names; the rest of a whole model by
        its own names. (None, {}, state) if there is no XCiT.

    Raises:
        ValueError: A query, key or value of class attention is missing, two tensors have the same name in the
            authors' layout, or there are several XCiT models.
    """
    if not holds_xcit(state):
        return None, {}, state
    prefix = _prefix(state)
    inside = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    rest = {n: v for n, v in state.items() if not n.startswith(prefix)}
    title = _recognise(inside)
    layout = LAYOUTS[title]
    for name in [n for n in rest if (new := _renamed(n, layout, back=True)) != n and part_of(new) == 'classifier']:
        inside[name] = rest.pop(name)
    inside = _all_renamed(inside, layout)
    if layout.transposes:  # by name: the square ones have the same shape both ways
        inside = {n: v.t().contiguous() if _LINEAR.match(n) and v.dim() == 2 else v for n, v in inside.items()}
    return title, _joined(inside) if layout.splits_qkv else inside, rest


def from_official(tensors: dict, rest: dict, layout: Layout):
    """Translate tensors from the authors' names.

    Args:
        tensors: XCiT's tensors by the authors' names.
        rest: The rest of a whole model.
        layout: The target.

    Returns:
        The tensors by the names of the layout, and the list of the names that it cannot hold.
    """
    kept = {n: v for n, v in tensors.items() if part_of(n) in ('backbone', *layout.holds)}
    left_out = [n for n in tensors if n not in kept]
    if layout.splits_qkv:
        kept = _split(kept)
    prefix = 'backbone.' if layout.in_whole_model else ''
    state = {('' if n.startswith('head.') else prefix) + _renamed(n, layout): v for n, v in kept.items()}
    heads = {n: v for n, v in rest.items() if 'rest' in layout.holds and part_of(n) != 'projection head'}
    return {**state, **heads}, [*left_out, *(n for n in rest if n not in heads)]


def _prefix(state):
    """Return what the names of XCiT's tensors begin with."""
    found = sorted({match[1] for match in map(_ANY_XCIT.match, state) if match})
    if len(found) == 1:
        return found[0]
    for usual in ('backbone.', ''):
        if usual in found:
            return usual
    raise ValueError(f'holds several XCiT models, with the prefixes {", ".join(found)}. Choose one with the prefix of '
                     f"init_cfg: dict(type='Pretrained', checkpoint=..., prefix='{found[0]}')")


def _recognise(state):
    if any(name.startswith('xca_layers.') for name in state):
        return 'mmpretrain'
    if any(name.endswith('._mean') for name in state):
        return 'PASSL'
    if any(name.startswith('pos_embed.') or _QKV.match(name) for name in state):
        return 'timm'
    return 'official' if any(part_of(name) == 'classifier' for name in state) else 'dense'


def _renamed(name, layout, back=False):
    table = {theirs: ours for ours, theirs in layout.names} if back else dict(layout.names)
    if not table:
        return name
    pattern = '|'.join(map(re.escape, table))
    return re.sub(pattern, lambda match: table[match[0]], f'.{name}.')[1:-1]


def _all_renamed(state, layout):
    """Return tensors by the authors' names."""
    old_names = {}
    for name in state:
        new = _renamed(name, layout, back=True)
        if new in old_names:
            raise ValueError(f'is damaged: it holds {old_names[new]} and {name}, which are the same tensor ({new})')
        old_names[new] = name
    return {new: state[name] for new, name in old_names.items()}


def _joined(state):
    """Put q, k and v of class attention into one tensor each."""
    joined = {}
    for name, value in state.items():
        match = _QKV.match(name)
        whole = f'{match[1]}.qkv.{match[3]}' if match else name
        if not match:
            joined[name] = value
        elif whole not in joined:
            thirds = [state.get(f'{match[1]}.{third}.{match[3]}') for third in 'qkv']
            if any(third is None or third.shape != value.shape for third in thirds):
                raise ValueError(f'is damaged: q, k and v of {match[1]} must be three tensors of the same shape')
            joined[whole] = torch.cat(thirds)
    return joined


def _split(state):
    """The inverse of `_joined`."""
    apart = {}
    for name, value in state.items():
        module, _, kind = name.rpartition('.')
        if part_of(name) == 'classifier' and module.endswith('.attn.qkv'):
            for third, part in zip('qkv', value.chunk(3), strict=True):
                apart[f'{module.removesuffix("qkv")}{third}.{kind}'] = part.clone()
        else:
            apart[name] = value
    return apart
