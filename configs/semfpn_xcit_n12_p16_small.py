# A small Semantic FPN on XCiT nano 12, patch 16, for any data set of images and label maps. It trains from random
# weights in minutes on a CPU. It uses the same code as the full configs; only sizes differ. Class names come from the
# data.
_base_ = ['_base_/models/semfpn_xcit.py', '_base_/small_image_folders.py']

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(arch='nano_12_p16'),
    neck=dict(in_channels=[128] * 4, out_channels=64),
    decode_head=dict(in_channels=[64] * 4, channels=64))
