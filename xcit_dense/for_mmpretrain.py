"""Modules that mmpretrain lacks.

Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmpretrain'])``.
"""
from mmpretrain.models.heads import ClsHead
from mmpretrain.registry import MODELS

from .data.unlabelled import MultiCrop, UnlabelledImages
from .ssl.dino import DINO, DINOHead
from .ssl.dino_hooks import DINOHook
from .ssl.distillation import DistilledClassifier, TeacherHook
from .ssl.linear import LinearProbeHead, LinearProbeHook
from .ssl.probes import KNNHead, KNNHook

__all__ = ['DINO', 'DINOHead', 'DINOHook', 'DistilledClassifier', 'KNNHead', 'KNNHook',
           'LinearProbeHead', 'LinearProbeHook', 'LogitsHead', 'MultiCrop', 'TeacherHook', 'UnlabelledImages']


@MODELS.register_module()
class LogitsHead(ClsHead):
    """A head without layers, for a backbone that outputs logits (B, num_classes), such as `XCiTClassifier`.

    Arguments are those of `mmpretrain.models.heads.ClsHead`: ``loss``, ``topk`` and ``cal_acc``.
    """

    def pre_logits(self, feats):
        """Return the logits as they are; here ``feats`` is not a tuple of stages."""
        return feats
