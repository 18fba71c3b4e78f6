"""LiteRT's step copies only the new slot of a cache, with the same outputs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from model_cases import V, tiny

from keras_attn.decoding import Beam, generate, next_state
from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.runtimes.litert_step import LiteRTStep

pytestmark = pytest.mark.shipped
STEPS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("step") / "gpt.tflite"
    export(tiny("gpt2_small"), path, max_length=13)
    return path


@pytest.fixture
def kept(monkeypatch):
    """Names of the inputs that were not rewritten, for each step that kept any."""
    seen = []
    real = LiteRTStep._continue

    def spy(self, inputs, names):
        seen.append(set(names))
        return real(self, inputs, names)

    monkeypatch.setattr(LiteRTStep, "_continue", spy)
    return seen


class Decoding:
    """Decodes a prompt and given tokens, step by step."""

    def __init__(self, runner, seed, length=3):
        rng = np.random.default_rng(seed)
        self.runner = runner
        self.tokens = rng.integers(1, V, (STEPS, 1)).astype("int32")
        prompt = rng.integers(1, V, (1, length)).astype("int32")
        inputs = {"token_ids": prompt, "padding_mask": np.ones_like(prompt, bool)}
        names = runner.signatures["step"].inputs
        outputs = {**inputs, **runner.prefill(inputs)}
        self.state = {name: outputs[name].copy() for name in names}

    def step(self, index, in_place):
        self.state["token_ids"] = self.tokens[index]
        names = self.runner.signatures["step"].inputs
        given = {name: self.state[name] for name in names}
        outputs = self.runner.step(given, in_place=in_place)
        self.state = next_state(given, outputs, in_place=in_place)
        return outputs["logits"]


def expected_of(path, seed, length=3):
    decoding = Decoding(load_runner(path), seed, length)
    return [decoding.step(index, in_place=False) for index in range(STEPS)]


def test_two_decodings_and_prompts_in_turn(path, kept):
    runner = load_runner(path)
    decodings = [Decoding(runner, seed=1), Decoding(runner, seed=2, length=5)]
    found = []
    for index in range(STEPS):
        for decoding in decodings:
            found.append(decoding.step(index, in_place=True))
            Decoding(runner, seed=3, length=7)  # Runs `prefill` at another length.
    np.testing.assert_array_equal(found[::2], expected_of(path, 1))
    np.testing.assert_array_equal(found[1::2], expected_of(path, 2, 5))
    assert not kept  # The arrays were never those of the previous step.


def test_caches_are_written_whole_only_once(path, kept):
    """Also with a prefill between steps."""
    runner = load_runner(path)
    decoding, found = Decoding(runner, seed=1), []
    for index in range(STEPS):
        found.append(decoding.step(index, in_place=True))
        Decoding(runner, seed=3, length=7)
    np.testing.assert_array_equal(found, expected_of(path, 1))
    caches = {f"{part}_{block}" for part in ("key", "value") for block in (0, 1)}
    assert kept == [caches] * (STEPS - 1)


def test_without_in_place_caches_are_written_whole(path, kept):
    decoding = Decoding(load_runner(path), seed=1)
    decoding.step(0, in_place=True)
    logits = decoding.step(1, in_place=False)
    np.testing.assert_array_equal(logits, expected_of(path, 1)[1])
    assert not kept


def test_caches_are_written_whole_after_a_failed_step(path, kept, monkeypatch):
    runner = load_runner(path)
    decoding = Decoding(runner, seed=1)
    first = decoding.step(0, in_place=True)
    before = dict(decoding.state)

    def broken(self, inputs, names):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(LiteRTStep, "_continue", broken)
        with pytest.raises(ExportError, match="LiteRT cannot run `step`.*memory"):
            decoding.step(1, in_place=True)
    decoding.state = before
    rest = [decoding.step(index, in_place=True) for index in range(1, STEPS)]
    np.testing.assert_array_equal([first, *rest], expected_of(path, 1))
    assert len(kept) == STEPS - 2


@pytest.mark.parametrize("strategy", [None, Beam(3)])
def test_generate_equals_keras(path, kept, strategy):
    runner, model = load_runner(path), tiny("gpt2_small")
    prompt = np.array([[5, 7, 11]], "int32")
    options = {} if strategy is None else {"strategy": strategy}
    for _ in range(2):  # The second time with other arrays at the same addresses.
        found = generate(runner, {"token_ids": prompt}, 8, **options)
        expected = generate(model, {"token_ids": prompt}, 8, **options)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    if strategy is None:
        assert len(kept) == 2 * 6  # Eight tokens are seven steps; the first writes all.


def test_generate_from_several_threads(path):
    runner, random = load_runner(path), np.random.default_rng(3)
    prompts = [random.integers(1, V, (1, 3)).astype("int32") for _ in range(8)]

    def continuation(prompt):
        return generate(runner, {"token_ids": prompt}, 8).token_ids

    expected = [continuation(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(continuation, prompts)), expected)


def test_caches_are_written_whole_by_an_unknown_interpreter(path, kept, monkeypatch):
    monkeypatch.setattr(
        "keras_attn.export.runtimes.litert_step._PRIVATE", ("_removed",)
    )
    decoding = Decoding(load_runner(path), seed=1)
    found = [decoding.step(index, in_place=True) for index in range(STEPS)]
    np.testing.assert_array_equal(found, expected_of(path, 1))
    assert not kept
