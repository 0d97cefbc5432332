"""Drawing what was found into an image: alike each time, in threads too, and without the model."""
import threading
from contextlib import contextmanager
from uuid import uuid4

import numpy as np
from mmengine.registry import VISUALIZERS

#: The visualizers hold one picture at a time, and draw random numbers that the whole process shares.
_TURN = threading.Lock()


class Drawing:
    """Draws data samples into pictures by the visualizer of a config.

    Args:
        visualizer: Its config.
        meta: Classes and palette.
        **options: Those of its ``add_datasample``.
    """

    def __init__(self, visualizer, meta, **options):
        # mmengine gives all of one name the same, with the classes of the last
        self.visualizer = VISUALIZERS.build({**visualizer, 'vis_backends': None, 'name': uuid4().hex})
        self.visualizer.dataset_meta = meta
        self._options = options

    def draw(self, picture, sample, **options) -> np.ndarray:
        """Draw a sample into a picture (H, W, 3), RGB, uint8, and return that; ``options`` go before those of all."""
        drawn = []
        with _alike():
            # without a file it goes there
            self.visualizer.add_image = lambda name, image, step=0: drawn.append(image)
            try:
                self._add(picture, sample, options)
            finally:
                del self.visualizer.add_image
        return drawn[0]

    def write(self, picture, sample, file):
        """Draw a sample and write that."""
        with _alike():
            self._add(picture, sample, dict(out_file=str(file)))

    def _add(self, picture, sample, options):
        self.visualizer.add_datasample('', picture, sample, draw_gt=False, **{**self._options, **options})


@contextmanager
def _alike():
    """Draw in turn, with the same random numbers each time: mmdet changes the colour of each mask a little by them."""
    with _TURN:
        kept = np.random.get_state()
        np.random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(kept)
