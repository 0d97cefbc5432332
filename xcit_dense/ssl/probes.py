"""Judge features that do not change, as DINO does: by nearest neighbours, and by a linear layer trained on them.

A feature is the class token of a classifier without its head.
"""
from itertools import chain, repeat

import torch
import torch.nn.functional as F
from mmengine.dist import all_gather
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from tqdm import tqdm

from .._utils.processes import is_first_process
from .._utils.text import counted
from ..data.batches import step_by_size, unwrapped
from ..errors import CheckpointError
from ..train.loaders import Around, ResumableLoader
from ..weights import find_state_dict, read_checkpoint
from ..weights.layouts import Contents

#: Similarities that are computed at a time: 64 MiB.
_CELLS = 2**24


def load_features(runner, source):
    """Load the backbone of a classifier strictly; heads in the file are left out, as are the classes of its images.

    Args:
        runner: Its model is a classifier without a head of its own; it loads nothing more.
        source: As for `xcit_dense.weights.read_checkpoint`: any file with a class token.

    Raises:
        CheckpointError: The file has no class token, or holds another arch.
    """
    contents = Contents.of(find_state_dict(read_checkpoint(source), source), source)
    if 'cls_token' not in contents.tensors:
        raise CheckpointError(f'{source} holds {contents}, without a class token, whose features --knn and --linear '
                              'judge: give a classifier, or a checkpoint or published file of DINO')
    unwrapped(runner.model).backbone.load_weights(source)
    runner.has_loaded = True


class Numbered(Around):
    """A data set of mmpretrain whose samples carry their number in the data set, also in one of several joined ones."""

    def __getitem__(self, index):
        sample = self.inner[index]
        sample['data_samples'].set_metainfo(dict(sample_idx=index))
        return sample


class Features:
    """Features of the images of a loader, pass by pass, joined over all processes in the order of one process.

    Args:
        runner: Its model makes the features in evaluation mode, without gradients.
        loader: Config of the loader; its sampler deals the images out to the processes in turn.
        seed: Seed of the order and of the augmentation.
    """

    def __init__(self, runner, loader: dict, seed: int = 0):
        self.model = unwrapped(runner.model)
        dataset = Numbered(DATASETS.build(loader['dataset']))
        self.loader = ResumableLoader(runner.build_dataloader(dict(loader, dataset=dataset), seed), seed)

    def __len__(self):
        return len(self.loader.dataset)

    def passes(self, title: str, count: int = 1):
        """Yield the batches of some passes, with a progress bar."""
        return tqdm(chain.from_iterable(repeat(self, count)), title, count * len(self.loader),
                    disable=not is_first_process())

    def __iter__(self):
        """Yield batches of all processes: features (B, C) float32, labels (B, ), numbers of the images (B, )."""
        self.model.eval()
        missing = len(self)  # of this pass; a sampler may fill up the last batch
        for batch in self.loader:
            with torch.no_grad():
                features = torch.stack([*step_by_size(self._extract, self.model, batch)])
            samples = batch['data_samples']
            labels = torch.tensor([int(sample.gt_label) for sample in samples])
            numbers = torch.tensor([sample.sample_idx for sample in samples])
            parts = [torch.stack(all_gather(part.to(features.device).contiguous()), 1).flatten(0, 1)[:missing]
                     for part in (features, labels, numbers)]
            missing -= len(parts[0])
            yield parts

    def _extract(self, batch):
        return self.model.extract_feat(self.model.data_preprocessor(batch, False)['inputs']).float()


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
        """Return the logarithms of the scores (B, num_classes) of features (B, C): a softmax gives the scores."""
        return knn_scores(F.normalize(feats.float()), self.features, self.labels, self.num_classes, self.k,
                          self.temperature).log()


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
        batches = Features(runner, self._loader).passes('features of the training images')
        features, labels, _ = map(torch.cat, zip(*batches, strict=True))
        head.fit(features, labels, self._k)
        runner.logger.info(f'classified by {head.facts[0][1]}')


#: Learning rates for 256 images in a batch. DINO's is 0.001, but the best one depends on the features and the data.
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.)
#: One in so many training images is held out to choose the rate.
HELD_OUT = 10


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
        self.rates = tuple(rates)
        self._choosing, self._final = ([nn.Linear(in_channels, num_classes, device=device) for _ in self.rates]
                                       for _ in range(2))
        for layer in (*self._choosing, *self._final):
            layer.load_state_dict(dict(weight=start, bias=torch.zeros(num_classes)))
        self._optimizer = torch.optim.SGD([
            dict(params=[*choosing.parameters(), *final.parameters()], lr=rate)
            for rate, choosing, final in zip(self.rates, self._choosing, self._final, strict=True)], momentum=0.9)
        self._schedule = CosineAnnealingLR(self._optimizer, steps)

    @torch.enable_grad()
    def step(self, features: Tensor, labels: Tensor, held_out: Tensor):
        """Take a step on features (B, C), their classes (B, ) and whether each is held out (B, )."""
        self._optimizer.zero_grad()
        parts = [(self._final, features, labels), (self._choosing, features[~held_out], labels[~held_out])]
        # the sum: no layer is part of another's loss
        sum(F.cross_entropy(layer(inputs), targets) for layers, inputs, targets in parts if len(targets)
            for layer in layers).backward()
        self._optimizer.step()
        self._schedule.step()

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
        model = unwrapped(runner.model)
        seed = (runner.cfg.get('randomness') or {}).get('seed') or 0  # without one, two tests give the same figures
        batches = Features(runner, self._loader, seed)
        probes = None
        for features, labels, numbers in batches.passes(f'linear layer, {self._epochs} epochs', self._epochs):
            if probes is None:  # the first batch is a full one
                rates = [rate * len(labels) / 256 for rate in RATES]
                probes = LinearProbes(features.shape[1], model.head.num_classes, rates,
                                      self._epochs * len(batches.loader), seed, features.device)
            probes.step(features, labels, numbers % HELD_OUT == 0)
        held_out = Features(runner, self._held_out_loader)
        layer, best, accuracies = probes.choose(
            (features[numbers % HELD_OUT == 0], labels[numbers % HELD_OUT == 0])
            for features, labels, numbers in held_out.passes('features of the training images'))
        model.head.fit(layer, f'a linear layer on frozen features, trained for {counted(self._epochs, "epochs")} on '
                       f'{counted(len(batches), "training images")} with the learning rate {best:.3g}')
        rates = ', '.join(f'{rate:.3g}: {value:.2f}' for rate, value in zip(probes.rates, accuracies, strict=True))
        runner.logger.info(f'classified by {model.head.facts[0][1]}. One in {HELD_OUT} of them was '
                           f'held out to choose the rate (rate: accuracy in percent): {rates}')
