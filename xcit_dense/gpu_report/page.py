"""The report as one page of Markdown, with plots."""
from pathlib import Path

from ..benchmark.report import markdown_table
from .plots import plot_all
from .stages import STAGES, checks_of, word_of

PAGE = 'gpu_report.md'


def write_page(results: dict, out) -> list[Path]:
    """Write the page and its plots, and return the files.

    Args:
        results: As `xcit_dense.gpu_report.stages.read` returns them.
        out: The folder.
    """
    page = Path(out, PAGE)
    page.write_text(markdown(results))  # in case a plot fails
    plots = plot_all(results, out)
    page.write_text(markdown(results, [file.name for file in plots]))
    return [page, *plots]


def markdown(results: dict, plots=()) -> str:
    """Return the page: how each check ended, then the figures of each.

    Args:
        results: As `xcit_dense.gpu_report.stages.read` returns them.
        plots: Names of image files in the same folder.
    """
    parts = ['# GPU report', *_heading(results), _overview(results)]
    for stage, (title, _) in STAGES.items():
        found = results.get(stage, {})
        if not found:
            continue
        parts.append(f'## {title}')
        for name, result in found.items():
            parts.append(f'### {result["title"]}\n\n{word_of(result).capitalize()}: {result["text"]}')
            if result['rows']:
                columns = list(dict.fromkeys(column for row in result['rows'] for column in row))
                parts.append(markdown_table(columns, [[row.get(column, '') for column in columns]
                                                      for row in result['rows']]))
            card = f'{result["machine"]["device"]}, ' if result['machine'] else ''
            parts.append(f'`{name}`: {card}{result["seconds"]:.0f} s, {result["date"]}, `{result["command"]}`')
    parts += [f'![{Path(name).stem.replace("_", " ")}]({name})' for name in plots]
    return '\n\n'.join(parts) + '\n'


def _heading(results):
    every = [result for found in results.values() for result in found.values()]
    machines = dict.fromkeys(tuple(result['machine'].items()) for result in every if result['machine'])
    lines = ['; '.join(f'{name} {value}' for name, value in machine) for machine in machines]
    if any(result['tiny'] for result in every):
        lines.append('**Tiny models and images: this shows that the checks run. It says nothing about speed.**')
    return lines


def _overview(results):
    rows = []
    for stage in STAGES:
        found = results.get(stage, {})
        for check in checks_of(stage):
            result = found.get(check.name)
            rows.append((stage, check.name, word_of(result) if result else 'not run', check.title))
    return markdown_table(('stage', 'check', 'result', 'what'), rows)
