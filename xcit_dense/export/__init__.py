"""Models as ONNX files: the graphs that are exported, and how such a file replaces a checkpoint.

`xcit_dense.runtime` runs the files without this package.
"""
