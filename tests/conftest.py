"""What holds for every test."""

import gc
import random
import runpy
import signal
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# A shell starts what runs in the background with Ctrl-C ignored, and the processes that
# tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Leaves what was imported and collected out of every later garbage collection.

    TensorFlow and thousands of collected tests stay until the end, and to look through
    them again and again for what may go was a tenth of the suite's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def same_weights_each_time(request):
    """A test starts from the same weights in each run of the suite.

    Where a layer is given no seed, Keras takes one from Python's generator.
    """
    random.seed(request.node.nodeid)


@pytest.fixture
def example(monkeypatch, capsys):
    """Runs a script with options, and returns what it printed."""
    # As Python does for a script that it runs.
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name, *options):
        script = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [script, *map(str, options)])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run
