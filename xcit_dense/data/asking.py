"""What the step of a pipeline makes of files that a look at them leaves in doubt, kept for the next run."""
import os

from ..files import stamp_of
from .files import recall, remember


class Asked:
    """The answers of a step on the files of a data set.

    Those on files that it could use are remembered by their stamps; of others it may think better next time.

    Args:
        loader: The step, as `xcit_dense.data.pipelines` gives it.
        kind: What the files are, for the cache.
        source: The data set, for the cache.
        use_cache: Whether to believe what was found in files that have the same size and time.
    """

    def __init__(self, loader, kind: str, source, use_cache: bool = True):
        self.loader = loader
        self._place = f'asked {kind} {loader.key()}', source
        self._is_kept = use_cache and loader.has_key
        self._known, self._new = None, {}

    def of(self, path, make, **record):
        """Return what the step makes of a file.

        Args:
            path: Its path.
            make: Called with what `Loader.ask` gives; it returns what is wanted, for JSON to hold, or None where the
                file cannot be used.
            **record: What the data set hands to its pipeline.

        Returns:
            What ``make`` returned, and the words of the step against the file or ''.
        """
        path = os.path.abspath(path)
        try:
            stamp = stamp_of(path)
        except (OSError, ValueError):  # it is not there, and the step reads another
            stamp = None
        known = self._recalled().get(path)
        if stamp and known and known[0] == stamp:
            return known[1], ''
        loaded, words = self.loader.ask(**record)
        made = make(loaded)
        if stamp and made is not None:
            self._new[path] = [stamp, made]
        return made, words

    def keep(self):
        """Remember the answers."""
        if self._new and self._is_kept:
            remember(*self._place, {**self._recalled(), **self._new})

    def _recalled(self):
        if self._known is None:
            known = recall(*self._place) if self._is_kept else None
            self._known = known if isinstance(known, dict) else {}
        return self._known
