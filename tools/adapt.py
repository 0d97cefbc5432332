"""Replace the backbone of a config of mmdet or mmsegmentation by XCiT: write a config with the lines to change."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.adapt import main  # noqa: E402

if __name__ == '__main__':
    main()
