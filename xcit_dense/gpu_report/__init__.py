"""Proof of the package on a GPU: correctness, training, speed and kernels, in stages that each end within minutes."""
