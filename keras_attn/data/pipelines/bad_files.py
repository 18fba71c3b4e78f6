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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np

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

    @contextmanager
    def collecting(self, name: str) -> Iterator[None]:
        """Adds, under a name, the error of a bad file or object that the block raises.

        Args:
            name: The file or object.
        """
        try:
            yield
        except (ValueError, OSError) as error:
            self.add(name, error)

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

    @property
    def first(self) -> str:
        """The first reason, to follow a number of files in a message; may be empty."""
        return f", the first because: {next(iter(self.values()))}" if self else ""

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


class FileData:
    """A data set whose files are read later.

    Attributes:
        skipped: What was left out, with reasons.
    """

    skipped: Skipped
    # The attributes with one entry per example.
    _lists = ("examples",)
    _what = "Images"

    def __len__(self) -> int:
        return len(getattr(self, self._lists[0]))

    def read(self, number: int) -> Any:
        """The files of an example.

        Args:
            number: Its index.
        """
        raise NotImplementedError

    @property
    def _names(self) -> list[str]:
        """The name of each example in messages."""
        return [str(example.name) for example in getattr(self, self._lists[0])]

    def subset(self, indices: Sequence[int]) -> Self:
        """Some of the examples.

        Args:
            indices: Of the examples, in the order to return them in.
        """
        kept = {}
        for name in self._lists:
            values = getattr(self, name)
            kept[name] = [values[index] for index in indices]
            if isinstance(values, np.ndarray):
                kept[name] = np.array(kept[name], values.dtype)
        return replace(cast(Any, self), **kept)

    def check(self) -> Self:
        """Reads all files once, in threads.

        Returns:
            The data set without the bad ones, if it was read with `on_error="skip"`; a
            warning counts them.

        Raises:
            ValueError: If a file is bad and bad ones are not skipped, or if none is
                left.
        """
        kept = check_readable(self.read, self._names, self.skipped)
        if len(kept) < len(self):
            self.skipped.report(self._what)
        return self.subset(kept)


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

    def get_error(number):
        try:
            read(number)
        except (ValueError, OSError) as error:
            return error
        return None

    kept = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for number, error in enumerate(threads.map(get_error, range(len(names)))):
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
