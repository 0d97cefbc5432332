# Mask R-CNN on XCiT for your own data set in COCO's layout, from weights for other classes. A leaf config sets the
# arch, its drop_path_rate, the neck, and the published weights for this size, which --init-from replaces.
_base_ = [
    './models/maskrcnn_xcit.py', './datasets/coco_instance.py', './schedules/adamw_finetune_12e.py',
    './mmdet_runtime.py'
]
classes_from_data = True
