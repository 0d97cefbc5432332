# The authors' recipe: Semantic FPN on XCiT, ADE20k, 80,000 iterations.
_base_ = ['./models/semfpn_xcit.py', './datasets/ade20k.py', './schedules/adamw_poly_80k.py', './mmseg_runtime.py']
