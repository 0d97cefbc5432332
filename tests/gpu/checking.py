"""What every check gets and records, the fixture `check`, and the errors that it judges."""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from xcit_dense._utils.files import atomic_write
from xcit_dense._utils.machine import describe_machine
from xcit_dense._utils.text import counted, listed

#: Ours may have at most this times the error of the plain form in the same type.
TIMES_PLAIN = 1.5


@dataclass(frozen=True)
class Check:
    """What a check gets."""
    device: str  # cuda or cpu
    tiny: bool  # whether to run with the smallest models, images and lengths
    out: Path  # for what a check leaves behind, such as work dirs of trainings
    file: Path  # JSON, for what it records
    data: Path | None = None  # with coco and ade20k in their layouts; None to generate data
    end: float = math.inf  # of time.monotonic(), the same in all processes, at which the check is stopped

    @property
    def is_cuda(self) -> bool:
        return self.device == 'cuda'

    def choose(self, full, tiny):
        return tiny if self.tiny else full

    def record(self, text: str, rows=(), **facts):
        """Write what was found so far, in case of a stop: a sentence, a table of dicts, and facts for the plots."""
        found = dict(text=text, rows=list(rows), facts=facts, machine=describe_machine())
        with atomic_write(self.file) as part:
            part.write_text(json.dumps(found))

    def judge(self, wrong, text: str, rows=(), **facts):
        """Record the outcome, ``text`` if there are no sentences about what is wrong; else fail with them."""
        text = '; '.join(wrong) or text
        self.record(text, rows, **facts)
        if wrong:
            pytest.fail(text, pytrace=False)


def worst(errors) -> float:
    """Return the largest error; NaN is the worst."""
    return max(errors, key=lambda error: (error != error, error))


def within(errors: dict, limits) -> tuple[list, str, list]:
    """Return what is wrong, the result otherwise, and rows, for errors by name and their limits, or one for all."""
    limits = limits if isinstance(limits, dict) else dict.fromkeys(errors, limits)
    rows = [dict(what=name, error=f'{error:.1e}', limit=f'{limits[name]:.1e}') for name, error in errors.items()]
    above = [f'{name} ({error:.1e} > {limits[name]:.1e})' for name, error in errors.items()
             if not error <= limits[name]]  # NaN too
    return ([f'beyond their limits: {listed(above)}'] if above else [],
            f'all {counted(len(errors), "errors")} within their limits', rows)


def beside(pairs: dict) -> tuple[list, str, list]:
    """Return the same for errors of ours, each with that of the plain form, of which `TIMES_PLAIN` times is allowed."""
    times = {name: ours / plain for name, (ours, plain) in pairs.items()}
    rows = [dict(what=name, ours=f'{ours:.1e}', plain=f'{plain:.1e}', times=f'{times[name]:.2f}')
            for name, (ours, plain) in pairs.items()]
    above = [f'{name} ({value:.1f} times)' for name, value in times.items() if not value <= TIMES_PLAIN]  # NaN too
    return ([f'more than {TIMES_PLAIN:g} times the error of the plain form: {listed(above)}'] if above else [],
            f'at most {worst(times.values()):.2f} times the errors of the plain form; {TIMES_PLAIN:g} are allowed',
            rows)


def all_of(*parts) -> tuple[list, str, list]:
    """Return several triples, as `within` and `beside` return them, as one."""
    wrong, texts, rows = zip(*parts, strict=True)
    return sum(wrong, []), '; '.join(texts), sum(rows, [])
