"""Which branches ran fast in a checkpointed block: it runs again in the backward and must do the same."""
import threading
from contextlib import contextmanager

import torch


class Routes:
    """Which branches of a block ran in their fast forms, so that a repetition uses the same ones."""

    def __init__(self):
        self._taken = []

    @property
    def taken(self) -> tuple:
        """Whether each branch ran fast, in the order in which they ran."""
        return tuple(self._taken)

    @contextmanager
    def recorded(self):
        """Context of the first run."""
        _now.routes, _now.repeated = self, None
        try:
            yield
        finally:
            _now.routes = None

    @contextmanager
    def repeated(self):
        """Context of a repetition, with the fast forms of the first run; see `is_repeating`."""
        _now.routes, _now.repeated = self, iter(self._taken)
        try:
            yield
        finally:
            _now.routes = _now.repeated = None

    def run(self, form, args):
        """Call a fast form, unless the plain line ran the first time."""
        if _now.repeated is not None:
            return form(*args) if next(_now.repeated, True) else None
        y = form(*args)
        self._taken.append(y is not None)
        return y


class _Now(threading.local):
    """The state of this thread: a backward pass may repeat a block in its own thread."""
    routes = repeated = None


_now = _Now()


def routed(form, *args):
    """Return the output of a fast form, following the routes of this thread if there are any."""
    if torch.compiler.is_compiling() or _now.routes is None:
        return form(*args)
    return _now.routes.run(form, args)


def is_repeating() -> bool:
    """Whether this thread repeats a checkpointed block: what ran fast the first time must, whatever changed since."""
    return not torch.compiler.is_compiling() and _now.repeated is not None
