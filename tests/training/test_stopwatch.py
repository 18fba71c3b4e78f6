"""The seconds of an epoch's steps."""

import math

import pytest

from keras_attn.training import Stopwatch
from keras_attn.training import stopwatch as module


def test_only_steps_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    assert math.isnan(watch.seconds_per_epoch())
    for seconds in (7.0, 2.0, 3.0, 2.5):
        watch.on_epoch_begin(0)
        for batch in range(2):
            now[0] += 5.0  # Of the data, or of validation.
            watch.on_train_batch_begin(batch)
            now[0] += seconds
            watch.on_train_batch_end(batch)
    assert watch.epochs == pytest.approx([14, 4, 6, 5])
    # Without the first, which compiles.
    assert watch.seconds_per_epoch() == pytest.approx(5)
