"""Measure a config on this machine: numerical error of the backbone, training time, memory, loss, metrics."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.measure import main  # noqa: E402

if __name__ == '__main__':
    main()
