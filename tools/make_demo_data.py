"""Generate a small data set of five classes: scenes in COCO's and ADE20k's layout, and objects in class folders."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.make_demo_data import main  # noqa: E402

if __name__ == '__main__':
    main()
