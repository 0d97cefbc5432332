"""DINO: self-distillation without labels; its projection head, its loss, and schedules that a resumed run continues."""
import math
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from mmengine.model import BaseModel, BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.special import entr

from ..errors import ConfigError
from ..models.trunk import init_linear


@MODELS.register_module()
class DINO(BaseModel):
    """Student and teacher of the same architecture, trained on views of images without labels.

    The student predicts from each view what the teacher outputs for another, global view. The teacher is a moving
    average of the student; its outputs are centred and sharpened. `DINOHook` moves the teacher and runs the schedules.
    Names in the state dict begin with ``student.`` and ``teacher.``; ``xcit_dense.weights`` takes the teacher by
    default. Paper: `Emerging Properties in Self-Supervised Vision Transformers <https://arxiv.org/abs/2104.14294>`_.

    Args:
        backbone: Config of a backbone that returns features (B, channels), such as `XCiTClassifier` with
            ``num_classes=0``. Its ``init_cfg`` starts both models. The teacher's has no stochastic depth.
        head: Config of a `DINOHead`; ``in_channels`` is that of the backbone by default.
        data_preprocessor: Config of mmpretrain's ``SelfSupDataPreprocessor``.
        global_views: How many views, the first ones, the teacher sees.
        student_temperature: Divides the student's outputs.
        centre_momentum: Momentum of the moving average of the teacher's outputs.

    Raises:
        ValueError: The momentum is not from 0 to 1.
    """

    def __init__(self, backbone: dict, head: dict, data_preprocessor=None, *, global_views: int = 2,
                 student_temperature: float = 0.1, centre_momentum: float = 0.9):
        if not 0 <= centre_momentum <= 1:
            raise ValueError(f'centre_momentum must be from 0 to 1, got {centre_momentum!r}')
        super().__init__(data_preprocessor)
        self.global_views, self.student_temperature = global_views, student_temperature
        self.student = Branch(backbone, head)
        self.teacher = TeacherBranch({**backbone, 'drop_path_rate': 0., 'init_cfg': None}, head, centre_momentum)
        self.teacher.requires_grad_(False)
        self.teacher.follow(self.student, 0.)
        #: Set by `DINOHook` before each iteration.
        self.teacher_temperature = None

    @property
    def backbone(self):
        """The backbone that a training results in: the teacher's."""
        return self.teacher.backbone

    def init_weights(self):
        """Initialise the student, and start the teacher from it."""
        super().init_weights()
        self.teacher.load_state_dict(self.student.state_dict(), strict=False)

    def forward(self, inputs, data_samples=None, mode: str = 'tensor'):
        """Return the losses of a batch, or the teacher's features.

        Args:
            inputs: Views of the images, normalised: a list of (B, channels, H, W), the global ones first. With mode
                ``tensor`` one batch of images.
            data_samples: Not used.
            mode: ``loss`` or ``tensor``.

        Returns:
            A dict with ``loss``, ``teacher_entropy`` and ``student_entropy``; or features (B, channels).
        """
        if mode == 'tensor':
            return self.backbone(inputs)
        if mode == 'loss':
            return self.loss(inputs)
        raise ConfigError(f'DINO has no outputs for the mode {mode!r}: it learns from images without labels. To test '
                          'its backbone, use test --knn or --linear with the config of a classifier')

    def loss(self, views) -> dict:
        """Return the loss and the entropies of a list of views; with fewer than two it raises `ConfigError`."""
        if len(views) < 2 or views[0].dim() != 4:  # one view is in no pair; without views, these are single images
            raise ConfigError("DINO compares at least 2 views of each image: add dict(type='MultiCrop') to the "
                              'train_pipeline, in front of PackInputs')
        student = self.student(views)
        with torch.no_grad():
            teacher = self.teacher(views[:self.global_views])
        loss, teacher_entropy, student_entropy = dino_loss(
            student, teacher, self.teacher.centre, self.student_temperature, self.teacher_temperature)
        self.teacher.move_centre(teacher)
        return dict(loss=loss, teacher_entropy=teacher_entropy, student_entropy=student_entropy)


class Branch(BaseModule):
    """Backbone and projection head of the student or the teacher."""

    def __init__(self, backbone: dict, head: dict):
        super().__init__()
        self.backbone = MODELS.build(backbone)
        if classes := getattr(self.backbone, 'num_classes', 0):
            raise ConfigError(f'DINO learns features, without a head for {classes} classes: set '
                              'model.backbone.num_classes=0')
        self.head = MODELS.build({'in_channels': self.backbone.embed_dims, **head})

    def forward(self, views) -> Tensor:
        """Return outputs (views, B, prototypes) for a list of views (B, channels, H, W).

        Neighbours of the same size run in one pass of the backbone.
        """
        features = [self.backbone(torch.cat(list(same))) for _, same in groupby(views, lambda view: view.shape[-2:])]
        return self.head(torch.cat(features)).unflatten(0, (len(views), -1))


class TeacherBranch(Branch):
    """A `Branch` that follows the student, and the centre of its outputs."""

    def __init__(self, backbone, head, centre_momentum: float):
        super().__init__(backbone, head)
        self.centre_momentum = centre_momentum
        self.register_buffer('centre', torch.zeros(self.head.num_prototypes))

    @torch.no_grad()
    def follow(self, student: Branch, momentum: float):
        """Move all parameters towards those of the student: ``momentum`` times the old plus the rest of the new.

        Statistics of batch norms are the teacher's own, as in the authors' code.
        """
        for own, theirs in zip(self.parameters(), student.parameters(), strict=True):
            own.mul_(momentum).add_(theirs.detach(), alpha=1 - momentum)

    @torch.no_grad()
    def move_centre(self, outputs: Tensor):
        """Move the centre towards the mean of the outputs (views, B, prototypes) of all processes."""
        mean = outputs.mean((0, 1), dtype=self.centre.dtype)  # float32 in mixed precision
        all_reduce(mean, 'mean')
        self.centre.mul_(self.centre_momentum).add_(mean, alpha=1 - self.centre_momentum)


@MODELS.register_module()
class DINOHead(nn.Module):
    """Three linear layers, L2 norm, and similarities with prototypes. Names of parameters are those of DINO's files.

    Paper: `Emerging Properties in Self-Supervised Vision Transformers <https://arxiv.org/abs/2104.14294>`_.

    Args:
        in_channels: Channels of the feature.
        num_prototypes: Outputs: 65,536 for ImageNet, fewer for small data.
        hidden_channels: Channels of the two hidden layers.
        bottleneck_channels: Channels of the normed output of the layers.
        norm_last_layer: Whether all prototypes have length 1. Otherwise their lengths are learned, which large models
            may use and which is less stable.
        batch_norm: Whether each hidden layer is followed by a batch norm. Small models then learn in far fewer steps:
            the features of a fresh one hardly differ between images.
    """

    def __init__(self, in_channels: int, num_prototypes: int = 65_536, hidden_channels: int = 2048,
                 bottleneck_channels: int = 256, norm_last_layer: bool = True, batch_norm: bool = False):
        super().__init__()
        self.num_prototypes = num_prototypes
        sizes = in_channels, hidden_channels, hidden_channels
        layers = [layer for inputs, outputs in pairwise(sizes) for layer in (
            nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if batch_norm else []), nn.GELU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden_channels, bottleneck_channels))
        self.apply(init_linear)
        self.last_layer = Prototypes(bottleneck_channels, num_prototypes, norm_last_layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, num_prototypes) for features (B, in_channels)."""
        return self.last_layer(F.normalize(self.mlp(x), dim=-1))


class Prototypes(nn.Module):
    """A linear layer without bias whose rows have a direction (``weight_v``) and a length (``weight_g``)."""

    def __init__(self, in_channels, num_prototypes, norm: bool):
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(num_prototypes, 1), requires_grad=not norm)
        # as torch's linear layers start
        self.weight_v = nn.Parameter(torch.empty(num_prototypes, in_channels).uniform_(-1, 1) / in_channels**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the similarities (B, num_prototypes) of features (B, in_channels)."""
        return F.linear(x, F.normalize(self.weight_v, dim=-1) * self.weight_g)


def dino_loss(student: Tensor, teacher: Tensor, centre: Tensor, student_temperature: float,
              teacher_temperature: float):
    """Return the cross-entropy between the teacher's and the student's distributions of different views.

    Args:
        student: Outputs for all views, at least two, (views, B, prototypes); the teacher's come first, in their order.
        teacher: Outputs for the teacher's views, (global views, B, prototypes); a lower temperature is sharper.
        centre: What is subtracted from the teacher's outputs, (prototypes, ). All is computed in its precision, also
            within autocast.

    Returns:
        The loss, averaged over images and pairs of different views; the mean entropy of the teacher's distributions;
        that of the student's. All in nats.
    """
    student, teacher = student.to(centre.dtype), teacher.to(centre.dtype)
    with torch.autocast(student.device.type, enabled=False):
        targets = ((teacher - centre) / teacher_temperature).softmax(-1)
        logs = (student / student_temperature).log_softmax(-1)
        products = torch.einsum('gbk,vbk->gv', targets, logs) / student.shape[1]
    pairs = products.numel() - len(targets)
    loss = (products.trace() - products.sum()) / pairs
    with torch.no_grad():
        entropies = entr(targets).sum(-1).mean(), entr(logs.exp()).sum(-1).mean()
    return loss, *entropies


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Return the value at ``step`` (from 0) of a half cosine wave from ``start`` towards ``end`` in ``steps``."""
    return end + (start - end) * (1 + math.cos(math.pi * step / steps)) / 2


def linear(start: float, end: float, step: int, steps: int) -> float:
    """Return the value at ``step`` (from 0) of a line that reaches ``end`` at the last of ``steps`` and stays there."""
    return end if step >= steps else start + (end - start) * step / max(steps - 1, 1)
