# Mask R-CNN on XCiT large 24, patch 8, with the model sharded over the processes of the run (FSDP).
_base_ = ['maskrcnn_xcit_l24_p8_coco.py', '_base_/fsdp.py']
