"""Folders of tools whose own format is not read: the error names the export."""
import json

import pytest
from annotations.placing import placed, segmentor

from xcit_dense.errors import DataError

PANOPTIC = dict(  # many images stand before the annotations
    images=[dict(id=1, file_name='a.jpg' * 60000)], categories=[dict(id=1, name='cat', isthing=1)], annotations=[
        dict(image_id=1, file_name='a.png', segments_info=[dict(id=1, category_id=1, area=9, bbox=[0, 0, 3, 3])])])
REGION = dict(shape_attributes=dict(name='rect', x=1, y=1, width=9, height=9), region_attributes=dict(kind='cat'))
SUPERVISELY = dict(description='', tags=[], size=dict(height=9, width=9), objects=[
    dict(classTitle='cat', geometryType='rectangle', points=dict(exterior=[[1, 1], [5, 5]], interior=[]))])


@pytest.mark.parametrize('name, content, words', (
    *((f'annotations/{name}_train2017.json', PANOPTIC, 'COCO panoptic .*panoptic2detection_coco_format')
      for name in ('panoptic', 'all')),
    ('via_region_data.json', {'a.jpg1': dict(filename='a.jpg', size=1, regions=[REGION], file_attributes={})},
     'VGG Image Annotator .*Export Annotations .COCO format'),
    ('via_project.json', {'_via_settings': {}, '_via_img_metadata': {}}, 'VGG Image Annotator'),
    ('via_export_csv.csv', 'filename,file_size,region_count,region_id,region_shape_attributes\n', 'VGG'),
    ('ds0/ann/a.jpg.json', SUPERVISELY, 'Supervisely .*Export to COCO'),
    ('annotations.xml', '<?xml version="1.0"?>\n<annotations>\n</annotations>', 'CVAT .*COCO 1.0'),
    ('project-1.json', [dict(id=1, annotations=[dict(id=1, completed_by=1, result=[])])], 'Label Studio .*"COCO"'),
    ('train/_annotations.createml.json', [dict(image='a.jpg', annotations=[dict(
        label='cat', coordinates=dict(x=1, y=1, width=2, height=2))])], 'CreateML'),
    ('train/_annotations.csv', 'filename,width,height,class,xmin,ymin,xmax,ymax\n', 'tables of boxes'),
    ('train.tfrecord', '', 'TFRecord')))
def test_the_error_names_tool_file_and_export(name, content, words, folder, tmp_path):
    (tmp_path / 'data' / name).parent.mkdir(parents=True)
    (tmp_path / 'data' / name).write_text(content if isinstance(content, str) else json.dumps(content))
    for place in (lambda **options: placed(tmp_path / 'data', folder, **options),
                  lambda **options: segmentor(tmp_path / 'data', tmp_path / 'run', **options)):
        with pytest.raises(DataError, match=f'{words}.*docs/own_data.md') as raised:
            place()
        assert name.rpartition('/')[2] in str(raised.value)
