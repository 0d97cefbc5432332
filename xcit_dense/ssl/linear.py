"""A linear layer that judges features that do not change, as in DINO."""
import torch
import torch.nn.functional as F
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from .._utils.processes import end_workers
from .._utils.text import counted
from ..data.batches import unwrapped
from .probes import Features

#: Learning rates for 256 images in a batch. The first is DINO's; the short form takes the best of all.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.)
#: One in so many images of each class is held out by the short form to choose the rate.
HELD_OUT = 10
#: Fewer held-out images say little.
_FEW = 30
#: Images in a batch of the short form.
_BATCH = 256


class LinearLayers:
    """Linear layers that learn from the same features, each with its own of the ``rates`` at the start.

    SGD with momentum 0.9 and without weight decay; after each of the ``epochs``, the rates follow a cosine to 0. All
    layers start with the same weights, which the seed gives. Protocol: `DINO <https://arxiv.org/abs/2104.14294>`_,
    section 4.1 and its code.
    """

    def __init__(self, in_channels: int, num_classes: int, rates, epochs: int, seed: int = 0, device='cpu'):
        start = 0.01 * torch.randn(num_classes, in_channels, generator=torch.Generator().manual_seed(seed))
        self.layers = [nn.Linear(in_channels, num_classes, device=device) for _ in rates]
        for layer in self.layers:
            layer.load_state_dict(dict(weight=start, bias=torch.zeros(num_classes)))
        groups = [dict(params=layer.parameters(), lr=rate) for rate, layer in zip(rates, self.layers, strict=True)]
        self._optimizer = torch.optim.SGD(groups, momentum=0.9)
        self._schedule = CosineAnnealingLR(self._optimizer, epochs)

    @torch.enable_grad()
    def step(self, features: Tensor, labels: Tensor, ends: bool):
        """Take a step on features (B, C) and their classes (B, ); ``ends``: the pass ends with it."""
        self._optimizer.zero_grad()
        sum(F.cross_entropy(layer(features), labels) for layer in self.layers).backward()  # no layer is in two terms
        self._optimizer.step()
        if ends:
            self._schedule.step()

    def fit(self, features: Tensor, labels: Tensor, epochs: int, seed: int = 0):
        """Learn from features (N, C) and their classes (N, ) in batches in random order; return itself."""
        order = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            batches = torch.randperm(len(labels), generator=order).to(labels.device).split(_BATCH)
            for number, places in enumerate(batches, 1):
                self.step(features[places], labels[places], number == len(batches))
        return self

    @torch.no_grad()
    def judge(self, features: Tensor, labels: Tensor):
        """Return the place of the best layer for features (N, C) of classes (N, ), and the accuracies in percent.

        Of layers with the same accuracy, the one with the lowest loss is the best.
        """
        logits = [layer(features) for layer in self.layers]
        accuracies = [100 * float((each.argmax(1) == labels).float().mean()) for each in logits]
        losses = [float(F.cross_entropy(each, labels)) for each in logits]
        return max(range(len(logits)), key=lambda place: (accuracies[place], -losses[place])), accuracies


def hold_out(labels: Tensor) -> Tensor:
    """Return which images are held out, (N, ): of the classes (N, ) with two or more images, one in `HELD_OUT`."""
    found = torch.zeros_like(labels, dtype=torch.bool)
    for label in labels.unique():
        places = (labels == label).nonzero().flatten()
        found[places[::HELD_OUT]] = len(places) > 1
    return found


@MODELS.register_module()
class LinearProbeHead(ClsHead):
    """A linear layer that is no part of a checkpoint. `LinearProbeHook` trains it."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.weight = self.bias = None
        #: For a report: how this head classifies.
        self.facts = ()

    def fit(self, layer: nn.Linear, origin: str):
        """Take the weights of a layer, those of the first process in all; and where it is from as text."""
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        for value in (self.weight, self.bias):
            broadcast(value)
        self.facts = [('classified by', origin)]

    def forward(self, feats: Tensor) -> Tensor:
        """Return the logits (B, num_classes) of features (B, C)."""
        return F.linear(feats.float(), self.weight, self.bias)


@HOOKS.register_module()
class LinearProbeHook(Hook):
    """Trains the linear layer of a `LinearProbeHead` on the training images before a test.

    Args:
        loader: Config of the loader of these images, shuffled and augmented; for the short form in order, as in the
            test.
        epochs: Passes over the images.
        short: Compute the features once, and learn from them with the best of `RATES`, which one in `HELD_OUT`
            training images chooses. By default every pass computes them anew, with the rate of the DINO paper.
    """

    def __init__(self, loader: dict, epochs: int = 100, short: bool = False):
        self._loader, self._epochs, self._short = loader, epochs, short

    def before_test(self, runner):
        """Train; runs after the hooks that fuse the backbone or change its type."""
        head = unwrapped(runner.model).head
        seed = (runner.cfg.get('randomness') or {}).get('seed') or 0  # without one, two tests give the same figures
        features = Features(runner, self._loader, seed)
        layer, rate = (self._best if self._short else self._trained)(features, head.num_classes, seed, runner.logger)
        images = counted(len(features.loader.dataset), 'training images')
        end_workers()  # a loader that is forgotten waits for each of them
        head.fit(layer, f'a linear layer on frozen features, trained for {counted(self._epochs, "epochs")} on {images} '
                 f'{"without augmentation" if self._short else "with crops and flips"}, learning rate {rate:.3g}')
        runner.logger.info(f'classified by {head.facts[0][1]}')

    def _trained(self, features, num_classes, seed, logger):
        layers = None
        for inputs, labels, ends in features.passes(f'linear layer, {self._epochs} epochs', self._epochs):
            if layers is None:  # the first batch is a full one
                rate = RATES[0] * len(labels) / 256
                layers = LinearLayers(inputs.shape[1], num_classes, [rate], self._epochs, seed, inputs.device)
            layers.step(inputs, labels, ends)
        if len(features.loader) < 100:
            logger.warning(f'{self._epochs * len(features.loader):,} steps with a learning rate of {rate:.3g}, which '
                           'is for ImageNet, may be too few for a linear layer. For small data: --linear short')
        return layers.layers[0], rate

    def _best(self, features, num_classes, seed, logger):
        inputs, labels = features.once()
        held_out = hold_out(labels)
        if (count := int(held_out.sum())) < _FEW:
            logger.warning(f'the learning rate is chosen by only {counted(count, "held-out images")}, so the accuracy '
                           'may be better with another one' if count else 'no class has two training images, so the '
                           'images that the layer learns from choose the learning rate')
            held_out = held_out if count else torch.ones_like(held_out)
        scale = min(len(labels), _BATCH) / 256

        def learned(rates, some):
            layers = LinearLayers(inputs.shape[1], num_classes, rates, self._epochs, seed, inputs.device)
            return layers.fit(inputs[some], labels[some], self._epochs, seed)

        best, accuracies = learned([scale * rate for rate in RATES], ~held_out if count else held_out).judge(
            inputs[held_out], labels[held_out])
        found = ', '.join(f'{scale * rate:.3g}: {value:.2f}' for rate, value in zip(RATES, accuracies, strict=True))
        logger.info(f'one in {HELD_OUT} training images of each class chose the learning rate (rate: accuracy in '
                    f'percent): {found}')
        return learned([scale * RATES[best]], slice(None)).layers[0], scale * RATES[best]
