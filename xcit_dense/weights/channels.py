"""Adapt the stem's weights to images with another number of channels."""
from mmengine.logging import print_log
from torch import Tensor

from ..text import counted

#: How the name of the weight of the stem's first convolution ends, in the authors' layout.
_STEM = 'patch_embed.proj.0.0.weight'


def spread_channels(weight: Tensor, channels: int) -> Tensor:
    """Return the weights of a convolution for images with another number of channels.

    The output for a grey image, whose channels are all equal, does not change. With more channels, the kernels repeat
    in the old order, and each old kernel is divided by the number of its copies (five channels: red, green, blue, red,
    green; the reds and greens are halved). With fewer channels, each gets an equal share of the sum of all kernels.

    Args:
        weight: (C, old channels, h, w).
        channels: Channels of the image.
    """
    old = weight.shape[1]
    if channels < old:
        return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels
    copies = [len(range(i % old, channels, old)) for i in range(channels)]
    return weight[:, [i % old for i in range(channels)]] / weight.new_tensor(copies)[:, None, None]


def fit_channels(model, state: dict, source) -> dict:
    """Return tensors by name with the stem spread over the channels of a model; a log line reports it.

    Args:
        model: The model that will load the tensors.
        state: The tensors of a file, by the model's names.
        source: The file, for the log.
    """
    spread = {}
    for name, value in model.state_dict().items():
        found = state.get(name)
        if name.endswith(_STEM) and found is not None and found.dim() == 4 and found.is_floating_point() and (
                found.shape[1] != value.shape[1] and found[:, :1].shape == value[:, :1].shape):
            spread[name] = spread_channels(found.float(), value.shape[1])
            print_log(f'{name}: the weights of {source} are for images with '
                      f'{counted(found.shape[1], "channels")}; they are spread over {value.shape[1]}', logger='current')
    return {**state, **spread}
