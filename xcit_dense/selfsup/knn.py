"""Classify images by their nearest neighbours among the training images, as DINO does to judge features."""
import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS
from torch import Tensor

from ..text import counted
from ..train.sharding import unwrapped
from .features import Features, Progress

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
        progress = Progress(runner.logger, 'features of the training images', len(batches))
        for part, classes, _ in batches:
            if features is None:  # one tensor from the start, as those of ImageNet take gigabytes
                features = part.new_empty(len(batches), part.shape[1])
            features[done:done + len(part)] = part
            labels.append(classes)
            done += len(part)
            progress.add(len(part))
        if self._k > len(batches):
            runner.logger.warning(f'--knn {self._k}: there are only {counted(len(batches), "training images")}, so all '
                                  'of them vote')
        head.fit(features, torch.cat(labels), self._k)
        runner.logger.info(f'classified by {head.facts[0][1]}')
