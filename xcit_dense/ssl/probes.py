"""Judge features that do not change, as DINO does: by nearest neighbours, and by a linear layer trained on them."""
import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS
from torch import Tensor, nn

from .._utils.text import counted
from ..data.batches import unwrapped
from .dino import cosine
from .features import Features, seed_of

#: Similarities that are computed at a time: 64 MiB.
_CELLS = 2**24


def knn_scores(queries: Tensor, features: Tensor, labels: Tensor, num_classes: int, k: int = 20,
               temperature: float = 0.07) -> Tensor:
    """Return the share of each class in a vote of the nearest features, (B, num_classes).

    A vote weighs ``exp(cosine similarity / temperature)``.

    Args:
        queries: Features (B, C) of length 1.
        features: Features (N, C) of length 1 with known classes.
        labels: Their classes (N, ).
        num_classes: Number of classes.
        k: How many vote; all if there are fewer.
        temperature: Lower gives more weight to the nearest.
    """
    nearest, classes = queries.new_empty(len(queries), 0), labels.new_empty(len(queries), 0)
    step = max(_CELLS // len(queries), 1)
    for start in range(0, len(features), step):
        nearest = torch.cat((nearest, queries @ features[start:start + step].T), 1)
        classes = torch.cat((classes, labels[start:start + step].expand(len(queries), -1)), 1)
        nearest, places = nearest.topk(min(k, nearest.shape[1]))
        classes = classes.gather(1, places)
    weights = (nearest / temperature).softmax(1)
    return (weights[:, None] @ F.one_hot(classes, num_classes).to(weights)).squeeze(1)


@MODELS.register_module()
class KNNHead(ClsHead):
    """A head without weights, whose scores are those of `knn_scores`. `KNNHook` fills in the training images.

    Args:
        num_classes: Number of classes.
        temperature: As for `knn_scores`.
    """

    def __init__(self, num_classes: int, temperature: float = 0.07):
        super().__init__()
        self.num_classes, self.temperature = num_classes, temperature
        self.k = self.features = self.labels = None
        #: For a report: how this head classifies.
        self.facts = ()

    def fit(self, features: Tensor, labels: Tensor, k: int):
        """Keep features (N, C) of the training images, normed in place, and their classes (N, ); ``k`` vote."""
        self.features = F.normalize(features, out=features)
        self.labels, self.k = labels, min(k, len(labels))
        self.facts = [('classified by', f'a vote of the {self.k} nearest of {counted(len(labels), "training images")}, '
                       f'by cosine similarity with temperature {self.temperature:g}')]

    def forward(self, feats: Tensor) -> Tensor:
        """Return the scores (B, num_classes) of features (B, C)."""
        return knn_scores(F.normalize(feats.float()), self.features, self.labels, self.num_classes, self.k,
                          self.temperature)

    def predict(self, feats: Tensor, data_samples) -> list:
        """Return the data samples with the scores and the class of the highest one."""
        scores = self(feats)
        return [sample.set_pred_score(score).set_pred_label(score.argmax(0, keepdim=True))
                for sample, score in zip(data_samples, scores, strict=True)]


@HOOKS.register_module()
class KNNHook(Hook):
    """Computes the features of the training images before a test, for `KNNHead`.

    Args:
        loader: Config of the loader of these images.
        k: How many vote.
    """

    def __init__(self, loader: dict, k: int = 20):
        self._loader, self._k = loader, k

    def before_test(self, runner):
        """Fill the head; runs after the hooks that fuse the backbone or change its type."""
        head = unwrapped(runner.model).head
        batches, features, labels, done = Features(runner, self._loader, head.num_classes), None, [], 0
        for part, classes, _ in batches.passes('features of the training images'):
            if features is None:  # one tensor from the start, as those of ImageNet take gigabytes
                features = part.new_empty(len(batches), part.shape[1])
            features[done:done + len(part)] = part
            labels.append(classes)
            done += len(part)
        if self._k > len(batches):
            runner.logger.warning(f'--knn {self._k}: there are only {counted(len(batches), "training images")}, so all '
                                  'of them vote')
        head.fit(features, torch.cat(labels), self._k)
        runner.logger.info(f'classified by {head.facts[0][1]}')


#: Learning rates for 256 images in a batch. DINO's is 0.001, but the best one depends on the features and the data.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.)
#: One in so many training images is held out to choose the rate, and with fewer of these, chance decides.
HELD_OUT, _FEW = 10, 50


class LinearProbes:
    """Linear layers that learn from the same features, each with its own learning rate: SGD without weight decay.

    There are two layers for each rate. The first learns without the images that are held out, whose accuracy chooses
    the rate; the second learns from all images and is the one that is tested.

    Args:
        in_channels: Channels of a feature.
        num_classes: Number of classes.
        rates: Learning rates at the start; each follows a cosine to 0.
        steps: Number of steps.
        seed: Seed of the weights at the start, which all layers share.
        device: Where they are.
    """

    def __init__(self, in_channels: int, num_classes: int, rates, steps: int, seed: int = 0, device='cpu'):
        start = 0.01 * torch.randn(num_classes, in_channels, generator=torch.Generator().manual_seed(seed))
        self.rates, self._steps, self._step = tuple(rates), steps, 0
        self._choosing, self._final = ([nn.Linear(in_channels, num_classes, device=device) for _ in self.rates]
                                       for _ in range(2))
        with torch.no_grad():
            for layer in (*self._choosing, *self._final):
                layer.weight.copy_(start)
                layer.bias.zero_()
        self._optimizer = torch.optim.SGD([
            dict(params=[*choosing.parameters(), *final.parameters()], lr=rate)
            for rate, choosing, final in zip(self.rates, self._choosing, self._final, strict=True)], momentum=0.9)

    @torch.enable_grad()
    def step(self, features: Tensor, labels: Tensor, held_out: Tensor):
        """Take a step on features (B, C), their classes (B, ) and whether each is held out (B, )."""
        for rate, group in zip(self.rates, self._optimizer.param_groups, strict=True):
            group['lr'] = cosine(rate, 0., self._step, self._steps)
        self._optimizer.zero_grad()
        parts = [(self._final, features, labels), (self._choosing, features[~held_out], labels[~held_out])]
        # the sum: no layer is part of another's loss
        sum(F.cross_entropy(layer(inputs), targets) for layers, inputs, targets in parts if len(targets)
            for layer in layers).backward()
        self._optimizer.step()
        self._step += 1

    @torch.no_grad()
    def choose(self, batches):
        """Return the layer of the best rate, that rate, and the accuracy of each rate in percent.

        Args:
            batches: Features and classes of the images that were held out. Of rates with the same accuracy, the one
                with the lowest loss is the best.
        """
        correct, losses, images = [0] * len(self.rates), [0.] * len(self.rates), 0
        for features, labels in batches:
            images += len(labels)
            for place, layer in enumerate(self._choosing):
                logits = layer(features)
                correct[place] += int((logits.argmax(1) == labels).sum())
                losses[place] += float(F.cross_entropy(logits, labels, reduction='sum'))
        best = max(range(len(self.rates)), key=lambda place: (correct[place], -losses[place]))
        return self._final[best], self.rates[best], [100 * count / images for count in correct]


@MODELS.register_module()
class LinearProbeHead(ClsHead):
    """A linear layer that is no part of a checkpoint. `LinearProbeHook` trains it.

    Args:
        num_classes: Number of classes.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.weight = self.bias = None
        #: For a report: how this head classifies.
        self.facts = ()

    def fit(self, layer: nn.Linear, origin: str):
        """Take the weights of a layer, and where it is from as text."""
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.facts = [('classified by', origin)]

    def forward(self, feats: Tensor) -> Tensor:
        """Return the logits (B, num_classes) of features (B, C)."""
        return F.linear(feats.float(), self.weight, self.bias)


@HOOKS.register_module()
class LinearProbeHook(Hook):
    """Trains the linear layer of a `LinearProbeHead` on the training images before a test.

    Args:
        loader: Config of the loader of these images, shuffled and augmented.
        held_out_loader: Config of the loader of the same images in order, as in the test.
        epochs: Passes over the images.
    """

    def __init__(self, loader: dict, held_out_loader: dict, epochs: int = 100):
        self._loader, self._held_out_loader, self._epochs = loader, held_out_loader, epochs

    def before_test(self, runner):
        """Train; runs after the hooks that fuse the backbone or change its type."""
        model, seed = unwrapped(runner.model), seed_of(runner)
        batches = Features(runner, self._loader, model.head.num_classes, seed)
        probes = None
        for features, labels, numbers in batches.passes(f'linear layer, {self._epochs} epochs', self._epochs):
            if probes is None:  # the first batch is a full one
                rates = [rate * len(labels) / 256 for rate in RATES]
                probes = LinearProbes(features.shape[1], model.head.num_classes, rates,
                                      self._epochs * len(batches.loader), seed, features.device)
            probes.step(features, labels, numbers.to(labels.device) % HELD_OUT == 0)
        held_out = Features(runner, self._held_out_loader, model.head.num_classes, step=HELD_OUT)
        if len(held_out) < _FEW:
            runner.logger.warning(f'--linear: only {counted(len(held_out), "training images")} (one in {HELD_OUT}) '
                                  'choose the learning rate, so it may not be the best one')
        layer, best, accuracies = probes.choose(batch[:2] for batch in held_out)
        model.head.fit(layer, f'a linear layer on frozen features, trained for {counted(self._epochs, "epochs")} on '
                       f'{counted(len(batches), "training images")} with the learning rate {best:.3g}')
        rates = ', '.join(f'{rate:.3g}: {value:.2f}' for rate, value in zip(probes.rates, accuracies, strict=True))
        runner.logger.info(f'classified by {model.head.facts[0][1]}. {counted(len(held_out), "images")} of them were '
                           f'held out to choose the rate (rate: accuracy in percent): {rates}')
