"""Drawing predictions into an image: the same each time, thread-safe, and without the model."""
import threading
import warnings
from contextlib import contextmanager
from uuid import uuid4

import mmcv
import numpy as np
from mmengine.registry import VISUALIZERS

from .samples import SCORE_THR, draw_sample

# mmengine warns of every object that touches the border of the image
warnings.filterwarnings('ignore', r'Warning: The (bbox|polygon) is out of bounds', module=r'mmengine\.visualization')

#: A visualizer holds one picture at a time, and uses the random numbers of the whole process.
_TURN = threading.Lock()
#: How many bytes of masks a visualizer of a config gets at a time.
_MASKS = 2**28


class Drawing:
    """Draws data samples into images: in the look of this package, or with a visualizer that the config changed.

    Args:
        visualizer: Config of the visualizer.
        meta: Classes and palette.
        **options: Arguments of its ``add_datasample``.
    """

    def __init__(self, visualizer, meta, **options):
        # mmengine returns the same object for the same name, with the classes of the last one
        self.visualizer = VISUALIZERS.build({**visualizer, 'vis_backends': None, 'name': uuid4().hex})
        self.visualizer.dataset_meta = meta
        self._options = options

    def draw(self, picture, sample, **options) -> np.ndarray:
        """Draw a sample into an image (H, W, 3), RGB, uint8, and return it; ``options`` override those of `Drawing`.

        Its masks may be a list of functions without arguments that return one (H, W) each.
        """
        if (found := self._own(picture, sample, options)) is not None:
            return found
        drawn = []
        with _alike():
            # without a file, add_datasample calls this
            self.visualizer.add_image = lambda name, image, step=0: drawn.append(image)
            try:
                self._add(picture, sample, options)
            finally:
                del self.visualizer.add_image
        return drawn[-1]

    def write(self, picture, sample, file, **options):
        """Draw a sample like `draw` and write the result to a file."""
        if (found := self._own(picture, sample, options)) is not None:
            mmcv.imwrite(mmcv.rgb2bgr(found), str(file))
            return
        with _alike():
            self._add(picture, sample, dict(options, out_file=str(file)))

    def _own(self, picture, sample, options):
        options = {**self._options, **options}
        return draw_sample(self.visualizer, picture, sample, with_truth=options.get('draw_gt', False),
                           threshold=options.get('pred_score_thr', SCORE_THR))

    def _add(self, picture, sample, options):
        found, options = sample.get('pred_instances'), {'draw_gt': False, **self._options, **options}
        if isinstance(getattr(found, 'masks', None), list):  # functions: as many as memory holds, and the best on top
            found, count = found[found.scores.argsort()], max(_MASKS // picture[..., 0].size, 1)
            for start in range(0, len(found), count):
                sample.pred_instances = found[start:start + count]
                sample.pred_instances.masks = np.stack([mask() for mask in sample.pred_instances.masks])
                is_last = start + count >= len(found)
                self.visualizer.add_datasample('', picture, sample,
                                               **(options if is_last else {**options, 'out_file': None}))
                picture = self.visualizer.get_image()
        else:
            self.visualizer.add_datasample('', picture, sample, **options)


@contextmanager
def _alike():
    """Draw in turn, with the same random numbers each time: mmdet varies the colour of each mask randomly."""
    with _TURN:
        kept = np.random.get_state()
        np.random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(kept)
