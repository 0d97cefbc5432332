"""What collects the results of a test for its report: one class per task."""
import os
from pathlib import Path

from ..predict.classes import test_dataset
from ..predict.reading import ImageReader, picture_of
from ..text import counted, first_line
from ..train.startup import versions

#: How many of the worst images are drawn.
MOST_PICTURES = 24


class Recorder:
    """Watches a test and makes the `Content` of its report. Subclasses do the work.

    Args:
        runner: The runner, with the test loop and its metrics built.
        known: Names of the classes of the checkpoint; empty if it has none.
    """
    #: Files that `write_more` writes, besides those of every report.
    files = ()

    def __init__(self, runner, known):
        self.runner, self.known = runner, known

    def see(self, batch, outputs):
        """Look at a batch of the data loader and the data samples that the model made of it; called after the metrics.
        """

    def content(self, metrics):
        """Return the `Content`, in the first process; all processes call it, so that they can join what they saw.

        Returns None, after a warning in the log, if the data or the metrics of the test do not have what it needs.
        """
        raise NotImplementedError

    def write_more(self, folder):
        """Write the `files` into a folder."""

    def summary(self) -> str:
        """Return a sentence for the log about the whole test; empty if the table of classes says enough."""
        return ''

    def warn(self, reason):
        """Log why there is no report."""
        self.runner.logger.warning(f'no report written: {reason}')

    def image_reader(self):
        """Return a function that reads an image by its path, (H, W, 3) uint8 RGB; it may raise any error."""
        reader = ImageReader(test_dataset(self.runner.cfg), on_disk=False)
        return lambda path: picture_of(reader.load(path, 0))

    def pictures(self, images, draw):
        """Yield a `Picture` of each image, drawn when asked for; one that cannot be drawn is a warning.

        Args:
            images: Pairs of the path of an image and what is known of it.
            draw: Function of the path, the image (H, W, 3) uint8 RGB and what is known of it; returns the `Picture`.
        """
        read = self.image_reader()
        for path, known in images:
            try:
                yield draw(path, read(path), known)
            except Exception as error:  # of any type: loaders may be the user's own, and some data sets have no files
                self.runner.logger.warning(f'the report has no picture of {path}: {first_line(error)}')

    def facts(self, *more) -> list:
        """Return the facts of every test, with some of the task before the versions: pairs of name and text."""
        dataset = self.runner.test_dataloader.dataset
        root, classes = getattr(dataset, 'data_root', None), classes_of(dataset)
        data = [counted(len(dataset), 'images')] + [counted(len(classes), 'classes')] * bool(classes)
        is_merged = 'module' in (self.runner.cfg.get('model') or {})  # the model is in one that merges
        return [('checkpoint', near(tested_file(self.runner) or 'none: random weights')),
                ('config', near(self.runner.cfg.filename or 'made in memory')),
                ('test data', ' of '.join(data) + (f', in {near(root)}' if root else '')),
                *[('test-time augmentation', 'predictions of several views of each image, merged')] * is_merged, *more,
                ('versions', versions(self.runner))]

    def work_dir(self) -> str | None:
        """Return the folder of the checkpoint if a training logged its losses there, otherwise None."""
        file = tested_file(self.runner)
        folder = file if file and os.path.isdir(file) else os.path.dirname(file or '') or '.'
        return str(folder) if file and any(Path(folder).glob('*/vis_data/scalars.json')) else None


def classes_of(dataset) -> tuple:
    """Return the names of the classes of a data set; empty if it has none."""
    return tuple((getattr(dataset, 'metainfo', None) or {}).get('classes') or ())


def tested_file(runner) -> str | None:
    """Return what is tested as the user named it: a checkpoint, a work dir, an exported file."""
    model = runner.cfg.get('model') or {}
    return runner.cfg.get('load_from') or (model.get('file') if model.get('type') == 'ExportedModel' else None)


def near(path) -> str:
    """Return a path relative to the current folder if it is inside, otherwise as it is."""
    path = str(path)
    return os.path.relpath(path) if os.path.isabs(path) and Path(path).is_relative_to(os.getcwd()) else path
