"""Train the model of a config, on the GPU if there is one."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.train import main  # noqa: E402

if __name__ == '__main__':
    main()
