"""What every check gets and records, the fixture `check`, and the errors that it judges."""
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from xcit_dense._utils.files import atomic_write
from xcit_dense._utils.machine import describe_machine
from xcit_dense._utils.text import counted, listed

#: Ours may have at most this times the error of the plain form in the same type.
TIMES_PLAIN = 1.5


@dataclass(frozen=True)
class Check:
    """What a check gets.

    Args:
        device: ``cuda`` or ``cpu``.
        tiny: Whether to run with the smallest models, images and lengths, as on a CPU.
        out: Folder for what a check leaves behind, such as work dirs of trainings.
        file: The JSON file for what it records.
        data: Folder with COCO's layout and ADE20k's (``coco`` and ``ade20k``); None to generate data.
        end: Value of ``time.monotonic()``, the same in all processes, at which the check is stopped.
    """
    device: str
    tiny: bool
    out: Path
    file: Path
    data: Path | None = None
    end: float = math.inf

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == 'cuda'

    def choose(self, full, tiny):
        """Return ``tiny`` for tiny runs, otherwise ``full``."""
        return tiny if self.tiny else full

    def record(self, text: str, rows=(), **facts):
        """Write what was found so far, which the page has even if the check is stopped after it.

        Args:
            text: The result in a sentence.
            rows: Figures as a table: dicts from column to value.
            facts: What the plots read.
        """
        found = dict(text=text, rows=list(rows), facts=facts, machine=describe_machine())
        with atomic_write(self.file) as part:
            part.write_text(json.dumps(found))

    def judge(self, wrong, text: str, rows=(), **facts):
        """Record the outcome; fail if something is wrong.

        Args:
            wrong: Sentences about what is wrong.
            text: The result if nothing is.
            rows, facts: As for `record`.
        """
        text = '; '.join(wrong) or text
        self.record(text, rows, **facts)
        if wrong:
            pytest.fail(text, pytrace=False)


def worst(errors) -> float:
    """Return the largest error; NaN is the worst."""
    return max(errors, key=lambda error: (error != error, error))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the 2-norm of the difference relative to that of ``wanted``, in float64, on the device of ``found``."""
    found = found.detach().double()
    wanted = wanted.detach().to(found)
    return float((found - wanted).norm() / wanted.norm())


def within(errors: dict, limits) -> tuple[list, str, list]:
    """Return what is wrong, the result otherwise, and rows, for errors that must not exceed a limit.

    Args:
        errors: Errors by what they are of.
        limits: A number, or numbers by the same names.
    """
    limits = limits if isinstance(limits, dict) else dict.fromkeys(errors, limits)
    rows = [dict(what=name, error=f'{error:.1e}', limit=f'{limits[name]:.1e}') for name, error in errors.items()]
    above = [f'{name} ({error:.1e} > {limits[name]:.1e})' for name, error in errors.items()
             if not error <= limits[name]]  # NaN too
    return ([f'beyond their limits: {listed(above)}'] if above else [],
            f'all {counted(len(errors), "errors")} within their limits', rows)


def beside(pairs: dict) -> tuple[list, str, list]:
    """Return the same for errors of ours that must not exceed `TIMES_PLAIN` times those of the plain form.

    Args:
        pairs: By what they are of, the error of ours and that of the plain form.
    """
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
