# The authors' recipe: Mask R-CNN on XCiT, COCO 2017, 36 epochs.
_base_ = ['./models/maskrcnn_xcit.py', './datasets/coco_instance.py', './schedules/adamw_3x.py', './mmdet_runtime.py']
