"""XCiT as a classifier, as published by its authors."""
import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..archs import check_int, get_arch
from ..weights import load_classifier
from .class_block import ClassAttentionBlock
from .norms import make_norm_factory
from .trunk import Trunk, init_linear


@MODELS.register_module()
class XCiTClassifier(Trunk):
    """Cross-Covariance Image Transformer for classification.

    Stem and blocks are those of `xcit_dense.XCiT`. Two class-attention blocks then collect information from the patch
    tokens in a class token. Paper: `XCiT: Cross-Covariance Image Transformers <https://arxiv.org/abs/2106.09681>`_.
    State-dict keys are those of the authors' ImageNet files.

    Args:
        arch: As for `xcit_dense.XCiT`.
        num_classes: Classes of the head; 0 for no head, as in the authors' DINO files.
        in_channels: Channels of the image.
        drop_path_rate: Probability of stochastic depth, the same for every block; class-attention blocks have none.
        norm_cfg, frozen_stages, norm_eval, with_cp: As for `xcit_dense.XCiT`.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_ADDRESS)`` starts from a classifier of the authors, of
            timm, mmpretrain or PASSL, or of a run. Loading is strict, but the head starts fresh if the file has another
            number of classes or no head (`xcit_dense.weights.load_classifier`).

    Raises:
        ValueError: An argument, or the input of a call, is wrong; the message shows the value and what is allowed.
    """

    def __init__(self, arch='small_12_p16', *, num_classes: int = 1000, in_channels: int = 3,
                 drop_path_rate: float = 0., norm_cfg=dict(type='SyncBN'), frozen_stages: int = -1,
                 norm_eval: bool = False, with_cp: bool = False, init_cfg=None):
        arch = get_arch(arch)
        super().__init__(
            arch, arch.depth, make_norm_factory(norm_cfg), in_channels=in_channels, drop_path_rate=drop_path_rate,
            frozen_stages=frozen_stages, norm_eval=norm_eval, with_cp=with_cp, init_cfg=init_cfg)
        self.num_classes = check_int('num_classes', num_classes, 0)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, arch.embed_dims))
        self.cls_attn_blocks = nn.ModuleList(ClassAttentionBlock(arch) for _ in range(2))
        self.norm = nn.LayerNorm(arch.embed_dims, eps=1e-6)
        self.head = nn.Linear(arch.embed_dims, num_classes) if num_classes else nn.Identity()
        self.apply(init_linear)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self._freeze()

    def load_weights(self, source, prefix: str = None):
        """Load a file as ``init_cfg`` does, with `xcit_dense.weights.load_classifier`."""
        load_classifier(self, source, prefix)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images.

        Args:
            x: Images (B, in_channels, H, W), normalised, of a floating type; any H and W.

        Returns:
            (B, num_classes); without a head, the output of `features`.
        """
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the normed class token (B, C) of images as for `forward`: the input of the head."""
        return self._run(x) if self.graphs is None else self.graphs(self._run, x)

    def _run(self, x):
        x, *_ = self._run_blocks(x)
        for block in self.cls_attn_blocks:
            x = self._run_block(block, x)
        return self.norm(x[:, 0])

    def attention_maps(self, x: Tensor) -> Tensor:
        """Return how much the class token attends to each patch token (XCiT paper, figure 4).

        Args:
            x: Images as for `forward`.

        Returns:
            (B, 2, heads, h, w) with h = ceil(H / patch), for the two class-attention blocks. The map of a head sums to
            1 minus the attention of the class token to itself.
        """
        x, height, width = self._run_blocks(x)
        maps = []
        for block in self.cls_attn_blocks:
            maps.append(block.weights(x)[:, :, 1:].unflatten(2, (height, width)))
            x = self._run_block(block, x)
        return torch.stack(maps, dim=1)

    def _run_blocks(self, x):
        """Return class token and patch tokens (B, 1 + N, C) after the XCA blocks, height and width of the grid."""
        x, height, width = self._embed(x)
        for block in self.blocks:
            x = self._run_block(block, x, height, width)
        return torch.cat((self.cls_token.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1), height, width


def attention_maps(model: nn.Module, images: Tensor) -> Tensor:
    """Return `XCiTClassifier.attention_maps` of the classifier in a model, in evaluation mode and without gradients.

    Args:
        model: An `XCiTClassifier`, or a module that holds one, such as mmpretrain's ``ImageClassifier``.
        images: (B, in_channels, H, W), normalised, on the device of the model.

    Raises:
        ValueError: There is no `XCiTClassifier` in the model; dense models have no class token.
    """
    found = next((module for module in model.modules() if isinstance(module, XCiTClassifier)), None)
    if found is None:
        raise ValueError(f'attention_maps needs an XCiTClassifier, which has a class token; {type(model).__name__} '
                         'holds none. For dense models, use principal_components of XCiT.token_maps instead.')
    modes = [(module, module.training) for module in found.modules()]
    try:
        with torch.no_grad():
            return found.eval().attention_maps(images)
    finally:
        for module, mode in modes:
            module.training = mode
