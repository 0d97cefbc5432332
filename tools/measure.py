"""Measure a config on this machine: backbone against float64, training time, memory, loss, metrics."""
from xcit_dense.cli.measure import main

if __name__ == '__main__':
    main()
