"""What a model looks at: attention of the class token, principal components of patch tokens, pyramid levels."""
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from mmengine.device import get_device
from torch import Tensor

from .._utils.files import atomic_write
from ..draw.pictures import Panel, draw_panels
from ..errors import ConfigError
from ..models import XCiTClassifier
from .weight_file import normalised, open_model, read_picture


class Picture(NamedTuple):
    """An image, RGB (H, W, 3) uint8, at the size of the file and at the size that the model sees."""
    original: np.ndarray
    seen: np.ndarray


def read_resized(path, size: int = None) -> Picture:
    """Read an image file like `read_picture`, and resize its shorter side to ``size`` pixels, if given."""
    picture = read_picture(path)
    if size is None:
        return Picture(picture, picture)
    height, width = picture.shape[:2]
    scale = size / min(height, width)
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    # never 0, even if one side is thousands of times as long as the other
    sizes = max(round(width * scale), 1), max(round(height * scale), 1)
    return Picture(picture, cv2.resize(picture, sizes, interpolation=method))


class Attention:
    """Shows what a model looks at in each image: a picture and the arrays behind it. For `predict_files`.

    Args:
        source, config: As for `xcit_dense.predict.weight_file.open_model`.
        show: ``'attention'``, ``'components'`` or ``'levels'``. Default: attention for classifiers, components and
            levels for other models.
        blocks: Numbers of the blocks to show, from 1: class-attention blocks for attention, XCA blocks for
            components. Default: both class-attention blocks, or the XCA blocks that feed the pyramid.
        size: As for `read_resized`; by default images keep their size.

    Raises:
        CheckpointError, ConfigError: As for `open_model`; or the model cannot show that, or has no such block.
    """
    tool = 'attention'
    #: Written at the end.
    last_files = ()

    def __init__(self, source, show: str = None, blocks=None, size: int = None, config=None):
        opened = open_model(source, config)
        self.model, self._statistics = opened.model, (opened.mean, opened.std)
        is_classifier, has_levels = isinstance(self.model, XCiTClassifier), bool(getattr(self.model, 'out_strides', ()))
        shows = ['attention'] * is_classifier + ['components'] + ['levels'] * has_levels
        if show and show not in shows:
            raise ConfigError(f'the {"classifier" if is_classifier else "backbone"} in {source} has no {show}. Use '
                              f'--show {" or ".join(shows)}')
        self.show = (show, ) if show else ('attention', ) if is_classifier else tuple(shows)
        self.blocks = self._check_blocks(blocks)
        self.size = size
        self.model.to(get_device()).fuse()

    def _check_blocks(self, blocks):
        """Return the numbers of the blocks to show, from 1, ascending."""
        if blocks and self.show == ('levels', ):
            raise ConfigError('--block works only with --show attention or components; levels have no blocks')
        if 'attention' in self.show:
            count, kind = len(self.model.cls_attn_blocks), 'class-attention blocks'
            default = range(count)
        else:
            count, kind = len(self.model.blocks), 'XCA blocks'
            default = getattr(self.model, 'out_indices', self.model.arch.out_indices)
        if wrong := [block for block in blocks or () if not 1 <= block <= count]:
            raise ConfigError(f'--block must be from 1 to {count} (the {kind} of this model), got {wrong[0]}')
        return tuple(sorted(set(blocks or [i + 1 for i in default])))

    def read(self, path) -> Picture:
        """Read a file."""
        return read_resized(path, self.size)

    def begin(self, names, paths):
        """Do nothing; `predict_files` calls it first."""

    def files_of(self, name) -> list:
        """Return the files that are written for an image, relative to the folder of the results."""
        return [Path(name).with_suffix(suffix).as_posix() for suffix in ('.png', '.npz')]

    def write(self, image: Picture, name, out_dir):
        """Process one image; write its picture and its arrays."""
        arrays, panels, note = self(image)
        picture, numbers = (Path(out_dir, file) for file in self.files_of(name))
        with atomic_write(picture) as part:
            draw_panels(image.original, panels, note, part)
        with atomic_write(numbers) as part, open(part, 'wb') as file:  # to a name NumPy would add a suffix
            np.savez(file, image_size=image.original.shape[:2], input_size=image.seen.shape[:2],
                     patch=self.model.arch.patch_size, **arrays)

    def close(self, out_dir) -> str:
        """Return a description of what was written besides the pictures."""
        return 'arrays (.npz)'

    @torch.no_grad()
    def __call__(self, image: Picture):
        """Return the arrays of an image by name, rows of panels for `draw_panels`, and a note about them."""
        x = normalised(image.seen, *self._statistics).to(get_device())
        return self._attention(x) if 'attention' in self.show else self._tokens(x)

    def _place(self, x, stride):
        """Return the number of map cells that the image covers, and by how many cells the map starts ahead of it.

        The stem's convolutions centre a token on the upper left corner of its patch. So every map made of tokens
        starts half a patch ahead.
        """
        return [length / stride for length in x.shape[-2:]], self.model.arch.patch_size / 2 / stride

    def _attention(self, x):
        weights = self.model.attention_maps(x)[0].float().cpu()[[block - 1 for block in self.blocks]].numpy()
        place = self._place(x, self.model.arch.patch_size)
        rows, heads = [[Panel('image')]], weights.shape[1]
        columns = min(heads, 8) if heads > 8 or x.shape[2] > x.shape[3] else 4  # or the picture is a long strip
        for block, maps in zip(self.blocks, weights, strict=True):
            rows[0].append(Panel(f'block {block}, mean of heads', maps.mean(0), *place, over_image=True))
            rows += _wrapped([Panel(f'block {block}, head {head}', part, *place) for head, part in enumerate(maps, 1)],
                             columns)
        note = 'Attention of the class token to each patch, by class-attention block and head.'
        return dict(attention=weights, blocks=np.array(self.blocks)), rows, note

    def _tokens(self, x):
        blocks = [block - 1 for block in self.blocks] if 'components' in self.show else []
        sources = list(self.model.out_indices) if 'levels' in self.show else []
        wanted = sorted({*blocks, *sources})
        maps = dict(zip(wanted, self.model.token_maps(x, wanted), strict=True))
        arrays, rows, note = {}, [], []
        if blocks:
            found = [self._components(x, f'block {i + 1}', maps[i], self.model.arch.patch_size) for i in blocks]
            parts, shares, panels = zip(*found, strict=True)
            arrays.update(blocks=np.array(self.blocks), components=np.stack(parts), explained=np.stack(shares))
            rows += _wrapped(panels)
            note.append('Block: the first three principal components of its patch tokens as red, green and blue, and '
                        'the share of the variance that each of them explains.')
        if sources:
            rows += [[], []]
            levels = self.model.pyramid([maps[i] for i in sources])
            for stride, level in zip(self.model.out_strides, levels, strict=True):
                norm = torch.linalg.vector_norm(level[0], dim=0).cpu().numpy()
                part, shares, panel = self._components(x, f'stride {stride}', level, stride)
                arrays.update({f'level_{stride}_norm': norm, f'level_{stride}_components': part,
                               f'level_{stride}_explained': shares})
                rows[-2].append(Panel(f'stride {stride}, norm', norm, *self._place(x, stride)))
                rows[-1].append(panel)
            note.append('Stride: a pyramid level, its norm over the channels and its principal components.')
        rows = [[None if i else Panel('image'), *row] for i, row in enumerate(rows)]
        return arrays, rows, ' '.join(note)

    def _components(self, x, title, maps, stride):
        """Return the first components (h, w, 3) of a map (1, C, h, w), their shares of the variance, and a panel."""
        components, shares = principal_components(maps.cpu())  # some devices have no float64
        part, shares = components[0].permute(1, 2, 0).numpy(), shares[0].numpy()
        title = f'{title}: {" + ".join(f"{100 * share:.0f}" for share in shares)}%'
        return part, shares, Panel(title, part, *self._place(x, stride))


def _wrapped(panels, columns: int = 4):
    return [panels[i:i + columns] for i in range(0, len(panels), columns)]


@torch.no_grad()
def principal_components(maps: Tensor, count: int = 3):
    """Return the first principal components of the tokens of each image, those that explain most first.

    They are computed in float64 from the C x C covariance, so that time is linear in the number of tokens. Signs are
    chosen so that the largest channel weight of a component is positive: the same image and model always give the same
    result.

    Args:
        maps: Token maps (B, C, h, w), such as the outputs of `xcit_dense.XCiT` or of its ``token_maps``.
        count: How many components, at most C.

    Returns:
        The components (B, count, h, w), float32 with mean 0, and the share (B, count) of the variance that each
        explains, float64; 0 if all tokens are equal.

    Raises:
        ValueError: ``maps`` has another shape, or fewer channels than ``count``.
    """
    if maps.dim() != 4 or not 1 <= count <= maps.shape[1]:
        raise ValueError(f'principal_components needs maps (B, C, h, w) and 1 <= count <= C, got maps '
                         f'{tuple(maps.shape)} and count={count}')
    tokens = maps.flatten(2).mT.double()
    centred = tokens - tokens.mean(1, keepdim=True)
    variances, vectors = torch.linalg.eigh(centred.mT @ centred)  # ascending
    variances, vectors = variances.clamp_min(0).flip(1), vectors.flip(2)[..., :count]
    vectors = vectors * vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    components = (centred @ vectors).float().mT.unflatten(2, maps.shape[2:])
    total = variances.sum(1, keepdim=True)
    return components, torch.where(total > 0, variances[:, :count] / total, 0)
