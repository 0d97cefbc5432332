"""Changes that users make to a model: wrapping, replacing, pruning, parametrising, hooking layers."""
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from helpers.models import build, randomise
from xcit_dense.models.stem import ConvPatchEmbed

#: Grids of patch 8 below and above the threshold of the Gram form, 1.5 to 1.7 times 32 channels.
SIZES = ((48, 56), (88, 72))


def make(**options):
    return randomise(build(8, **dict(out_indices=(0, 1), out_strides=(4, 16)) | options))


def replaced(module, name, make):
    owner, _, last = name.rpartition('.')
    owner = module.get_submodule(owner)
    setattr(owner, last, make(getattr(owner, last)))


class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return 2 * self.inner(*args)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1.5


def lora_of_peft(model):
    from peft import LoraConfig, inject_adapter_in_model
    config = LoraConfig(r=2, target_modules=['attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2'], init_lora_weights=False)
    inject_adapter_in_model(config, model)


def on_layer(name, touch):
    """A change of one layer of every block, or of the block."""

    def run(model):
        for block in model.blocks:
            touch(block.get_submodule(name))

    return run


def in_place_of(name, make):
    return on_layer('', lambda block: replaced(block, name, make))


def of_class(kind):
    return lambda module: setattr(module, '__class__', kind)


def buffer_for_bias(layer):
    bias = layer.bias.detach() + 0.5
    del layer.bias
    layer.register_buffer('bias', bias)


class OwnBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0.5


class OwnStem(ConvPatchEmbed):
    """Reads its own norm."""

    def forward(self, x):
        return super().forward(x) * self.proj[0][1].weight.sum()


class Marked(torch.Tensor):
    """A subclass, as quantisers use them; it doubles its products."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return 2 * out.as_subclass(torch.Tensor) if function is nn.functional.linear else out


def circular(conv):
    conv._conv_forward = lambda x, weight, bias: nn.functional.conv2d(
        nn.functional.pad(x, (1, 1, 1, 1), mode='circular'), weight, bias, groups=conv.groups)


def functions(block):
    del block.drop_path, block.norm2
    block.drop_path, block.norm2 = torch.abs, torch.tanh


def attention_alone(block):
    block.forward = lambda x, height, width: x + block.norm1(block.gamma1 * block.attn(x))


def method(layer):
    layer.forward = lambda x, run=layer.forward: 1.5 * run(x)


LAYERS = ('norm1', 'attn', 'attn.qkv', 'attn.proj', 'norm3', 'local_mp', 'local_mp.conv1', 'local_mp.act',
          'local_mp.bn', 'local_mp.conv2', 'norm2', 'mlp', 'mlp.fc1', 'mlp.act', 'mlp.fc2', 'drop_path')
#: Changes that affect the output of the model.
TOUCHES = {
    'LoRA of peft': lora_of_peft,
    'pruning': on_layer('mlp.fc1', lambda layer: prune.l1_unstructured(layer, 'weight', 0.7)),
    'parametrised spectral norm': on_layer('attn.qkv', parametrizations.spectral_norm),
    'another activation': in_place_of('mlp.act', lambda _: nn.ReLU()),
    'approximate GELU': on_layer('mlp.act', lambda act: setattr(act, 'approximate', 'tanh')),
    'a convolution that pads around the map': on_layer('local_mp.conv2', circular),
    'a buffer for a bias': on_layer('mlp.fc1', buffer_for_bias),
    'a weight of a subclass': on_layer(
        'mlp.fc2', lambda layer: setattr(layer, 'weight', nn.Parameter(layer.weight.detach().as_subclass(Marked)))),
    'pruning of LayerScale': on_layer('', lambda block: prune.l1_unstructured(block, 'gamma1', 0.5)),
    'a subclass of Linear': on_layer('attn.proj', of_class(OwnLinear)),
    'a method in its place': on_layer('mlp.fc1', method),
    'another norm': in_place_of('norm2', lambda _: nn.RMSNorm(32)),
    'one temperature': on_layer(
        'attn', lambda attn: setattr(attn, 'temperature', nn.Parameter(torch.full((1, 1, 1), 2.)))),
    'a temperature of each channel': on_layer(
        'attn', lambda attn: setattr(attn, 'temperature', nn.Parameter(torch.rand(4, 1, 8) + 0.5))),
    'LayerScale of one number': on_layer('', lambda block: setattr(block, 'gamma2', nn.Parameter(torch.tensor(0.3)))),
    'functions for stochastic depth and a norm': on_layer('', functions),
    'a forward put into a block': on_layer('', attention_alone),
    'a subclass of the batch norm': on_layer('local_mp.bn', of_class(OwnBatchNorm)),
    'a subclass of the stem': lambda model: of_class(OwnStem)(model.patch_embed),
    'a subclass of the batch norm in the stem': lambda model: of_class(OwnBatchNorm)(model.patch_embed.proj[0][1]),
    'another activation in the stem': lambda model: replaced(model, 'patch_embed.proj.1', lambda _: nn.ReLU()),
    'another projection of positions': lambda model: replaced(model, 'pos_embeder.token_projection', Doubled),
    'another level': lambda model: replaced(model, 'fpn1.0', Doubled),
} | {f'a wrapper of {name}': in_place_of(name, Doubled) for name in LAYERS if name != 'drop_path'}


def touched(touch=lambda model: None, training=True, **options):
    """Return a changed model, the same at every call; it is built each time, as not every change can be copied."""
    torch.manual_seed(1)
    model = make(**options)
    touch(model)
    return model.train(training)
