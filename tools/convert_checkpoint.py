"""Convert XCiT weights between layouts (the authors', dense models, timm, mmpretrain), or describe a file."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.convert_checkpoint import main  # noqa: E402

if __name__ == '__main__':
    main()
