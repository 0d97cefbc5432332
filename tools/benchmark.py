"""Measure time and memory of XCiT, the authors' form of it and other backbones on this machine."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.benchmark import main  # noqa: E402

if __name__ == '__main__':
    main()
