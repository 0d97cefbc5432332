"""What a tested image shows, and what a classifier predicted."""
from collections import Counter
from typing import NamedTuple

from ..data.imagenet import short_names


class Result(NamedTuple):
    """A tested image: its file, its class, the predicted class and its probability (None if unknown)."""
    path: str
    truth: int
    prediction: int
    probability: float | None


def result_of(sample) -> Result | None:
    """Return the `Result` of a data sample of mmpretrain, None unless it has one true class and one prediction."""
    truth, prediction, scores = (sample.get(key) for key in ('gt_label', 'pred_label', 'pred_score'))
    if truth is None or prediction is None or truth.numel() != 1 or prediction.numel() != 1:
        return None
    # after test-time augmentation only the scores are those of all views
    prediction = int(prediction if scores is None else scores.argmax())
    # data sets in memory have no files
    path = sample.get('img_path') or f'image {sample.get("sample_idx", "without a number")}'
    return Result(str(path), int(truth), prediction, None if scores is None else float(scores[prediction]))


def mistakes_of(results) -> list:
    """Return the wrong results, most confident first."""
    return sorted((result for result in results if result.truth != result.prediction),
                  key=lambda result: -(result.probability or 0))


class Names(NamedTuple):
    """The names of the classes by number: in the data, and of the model's outputs."""
    truth: list
    prediction: list


def names_of(classes, results, outputs=None) -> Names:
    """Return a unique name for each class; names that several classes share get the class number added.

    Args:
        classes: The names of the data set; there may be fewer names than labels.
        results: All `Result`.
        outputs: The names of the model's outputs. Default: those of the data set.
    """
    count = max([len(classes), *(max(result.truth, result.prediction) + 1 for result in results)])
    return Names(_distinct(classes, count), _distinct(outputs or classes, count))


def _distinct(classes, count):
    names = [*map(str, short_names(classes)), *map(str, range(len(classes), count))][:count]
    several = {name for name, number in Counter(names).items() if number > 1}
    return [f'{name} ({place})' if name in several else name for place, name in enumerate(names)]
