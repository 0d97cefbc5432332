"""Evaluate a checkpoint on the test data of a config and print its metrics."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.test import main  # noqa: E402

if __name__ == '__main__':
    main()
