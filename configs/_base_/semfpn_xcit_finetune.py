# Semantic FPN on XCiT for your own images and label maps, from weights that know other classes. A leaf gives the arch,
# its drop_path_rate, the channels, and the published weights of the size, which --init-from replaces.
_base_ = [
    './models/semfpn_xcit.py', './datasets/image_folders.py', './schedules/adamw_finetune_10k.py', './mmseg_runtime.py'
]
classes_from_data = True
default_hooks = dict(checkpoint=dict(interval=1000))
