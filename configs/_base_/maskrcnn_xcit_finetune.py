# Mask R-CNN on XCiT for your own data set in COCO's layout, from weights that know other classes. A leaf gives the
# arch, its drop_path_rate, the neck, and the published weights of the size, which --init-from replaces.
_base_ = [
    './models/maskrcnn_xcit.py', './datasets/coco_instance.py', './schedules/adamw_finetune_12e.py',
    './mmdet_runtime.py'
]
classes_from_data = True
