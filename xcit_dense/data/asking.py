"""Results of a pipeline step on files that the quick check leaves in doubt, kept for the next run."""
import os

from ..files import stamp_of
from .files import recall, remember


class Asked:
    """The answers of a step on the files of a data set.

    Answers on files that the step could use are kept by file stamp; for the others the step is asked again next time.

    Args:
        loader: The step, as `xcit_dense.data.pipelines` returns it.
        kind: What the files are, for the cache.
        source: The data set, for the cache.
        use_cache: Whether to reuse results for files with the same size and time.
    """

    def __init__(self, loader, kind: str, source, use_cache: bool = True):
        self.loader = loader
        self._place = f'asked {kind} {loader.key()}', source
        self._is_kept = use_cache and loader.has_key
        self._known, self._new = None, {}

    def of(self, path, make, **record):
        """Return the result of the step on a file.

        Args:
            path: Its path.
            make: Called with the result of `Loader.ask`; it returns a value that fits in JSON, or None if the file
                cannot be used.
            **record: What the data set passes to its pipeline.

        Returns:
            What ``make`` returned, and the error of the step or ''.
        """
        path = os.path.abspath(path)
        try:
            stamp = stamp_of(path)
        except (OSError, ValueError):  # it does not exist, and the step reads another file
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
        """Keep the answers for the next run."""
        if self._new and self._is_kept:
            remember(*self._place, {**self._recalled(), **self._new})

    def _recalled(self):
        if self._known is None:
            known = recall(*self._place) if self._is_kept else None
            self._known = known if isinstance(known, dict) else {}
        return self._known
