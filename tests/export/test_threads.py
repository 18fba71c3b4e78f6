"""One artefact called from several threads: every call gets its own outputs."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from export_formats import SUFFIXES

from keras_attn.export import ExportError, load_runner

pytestmark = pytest.mark.shipped
THREADS = 4


@pytest.fixture(autouse=True)
def _frequent_switches():
    """Switches threads very often, so that races are found."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", params=SUFFIXES.values())
def load(request, artefact):
    """`load(name)`: a new runner of the model of that name."""
    return lambda name: load_runner(artefact(name, request.param)[0])


def call_from_threads(call, arguments):
    """Calls from four threads, and compares the outputs with those of one thread."""
    expected = [call(argument) for argument in arguments]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(call, arguments))
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(other)
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value)


def test_every_call_gets_its_own_outputs(load):
    runner, random = load("conv_net"), np.random.default_rng(3)
    images = random.standard_normal((100, 29, 13, 17, 3)).astype("float32")
    call_from_threads(runner, [{"images": batch} for batch in images])


def test_prefill_and_step_in_parallel(load):
    runner, random = load("pair"), np.random.default_rng(3)

    def call(inputs):
        return runner(inputs, "step" if "state" in inputs else "prefill")

    calls = []
    for length in random.integers(1, 11, 100):
        calls.append({"token_ids": random.integers(0, 53, (1, length))})
        state = random.standard_normal((length, 3))
        calls.append({"token_ids": random.integers(0, 53, length), "state": state})
    call_from_threads(call, calls)


def test_failed_call_does_not_affect_others(load, normal):
    runner = load("sliced_mask")
    good = {"x": normal(2, 7, 5), "padding_mask": np.ones((2, 7), bool)}
    # Only the runtime sees that the lengths do not match.
    bad = {**good, "padding_mask": np.ones((2, 5), bool)}
    expected = runner(good)

    def call(inputs):
        if inputs is good:
            return runner(good)
        with pytest.raises(ExportError, match="cannot run `serve`"):
            runner(bad)
        return expected

    for found in ThreadPoolExecutor(THREADS).map(call, [good, bad] * 25):
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name])
