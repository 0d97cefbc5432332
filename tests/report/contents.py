"""Made-up contents of reports, of any size and with names that try to break a page."""
import numpy as np

from xcit_dense.draw.classes import class_colours
from xcit_dense.report.content import Column, Confusion, Content, Picture, Row

#: Names that must appear as they are, and do nothing.
HOSTILE = ('<script>document.title="attacked"</script>', '"><img src=x onerror="document.title=1">', "it's & <b>bold",
           '</style></table>{{ 7 * 7 }}', 'two\nlines', '\u202eleft', 'Fußgänger 行人 👣', 'a' * 120)

_CLASSES = (Column('objects', 'objects'), Column('AP', 'AP', 3, 'Average precision, mean over IoU 0.5 to 0.95.'),
            Column('AR', 'average recall', 3), Column('threshold', 'threshold of the best F1', 2))
_IMAGES = (Column('missed', 'missed', None, 'Objects without a prediction.'), Column('time', 'share (%)', 1))


def make_content(classes=5, images=20, pictures=4, names=(), size=(240, 320), work_dir=None, task='detection'):
    """Return a `Content` with numbers of a fixed seed, and names for the first classes; the last has no objects."""
    draw = np.random.default_rng(0)
    names = [*names, *(f'class {place}' for place in range(len(names), classes))][:classes]
    rows = [Row(name, dict(objects=int(draw.integers(1, 3000)), AP=draw.random(), AR=draw.random(),
                           threshold=0.05 * draw.integers(1, 19))) for name in names[:-1]]
    rows.sort(key=lambda row: row.values['AP'])
    rows.append(Row(names[-1], dict(objects=0), 'no objects: not in the means'))
    counts = draw.integers(0, 30, (classes + 1, classes + 1)) * (draw.random((classes + 1, classes + 1)) < 0.3)
    counts[range(classes + 1), range(classes + 1)] = draw.integers(50, 500, classes + 1)
    counts[-1, -1], counts[-2] = 0, 0
    paths = [f'/data/val2017/{place:012d}.jpg' for place in range(images)]
    found = [Row(path, dict(missed=int(9 * (1 - place / images)), time=100 * draw.random()))
             for place, path in enumerate(paths)]
    metrics = {'coco/bbox_mAP': 0.412, 'coco/bbox_mAP_50': 0.61, 'coco/bbox_mAP_s': -1., 'coco/segm_mAP': 0.377}
    facts = [('checkpoint', 'work_dirs/run/best_coco_bbox_mAP_epoch_12.pth'), ('config', 'maskrcnn_xcit_s12_p8.py'),
             ('test data', f'{images:,} images of {classes} classes, in data/coco')]
    return Content(task, facts, metrics, (_CLASSES, rows), (_IMAGES, found),
                   Confusion([*names, 'background'], counts, 'objects', 'a rule'), pictures_of(paths[:pictures], size),
                   [f'No objects: {names[-1]}.'], work_dir, dict(zip(names, class_colours(names), strict=True)))


def pictures_of(paths, size, has_prediction=True):
    """Yield a `Picture` for each path, made when it is asked for."""
    draw = np.random.default_rng(1)
    for place, path in enumerate(paths):
        truth, prediction = (np.kron(draw.integers(40, 220, (size[0] // 8, size[1] // 8, 3)), np.ones((8, 8, 1)))
                             .astype(np.uint8) for _ in range(2))
        yield Picture(path, f'{place} missed, 2 false positives', truth, prediction if has_prediction else None)
