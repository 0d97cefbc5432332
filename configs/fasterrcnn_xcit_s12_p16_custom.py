# Faster R-CNN: maskrcnn_xcit_s12_p16_custom without masks, for data that has only boxes.
_base_ = './maskrcnn_xcit_s12_p16_custom.py'

model = dict(type='FasterRCNN', roi_head=dict(mask_roi_extractor=None, mask_head=None))

train_pipeline, test_pipeline = [[
    dict(step, with_mask=False) if step['type'] == 'LoadAnnotations' else step for step in pipeline
] for pipeline in (_base_.train_pipeline, _base_.test_pipeline)]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
