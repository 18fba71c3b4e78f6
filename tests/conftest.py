"""What holds for every test."""

import gc
import importlib
import random
import runpy
import signal
import sys
import zlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# A shell starts what runs in the background with Ctrl-C ignored, and the processes that
# tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    """`--variations`, as the Makefile passes on its `VARIATIONS`."""
    parser.addoption(
        "--variations",
        choices=("none", *"123456", "all"),
        default="all",
        help="which tests marked `variation` run: a sixth by number, all or none",
    )
    parser.addoption(
        "--all-in-turn",
        action="store_true",
        help="every test counts as a variation: `--variations` takes a sixth of all",
    )


def sixth_of(item):
    """The sixth, "1" to "6", that a variation belongs to, on every machine.

    Cases with one name, such as all tests of a model, stay together: they share what
    they build.
    """
    call = getattr(item, "callspec", None)
    name = item.nodeid if call is None else call.id
    return str(zlib.crc32(name.encode()) % 6 + 1)


# What the Makefile finds the files of a suite by.
MARKS_OF_SUITES = ("compiled", "shipped", "runs", "parity")


def check_marks(items):
    """If a mark of a suite is not written in the test's file, `make` leaves it out."""
    marked = {
        (item.path, mark.name)
        for item in items
        for mark in item.iter_markers()
        if mark.name in MARKS_OF_SUITES
    }
    for path, name in marked:
        if f"mark.{name}" not in path.read_text():
            raise pytest.UsageError(
                f"tests of {path} have the mark `{name}` from another file: "
                f"write `pytest.mark.{name}` in this one"
            )


def mark_further_combinations(items):
    """Of a test marked `each_value`, each value of each parameter runs always, once.

    Further combinations of the same values are variations.
    """
    seen = set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "each_value" in marks and "variation" not in marks:
            test = item.nodeid.partition("[")[0]
            values = {(test, key, id(x)) for key, x in item.callspec.params.items()}
            if values <= seen:
                item.add_marker("variation")
            seen |= values


def pytest_collection_modifyitems(config, items):
    """Leaves out the variations that `--variations` does not name."""
    check_marks(items)
    mark_further_combinations(items)
    wanted, all_in_turn = map(config.getoption, ("--variations", "--all-in-turn"))
    if wanted == "all":
        return
    left_out = [
        item
        for item in items
        if (all_in_turn or item.get_closest_marker("variation"))
        and sixth_of(item) != wanted
    ]
    config.hook.pytest_deselected(items=left_out)
    without = {*left_out}
    items[:] = [item for item in items if item not in without]


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


@pytest.fixture(autouse=True)
def no_masks_of_earlier_tests():
    """A test starts without the masks that Keras 3.15 keeps of JAX' tracers.

    They are in a table by `id`, local to a thread. A tracer that is collected as
    garbage in another thread leaves its entry, and a later one with its `id` gets it.
    """
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() == "jax":
        from keras.src.backend.common import global_state

        global_state.set_global_attribute("_keras_mask_dict", None)


def assert_drawn(folder, *names):
    """Checks that there are PNG files of these names, with something in them."""
    for name in names:
        assert (folder / f"{name}.png").stat().st_size > 1000, name


@pytest.fixture
def example_module(monkeypatch):
    """Imports a script, for its functions."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


@pytest.fixture
def set_policy():
    """Sets Keras' dtype policy until the test ends."""
    import keras

    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.fixture
def example(monkeypatch, capsys):
    """Runs a script with options, and returns what it printed."""
    # As Python does for a script that it runs.
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name, *options):
        script, words = str(EXAMPLES / f"{name}.py"), [*map(str, options)]
        if "--run-dir" in words:
            # A user's does not exist yet.
            folder = Path(words[words.index("--run-dir") + 1])
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        monkeypatch.setattr(sys, "argv", [script, *words])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hugging Face Hub on this machine, which the client asks; see `hub_server`."""
    hub_server = importlib.import_module("hub_server")
    with hub_server.asked(monkeypatch, tmp_path) as served:
        yield served
