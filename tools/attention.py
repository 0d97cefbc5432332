"""Draw what a model looks at: attention maps of a classifier; components and levels of a dense model."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.attention import main  # noqa: E402

if __name__ == '__main__':
    main()
