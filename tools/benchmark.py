"""Measure time and memory of XCiT beside its released form and other backbones, on this machine."""
from xcit_dense.cli.benchmark import main

if __name__ == '__main__':
    main()
