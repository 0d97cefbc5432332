"""Features of labelled images: the class token of a classifier without its head."""
from itertools import chain, repeat

import torch
from mmengine.dist import all_gather
from mmengine.registry import DATASETS
from tqdm import tqdm

from .._utils.processes import is_first_process
from ..data.batches import step_by_size, unwrapped
from ..errors import CheckpointError, DataError
from ..train.loaders import Around, ResumableLoader, file_of
from ..weights import find_state_dict, read_checkpoint
from ..weights.layouts import Contents


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
    """A data set of mmpretrain, or every ``step``-th of its samples, whose samples carry their number in the data set.

    Args:
        dataset: The data set.
        step: The distance of two samples.
    """

    def __init__(self, dataset, step: int = 1):
        super().__init__(dataset)
        vars(self)['_step'] = step

    def __len__(self):
        return -(-len(self.inner) // self._step)

    def __getitem__(self, index):
        sample = self.inner[index * self._step]
        sample['data_samples'].set_metainfo(dict(sample_idx=index * self._step))
        return sample

    def get_data_info(self, index):
        """Return what is known of a sample, such as its file."""
        return self.inner.get_data_info(index * self._step)


class Features:
    """Features of the images of a loader, pass by pass, joined over all processes in the order of one process.

    Args:
        runner: Its model makes the features in evaluation mode, without gradients.
        loader: Config of the loader; its sampler deals the images out to the processes in turn.
        num_classes: Number of classes; a label must be lower.
        seed: Seed of the order and of the augmentation.
        step: As for `Numbered`.
    """

    def __init__(self, runner, loader: dict, num_classes: int, seed: int = 0, step: int = 1):
        self.model, self._num_classes, self._step = unwrapped(runner.model), num_classes, step
        dataset = Numbered(DATASETS.build(loader['dataset']), step)
        self.loader = ResumableLoader(runner.build_dataloader(dict(loader, dataset=dataset), seed), seed)

    def __len__(self):
        return len(self.loader.dataset)

    def passes(self, title: str, count: int = 1):
        """Yield the batches of some passes, with a progress bar."""
        return tqdm(chain.from_iterable(repeat(self, count)), title, count * len(self.loader),
                    disable=not is_first_process())

    def __iter__(self):
        """Yield batches of all processes: features (B, C) float32, labels (B, ), numbers of the images (B, ).

        Raises:
            DataError: An image has no label, several, or one without a class.
        """
        self.model.eval()
        missing = len(self)  # of this pass; a sampler may fill up the last batch
        for batch in self.loader:
            with torch.no_grad():
                features = torch.stack([*step_by_size(self._extract, self.model, batch)])
            samples = batch['data_samples']
            labels = torch.tensor([self._label_of(sample) for sample in samples])
            numbers = torch.tensor([sample.sample_idx for sample in samples])
            parts = [torch.stack(all_gather(part.contiguous()), 1).flatten(0, 1)[:missing]
                     for part in (features, labels.to(features.device), numbers)]
            missing -= len(parts[0])
            yield parts

    def _extract(self, batch):
        return self.model.extract_feat(self.model.data_preprocessor(batch, False)['inputs']).float()

    def _label_of(self, sample):
        label = sample.get('gt_label')
        if label is None or label.numel() != 1 or not 0 <= int(label) < self._num_classes:
            file = file_of(self.loader.dataset, sample.sample_idx // self._step)
            found = 'no label' if label is None else f'the label {label.tolist()}'
            raise DataError(f'{file} has {found}, but a training image needs one class from 0 to '
                            f'{self._num_classes - 1}')
        return int(label)


def seed_of(runner) -> int:
    """Return the seed of the config, 0 without one: two tests give the same figures."""
    return (runner.cfg.get('randomness') or {}).get('seed') or 0
