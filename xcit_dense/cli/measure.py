"""Measure a config on this machine: numerical error of the backbone, training time, memory, loss, metrics."""
from .benchmark import run_of_repository


def main(argv=None):
    """Run `benchmarks/measure.py` of the repository, see `run_of_repository`."""
    return run_of_repository('measure', argv)
