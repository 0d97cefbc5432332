"""The results of all checks with a folder, as JSON."""
import json
import shlex
import time
from datetime import datetime
from pathlib import Path

import pytest

from xcit_dense._utils.files import atomic_write

NOT_RUN = 'not run'


class Results:
    """What the checks found, by stage and name, with that of earlier runs in a folder ``out``.

    ``args`` is the command line; ``minutes`` is the time for all checks.

    Raises:
        pytest.UsageError: The folder has results of another device or size, or the time is not above 0.
    """

    def __init__(self, out: Path, device: str, tiny: bool, args, minutes: float):
        if not minutes > 0:
            raise pytest.UsageError(f'--minutes must be above 0, got {minutes:g}')
        out.mkdir(parents=True, exist_ok=True)
        self._end, self.file = time.monotonic() + 60 * minutes, out / 'gpu_report.json'
        self._same = dict(device=device, tiny=tiny, command=shlex.join(['python', '-m', 'pytest', *map(str, args)]))
        self.found = json.loads(self.file.read_text()) if self.file.exists() else {}
        for result in (result for results in self.found.values() for result in results.values()):
            if (result['device'], result['tiny']) != (device, tiny):
                words = f'--gpu-device {result["device"]}{" --tiny" if result["tiny"] else ""}'
                raise pytest.UsageError(f'{out} has results of another kind ({words}): give another --gpu-out')

    def minutes_left(self) -> float:
        """Return the time that is left for all checks."""
        return (self._end - time.monotonic()) / 60

    def expect(self, stage, name, title_of_stage, title):
        """Note a check as not run, unless there is an earlier result."""
        self.found.setdefault(stage, {}).setdefault(name, dict(
            self._same, title_of_stage=title_of_stage, title=title, outcome=NOT_RUN, text='', rows=[], seconds=0))

    def add(self, stage, name, result: dict):
        """Save a result. One that was not run replaces no earlier one."""
        if result['outcome'] != NOT_RUN or self.found[stage][name]['outcome'] == NOT_RUN:
            self.found[stage][name].update(result, **self._same, date=datetime.now().isoformat(' ', 'minutes'))
        with atomic_write(self.file) as part:
            part.write_text(json.dumps(self.found, indent=1))
