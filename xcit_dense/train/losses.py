"""A loss for segmentors; imported by the segmentation configs, needs mmseg."""
from mmseg.models.losses import LovaszLoss
from mmseg.registry import MODELS


@MODELS.register_module()
class LabelledLovaszLoss(LovaszLoss):
    """mmseg's `LovaszLoss`, also for batches in which nothing is labelled: their mean is NaN in mmseg.

    Arguments are as in mmseg.
    """

    def forward(self, cls_score, label, weight=None, ignore_index=255, **kwargs):
        """Return the loss of scores (B, C, H, W) and labels (B, H, W); 0 if less than two pixels have one."""
        if (label != ignore_index).sum() < 2:  # of a single one mmseg drops an axis
            return cls_score.sum() * 0
        return super().forward(cls_score, label, weight, ignore_index=ignore_index, **kwargs)
