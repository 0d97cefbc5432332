"""Made-up contents of reports, of any size and with names that try to break a page."""
import numpy as np

from xcit_dense.draw.classes import class_colours
from xcit_dense.report.content import Column, Confusion, Content, Picture, Row

#: Names that must appear as they are, and do nothing.
HOSTILE = ('<script>document.title="attacked"</script>', '"><img src=x onerror="document.title=1">', "it's & <b>bold",
           '</style></table>{{ 7 * 7 }}', 'two\nlines', '\u202eleft', 'Fußgänger 行人 👣', 'a' * 120)

_CLASSES = (Column('objects', 'objects', None, 'How many objects of the class the test data has.'),
            Column('AP', 'AP', 3, 'Average precision, mean over IoU 0.5 to 0.95.'),
            Column('AP50', 'AP at IoU 0.5', 3, 'Average precision at IoU 0.5.'),
            Column('AR', 'AR', 3, 'Average recall with up to 100 detections per image.'),
            Column('threshold', 'threshold of the best F1', 2, 'Score above which predictions have the best F1.'),
            Column('F1', 'best F1', 3, 'Harmonic mean of precision and recall at that threshold.'))
_IMAGES = (Column('objects', 'objects'), Column('missed', 'missed', None, 'Objects without a prediction.'),
           Column('wrong', 'false positives', None, 'Predictions without an object.'), Column('time', 'share (%)', 1))


def make_content(classes=5, images=20, pictures=4, names=(), size=(240, 320), work_dir=None, task='detection'):
    """Return a `Content` with numbers of a fixed seed; the last class has no objects.

    Args:
        classes, images, pictures: How many.
        names: The names of the first classes.
        size: Height and width of the pictures.
        work_dir: The work dir of a training.
        task: As in `Content`.
    """
    draw = np.random.default_rng(0)
    names = [*names, *(f'class {place}' for place in range(len(names), classes))][:classes]
    rows = [Row(name, dict(objects=int(draw.integers(1, 3000)), AP=draw.random(), AP50=draw.random(),
                           AR=draw.random(), threshold=0.05 * draw.integers(1, 19), F1=draw.random()))
            for name in names[:-1]]
    rows.sort(key=lambda row: row.values['AP'])
    rows.append(Row(names[-1], dict(objects=0), 'no objects: not in the means'))
    counts = draw.integers(0, 30, (classes + 1, classes + 1)) * (draw.random((classes + 1, classes + 1)) < 0.3)
    counts[range(classes + 1), range(classes + 1)] = draw.integers(50, 500, classes + 1)
    counts[-1, -1], counts[-2] = 0, 0
    paths = [f'/data/val2017/{place:012d}.jpg' for place in range(images)]
    found = [Row(path, dict(objects=9, missed=int(9 * (1 - place / images)), wrong=int(draw.integers(9)),
                            time=100 * draw.random())) for place, path in enumerate(paths)]
    metrics = {'coco/bbox_mAP': 0.412, 'coco/bbox_mAP_50': 0.61, 'coco/bbox_mAP_75': 0.437, 'coco/bbox_mAP_s': -1.,
               'coco/bbox_mAP_m': 0.3, 'coco/bbox_mAP_l': 0.52, 'coco/segm_mAP': 0.377, 'coco/segm_mAP_50': 0.583}
    facts = [('checkpoint', 'work_dirs/run/best_coco_bbox_mAP_epoch_12.pth'), ('config', 'maskrcnn_xcit_s12_p8.py'),
             ('test data', f'{images:,} images of {classes} classes, in data/coco'),
             ('versions', 'xcit_dense 0.2.0, Python 3.12.4, torch 2.14.1, mmengine 0.10.7, mmdet 3.3.0')]
    rule = ('A prediction with a score of at least 0.3 counts as one of an object if their IoU is at least 0.5; '
            'background is no object.')
    return Content(task, facts, metrics, (_CLASSES, rows), (_IMAGES, found),
                   Confusion([*names, 'background'], counts, 'objects', rule), pictures_of(paths[:pictures], size),
                   [f'1 class has no objects in the test data and is not in the means: {names[-1]}.'], work_dir,
                   dict(zip(names, class_colours(names), strict=True)))


def pictures_of(paths, size, has_prediction=True):
    """Yield a `Picture` for each path, made when it is asked for."""
    draw = np.random.default_rng(1)
    for place, path in enumerate(paths):
        truth, prediction = (np.kron(draw.integers(40, 220, (size[0] // 8, size[1] // 8, 3)), np.ones((8, 8, 1)))
                             .astype(np.uint8) for _ in range(2))
        yield Picture(path, f'{place} missed, 2 false positives', truth, prediction if has_prediction else None)
