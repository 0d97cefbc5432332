"""The plots of the report."""
from pathlib import Path

#: The plots by file name: functions from the results and the file to whether there were figures to plot.
PLOTS = {}


def plot_all(results: dict, out) -> list[Path]:
    """Write every plot that the results have figures for, and return the files.

    Args:
        results: As `xcit_dense.gpu_report.stages.read` returns them.
        out: The folder.
    """
    return [Path(out, name) for name, plot in PLOTS.items() if plot(results, Path(out, name))]
