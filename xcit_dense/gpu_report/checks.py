"""What a check of a stage is, what it gets and what it finds."""
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ..text import counted, listed


@dataclass
class Outcome:
    """What a check found.

    Args:
        passed: Whether it holds; None if it only measures, or if the device cannot do it.
        text: The result in a sentence.
        rows: Figures as a table: dicts from column to value, in the order of the columns.
        facts: Figures that other checks or plots read, by name.
    """
    passed: bool | None
    text: str
    rows: list[dict] = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    as_dict = asdict


def keep_nothing(outcome: Outcome):
    """Ignore what a check found so far."""


@dataclass(frozen=True)
class Setting:
    """What every check gets.

    Args:
        device: ``cuda`` or ``cpu``.
        tiny: Whether to run with the smallest models, images and lengths, as on a CPU.
        out: Folder for what a check leaves behind, such as work dirs of trainings.
        data: Folder with COCO's layout and ADE20k's (``coco`` and ``ade20k``), for the full configs; None to generate
            data.
        end: Value of ``time.monotonic()`` at which the check is stopped. One that has a lot to do stops before.
        keep: Function that is called with what the check found so far, which is its result if it is stopped.
    """
    device: str
    tiny: bool
    out: Path
    data: Path | None = None
    end: float = math.inf
    keep: Callable[[Outcome], None] = keep_nothing

    def choose(self, full, tiny):
        """Return ``tiny`` for tiny runs, otherwise ``full``."""
        return tiny if self.tiny else full

    def seconds(self, minutes) -> float:
        """Return a time limit in seconds; a CPU, which others may use too, gets four times as long."""
        return 60 * minutes * (1 if self.is_cuda else 4)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == 'cuda'


@dataclass(frozen=True)
class Check:
    """A check of a stage.

    Args:
        name: Its name on the command line.
        title: What it shows, as a heading.
        run: Function from a `Setting` to an `Outcome`.
        minutes: It is stopped after this time.
    """
    name: str
    title: str
    run: Callable[[Setting], Outcome]
    minutes: float = 2.


def within(errors: dict, limits) -> Outcome:
    """Return the outcome of errors that must not exceed a limit.

    Args:
        errors: Errors by what they are of.
        limits: A number, or numbers by the same names.
    """
    limits = limits if isinstance(limits, dict) else dict.fromkeys(errors, limits)
    rows = [dict(what=name, error=f'{error:.1e}', limit=f'{limits[name]:.1e}') for name, error in errors.items()]
    wrong = [f'{name} ({error:.1e} > {limits[name]:.1e})' for name, error in errors.items()
             if not error <= limits[name]]  # NaN too
    if wrong:
        return Outcome(False, f'beyond their limits: {listed(wrong)}', rows)
    return Outcome(True, f'all {counted(len(errors), "errors")} within their limits', rows)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the 2-norm of the difference relative to that of ``wanted``, in float64 on the CPU."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm())
