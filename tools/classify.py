"""Classify images with a published classifier or your own: print and save the most probable classes."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.classify import main  # noqa: E402

if __name__ == '__main__':
    main()
