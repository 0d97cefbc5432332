"""Check the data set of a config: print every problem, count the classes, draw a contact sheet."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.check_data import main  # noqa: E402

if __name__ == '__main__':
    main()
