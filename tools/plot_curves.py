"""Plot the loss and metric curves of a training run."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.plot_curves import main  # noqa: E402

if __name__ == '__main__':
    main()
