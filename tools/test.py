"""Evaluate a checkpoint on the test data of a config and print the table of its metrics."""
from xcit_dense.cli.test import main

if __name__ == '__main__':
    main()
