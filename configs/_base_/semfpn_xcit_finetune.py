# Semantic FPN on XCiT for your own images and label maps, from weights for other classes. A leaf config sets the arch,
# its drop_path_rate, the channels, and the published weights for this size, which --init-from replaces.
_base_ = [
    './models/semfpn_xcit.py', './datasets/image_folders.py', './schedules/adamw_finetune_10k.py', './mmseg_runtime.py'
]
classes_from_data = True
default_hooks = dict(checkpoint=dict(interval=1000))
