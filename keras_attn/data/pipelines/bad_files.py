"""Bad files of a data set: refused, or skipped and counted.

A reader is given `on_error="raise"` or `"skip"`. `skipped` collects the names of what
was left out, with reasons. There is one warning for what was found while reading the
annotations, and one while reading the images.

An image that turns out to be bad in the middle of an epoch is replaced, so that every
epoch has the same number of batches: Keras would warn of a data set of unknown size.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from keras_attn.checks.arguments import check_choice

_SHOWN = 3


class Skipped(dict[str, str]):
    """Name of each file, or object in a file, that was left out, and the reason.

    Args:
        on_error: "raise" or "skip".

    Raises:
        ValueError: If `on_error` is neither "raise" nor "skip".
    """

    def __init__(self, on_error: str):
        super().__init__()
        check_choice("on_error", on_error, ("raise", "skip"))
        self.on_error = on_error
        self._lock = threading.Lock()
        self._is_reported = False
        self._unreadable: set[str] = set()
        self._noted: set[str] = set()

    def add(self, name: str, error: Exception) -> None:
        """Raises the error, or notes it under a name."""
        if self.on_error == "raise":
            raise error
        with self._lock:
            self[name] = str(error)

    def leave_out(self, name: str, reason: str) -> None:
        """Notes what cannot be used but is not an error, with any `on_error`."""
        with self._lock:
            self[name] = reason

    def note(self, name: str, reason: str) -> None:
        """Notes a file that is left out with any `on_error`: it is not an image.

        `report` does not count it, because nothing is wrong with it.
        """
        self[name] = reason
        self._noted.add(name)

    def add_while_reading(self, name: str, error: Exception, count: int) -> None:
        """As `add`, called by the threads of a pipeline; warns of the first error.

        Args:
            name: The file.
            error: Why it is left out.
            count: Number of files in the data set. If all were left out, the pipeline
                would search for a good one forever.

        Raises:
            ValueError: If bad files are refused, or if no file is left.
        """
        try:
            self.add(name, error)
        except OSError as failed:
            # The kind of error that pipelines raise for all other bad files.
            raise ValueError(str(failed)) from failed
        with self._lock:
            self._unreadable.add(name)
            is_first, self._is_reported = not self._is_reported, True
            is_last = len(self._unreadable) >= count
        if is_last:
            raise ValueError(
                f"At least one image must be readable. Received: {count} bad ones, the "
                f"last because: {error}"
            )
        if is_first:
            warnings.warn(
                f"Left out while reading: {error} Others are only added to `skipped`.",
                stacklevel=2,
            )

    def report(self, what: str) -> None:
        """Warns once about everything that was left out so far.

        Args:
            what: The data set, for the message.
        """
        found = [reason for name, reason in self.items() if name not in self._noted]
        if found:
            warnings.warn(
                f"{what}: left out {len(found)} files or objects, which `skipped` "
                f"lists: {first_reasons(found)}",
                stacklevel=3,
            )


def first_reasons(reasons: Iterable[str]) -> str:
    """The first reasons, and how many more there are."""
    listed = list(reasons)
    first = "; ".join(listed[:_SHOWN])
    more = f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return first + more


def check_readable(
    read: Callable[[int], object], names: Sequence[str], skipped: Skipped
) -> list[int]:
    """Reads all files once, with as many threads as there are processors.

    Args:
        read: Reads the file of a number.
        names: The files.
        skipped: Raises or collects the errors.

    Returns:
        The numbers of the files that could be read.

    Raises:
        ValueError: If a file is bad and bad files are not skipped, or if none is left.
    """

    def error_of(number):
        try:
            read(number)
        except (ValueError, OSError) as error:
            return error
        return None

    kept = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for number, error in enumerate(threads.map(error_of, range(len(names)))):
            if error is None:
                kept.append(number)
            else:
                try:
                    skipped.add(names[number], error)
                except (ValueError, OSError):
                    threads.shutdown(cancel_futures=True)
                    raise
    if not kept:
        raise ValueError(
            "At least one image must be readable. "
            f"Received: {len(names)} bad ones, the first because: "
            f"{skipped[names[0]]}"
        )
    return kept
