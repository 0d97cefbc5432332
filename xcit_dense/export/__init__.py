"""Models as ONNX files: the graphs that are exported, and their comparison with the checkpoint.

`xcit_dense.runtime` runs the files without this package.
"""
