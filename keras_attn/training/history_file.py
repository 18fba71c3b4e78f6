"""The logs of a run as a CSV file, one row per epoch, also after a kill."""

import csv
import io
import os
from pathlib import Path

import keras

from keras_attn.file_writing import write_atomically
from keras_attn.processes import is_writer


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch to a CSV file.

    `keras.callbacks.CSVLogger` would write an epoch twice that a killed run repeats.
    Of several processes, the first one writes.

    Args:
        path: The file, which is replaced as a whole after each epoch.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__()
        self.path = Path(path)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the row of an epoch, in place of one of an earlier process."""
        if not is_writer():
            return
        logs = logs or {}
        rows = []
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = [
                    row for row in csv.DictReader(file) if int(row["epoch"]) < epoch
                ]
        columns = ["epoch", *sorted(logs)]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*rows, {"epoch": epoch, **logs}])
        write_atomically(self.path, text.getvalue().encode())
