"""Export a trained detector or segmentor to one ONNX file and compare it with the checkpoint."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.export import main  # noqa: E402

if __name__ == '__main__':
    main()
