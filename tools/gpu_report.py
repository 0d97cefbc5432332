"""Check on this machine's GPU that results are right, that training works, and how fast both are; write one page."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.gpu_report import main  # noqa: E402

if __name__ == '__main__':
    main()
