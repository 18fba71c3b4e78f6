"""The logs of a run as a CSV file, one row per epoch, also after a kill."""

import csv
import io
import os
from pathlib import Path

import keras

from keras_attn.distribution.processes import is_writer
from keras_attn.files.writing import write_atomically


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch to a CSV file.

    `keras.callbacks.CSVLogger` would write an epoch twice that a killed run repeats.
    Of several processes, the first one writes.

    Args:
        path: The file, which is replaced as a whole after each epoch.

    Raises:
        ValueError: When training begins, if the file is anything else.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__()
        self.path = Path(path)

    def on_train_begin(self, logs=None):
        """Checks that a file that exists is a history."""
        self._rows_before(0)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the row of an epoch, in place of one of an earlier process."""
        if not is_writer():
            return
        logs = logs or {}
        rows = self._rows_before(epoch)
        columns = ["epoch", *sorted(logs)]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*rows, {"epoch": epoch, **logs}])
        write_atomically(self.path, text.getvalue().encode())

    def _rows_before(self, epoch):
        if not self.path.exists():
            return []
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            return [row for row in rows if int(row["epoch"]) < epoch]
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise ValueError(
                f"{self.path.name} must be a history of training, a CSV file with the "
                "number of each `epoch`: remove it, or write to another path. "
                f"Received: {str(self.path)!r}"
            ) from error
