"""One artefact called from several threads: every call gets its own answer."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_attn.decoding import Beam, generate
from keras_attn.export import ExportError, export, load_runner

SUFFIXES = ["", ".tflite", ".onnx"]
THREADS = 4


@pytest.fixture(autouse=True)
def _frequent_switches():
    """Threads change places thousands of times a second, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module", params=SUFFIXES)
def load(request, build, tmp_path_factory):
    """`load(name)`: a runner of the model of that name, exported once a format."""
    folder = tmp_path_factory.mktemp("threads")

    def load(name):
        path = folder / f"{name}{request.param}"
        if not path.exists():
            export(build(name), path)
        return load_runner(path)

    return load


def call_from_threads(call, arguments):
    """Calls in four threads, and compares each answer with that of one thread."""
    expected = [call(argument) for argument in arguments]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(call, arguments))
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(other)
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value)


def test_every_call_gets_its_own_answer(load):
    runner, random = load("conv_net"), np.random.default_rng(3)
    images = random.standard_normal((100, 29, 13, 17, 3)).astype("float32")
    call_from_threads(runner, [{"images": batch} for batch in images])


def test_both_signatures_of_a_pair_may_run_at_once(load):
    runner, random = load("pair"), np.random.default_rng(3)

    def call(inputs):
        return runner(inputs, "step" if "state" in inputs else "prefill")

    calls = []
    for length in random.integers(1, 11, 100):
        calls.append({"token_ids": random.integers(0, 53, (1, length))})
        state = random.standard_normal((length, 3))
        calls.append({"token_ids": random.integers(0, 53, length), "state": state})
    call_from_threads(call, calls)


def test_texts_are_generated_from_several_threads(load):
    runner, random = load("pair"), np.random.default_rng(3)

    def call(prompt):
        answer = generate(runner, {"token_ids": prompt}, 3, strategy=Beam(2))
        return answer._asdict()

    call_from_threads(call, [random.integers(1, 53, (1, 7)) for _ in range(8)])


def test_a_call_that_fails_disturbs_no_other(load, normal):
    runner = load("sliced_mask")
    good = {"x": normal(2, 7, 5), "padding_mask": np.ones((2, 7), bool)}
    # Only the runtime can see that the lengths do not go together.
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
