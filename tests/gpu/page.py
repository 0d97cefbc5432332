"""The results of all checks with a folder, as JSON and as one page of Markdown with plots."""
import json
import shlex
import time
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.report import markdown_table
from gpu.plots import plot_all
from xcit_dense._utils.files import atomic_write

NOT_RUN = 'not run'


class Results:
    """What the checks found, by stage and name, with that of earlier runs in a folder; ``minutes`` are for all."""

    def __init__(self, out: Path, device: str, tiny: bool, args, minutes: float):
        if not minutes > 0:
            raise pytest.UsageError(f'--minutes must be above 0, got {minutes:g}')
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._end, self._file = out, time.monotonic() + 60 * minutes, out / 'gpu_report.json'
        self._same = dict(device=device, tiny=tiny, command=shlex.join(['python', '-m', 'pytest', *map(str, args)]))
        self.found = json.loads(self._file.read_text()) if self._file.exists() else {}
        for result in self._every():
            if (result['device'], result['tiny']) != (device, tiny):
                words = f'--gpu-device {result["device"]}{" --tiny" if result["tiny"] else ""}'
                raise pytest.UsageError(f'{out} has results of another kind ({words}): give another --gpu-out')

    def _every(self):
        return [result for results in self.found.values() for result in results.values()]

    def minutes_left(self) -> float:
        return (self._end - time.monotonic()) / 60

    def expect(self, stage, name, title_of_stage, title):
        """Note a check as not run, unless there is an earlier result."""
        self.found.setdefault(stage, {}).setdefault(name, dict(
            self._same, title_of_stage=title_of_stage, title=title, outcome=NOT_RUN, text='', rows=[], facts={},
            seconds=0))

    def add(self, stage, name, result: dict):
        """Save a result and renew the page. One that was not run replaces no earlier one."""
        if result['outcome'] != NOT_RUN or self.found[stage][name]['outcome'] == NOT_RUN:
            self.found[stage][name].update(result, **self._same, date=datetime.now().isoformat(' ', 'minutes'))
        with atomic_write(self._file) as part:
            part.write_text(json.dumps(self.found, indent=1))
        self.write_page()

    def write_page(self, with_plots: bool = False) -> list[Path]:
        """Write the page, with plots or without, and return the files."""
        plots = plot_all(self.found, self._out) if with_plots else []
        page = self._out / 'gpu_report.md'
        parts = '# GPU report', *self._parts(), *(f'![{file.stem}]({file.name})' for file in plots)
        page.write_text('\n\n'.join(parts) + '\n')
        return [self._file, page, *plots]

    def _parts(self):
        machines = dict.fromkeys(tuple(result['machine'].items()) for result in self._every() if result.get('machine'))
        yield from ('; '.join(f'{name} {value}' for name, value in machine) for machine in machines)
        if self._same['tiny']:
            yield '**Tiny models and images: this shows that the checks run. It says nothing about speed.**'
        yield markdown_table(('stage', 'check', 'result', 'what'), [
            (stage, name, _word(result), result['title'])
            for stage, results in self.found.items() for name, result in results.items()])
        for results in self.found.values():
            yield f'## {next(iter(results.values()))["title_of_stage"]}'
            for name, result in results.items():
                yield f'### `{name}`: {result["title"]}\n\n{_word(result).capitalize()}: {result["text"]}'
                if result['rows']:
                    columns = list(dict.fromkeys(column for row in result['rows'] for column in row))
                    yield markdown_table(columns, [[row.get(column, '') for column in columns]
                                                   for row in result['rows']])
                yield f'{result["seconds"]:.0f} s, {result.get("date", "")}, `{result["command"]}`'


def _word(result):
    return {'failed': 'FAILED', 'skipped': 'not possible'}.get(result['outcome'], result['outcome'])
