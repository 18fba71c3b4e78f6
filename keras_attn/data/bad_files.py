"""Bad files of a data set: refused, or left out and counted.

A reader is given `on_error="raise"` or `"skip"`. Names and reasons of what it left out
are collected in `skipped`, and one warning is given each for what was found while the
annotations were read and while the images were.
"""

import threading
import warnings

from keras_attn.checks import check_choice

_SHOWN = 3


class Skipped(dict[str, str]):
    """Name of each file, or object in a file, that was left out, and the reason.

    Args:
        on_error: "raise" or "skip".

    Raises:
        ValueError: for another `on_error`.
    """

    def __init__(self, on_error: str):
        super().__init__()
        check_choice("on_error", on_error, ("raise", "skip"))
        self.on_error = on_error
        self._lock = threading.Lock()
        self._is_reported = False

    def add(self, name: str, error: Exception) -> None:
        """Raises the error, or notes it under a name."""
        if self.on_error == "raise":
            raise error
        with self._lock:
            self[name] = str(error)

    def add_while_reading(self, name: str, error: Exception) -> None:
        """As `add`, called by the threads of a pipeline; warns of the first error."""
        try:
            self.add(name, error)
        except OSError as failed:
            # The kind of error that pipelines raise for all other bad files.
            raise ValueError(str(failed)) from failed
        with self._lock:
            is_first, self._is_reported = not self._is_reported, True
        if is_first:
            warnings.warn(
                f"Left out while reading: {error} Others are only added to `skipped`.",
                stacklevel=2,
            )

    def report(self, what: str) -> None:
        """Warns once of all that was left out so far.

        Args:
            what: The data set, for the message.
        """
        if self:
            first = "; ".join(list(self.values())[:_SHOWN])
            more = f"; and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
            warnings.warn(
                f"{what}: left out {len(self)} files or objects, which `skipped` "
                f"lists: {first}{more}",
                stacklevel=3,
            )
