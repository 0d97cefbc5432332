"""Features that do not change, and a classifier by nearest neighbours that judges them, as in DINO.

A feature is the class token of a classifier without its head.
"""
from itertools import chain, repeat

import torch
import torch.nn.functional as F
from mmengine.dist import all_gather
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS
from torch import Tensor
from tqdm import tqdm

from .._utils.processes import is_first_process
from .._utils.text import counted
from ..data.batches import step_by_size, unwrapped
from ..errors import CheckpointError
from ..train.loaders import ResumableLoader
from ..weights import find_state_dict, read_checkpoint
from ..weights.layouts import Contents

#: Similarities that are computed at a time: 64 MiB.
_CELLS = 2**24


def load_features(runner, source):
    """Load the backbone of a classifier strictly; heads in the file are left out, as are the classes of its images.

    The model of the runner has no head of its own; it loads nothing more. ``source`` is as for `read_checkpoint`.
    `CheckpointError` if the file has no class token, or holds another arch.
    """
    contents = Contents.of(find_state_dict(read_checkpoint(source), source), source)
    if 'cls_token' not in contents.tensors:
        raise CheckpointError(f'{source} holds {contents}, without a class token, whose features --knn '
                              'and --linear judge: give a classifier, or a checkpoint or published file of DINO')
    unwrapped(runner.model).backbone.load_weights(source)
    runner.has_loaded = True


class Features:
    """Features of the images of a loader, joined over all processes in the order of one process.

    The model of the runner makes them in evaluation mode, without gradients. ``loader`` is a config, whose sampler
    deals the images out to the processes in turn; the seed is that of their order and augmentation.
    """

    def __init__(self, runner, loader: dict, seed: int = 0):
        self.model = unwrapped(runner.model)
        self.loader = ResumableLoader(runner.build_dataloader(loader, seed), seed)

    def passes(self, title: str, count: int = 1):
        """Yield batches of all processes: features (B, C) float32, labels (B, ), and whether the pass ends with it."""
        return tqdm(chain.from_iterable(repeat(self, count)), title, count * len(self.loader),
                    disable=not is_first_process())

    def __iter__(self):
        """Yield the batches of one pass."""
        self.model.eval()
        missing = len(self.loader.dataset)  # a sampler may fill up the last batch
        for batch in self.loader:
            with torch.no_grad():
                features = torch.stack([*step_by_size(lambda part: self.model.extract_feat(
                    self.model.data_preprocessor(part, False)['inputs']).float(), self.model, batch)])
            labels = torch.tensor([int(sample.gt_label) for sample in batch['data_samples']])
            parts = [torch.stack(all_gather(part.to(features.device).contiguous()), 1).flatten(0, 1)[:missing]
                     for part in (features, labels)]
            missing -= len(parts[0])
            yield *parts, missing == 0

    def once(self):
        """Return the features (N, C) and the labels (N, ) of one pass."""
        features, labels, _ = zip(*self.passes('features of the training images'), strict=True)
        return torch.cat(features), torch.cat(labels)


def knn_scores(queries: Tensor, features: Tensor, labels: Tensor, num_classes: int, k: int = 20,
               temperature: float = 0.07) -> Tensor:
    """Return the share of each class in a vote of the nearest features, (B, num_classes).

    For each of the queries (B, C), the ``k`` nearest of the features (N, C) vote for their labels (N, ), all if there
    are fewer. All features have length 1. A vote weighs ``exp(cosine similarity / temperature)``.
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
    """A head without weights, whose scores are those of `knn_scores`. `KNNHook` fills in the training images."""

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
    """Computes the features of the training images before a test, for a `KNNHead` in which ``k`` of them vote.

    ``loader`` is the config of the loader of these images.
    """

    def __init__(self, loader: dict, k: int = 20):
        self._loader, self._k = loader, k

    def before_test(self, runner):
        """Fill the head; runs after the hooks that fuse the backbone or change its type."""
        head = unwrapped(runner.model).head
        head.fit(*Features(runner, self._loader).once(), self._k)
        runner.logger.info(f'classified by {head.facts[0][1]}')
