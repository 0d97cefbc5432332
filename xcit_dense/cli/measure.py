"""Measure a config on this machine: numerical error of the backbone, training time, memory, loss, metrics."""
from . import benchmark


def main(argv=None):
    return benchmark.main(argv, 'measure')
