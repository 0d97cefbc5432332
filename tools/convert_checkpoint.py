"""Convert XCiT weights between the authors' files, dense models, timm and mmpretrain, or say what a file is."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.convert_checkpoint import main  # noqa: E402

if __name__ == '__main__':
    main()
