# The authors' recipe: UperNet on XCiT, ADE20k, 160,000 iterations.
_base_ = ['./models/upernet_xcit.py', './datasets/ade20k.py', './schedules/adamw_poly_160k.py', './mmseg_runtime.py']
