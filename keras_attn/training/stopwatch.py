"""The time of the steps of an epoch."""

import time

import keras
import numpy as np


class Stopwatch(keras.callbacks.Callback):
    """Measures the seconds of each epoch's steps, without validation and callbacks.

    Attributes:
        epochs: Seconds of each epoch.
    """

    def __init__(self):
        super().__init__()
        self.epochs: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        """Resets the time."""
        self.epochs.append(0.0)

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Stops the clock."""
        self.epochs[-1] += time.perf_counter() - self._start

    def seconds_per_epoch(self) -> float:
        """The median without the first epoch, which compiles; NaN without epochs."""
        return float(np.median(self.epochs[1:] or self.epochs or [np.nan]))
