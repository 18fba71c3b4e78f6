"""LiteRT's step writes what is new of a cache, and answers as if it wrote it whole."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from model_cases import V, tiny

from keras_attn.decoding import Beam, generate, next_state
from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.formats.litert_step import LiteRTStep

STEPS = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("step") / "gpt.tflite"
    export(tiny("gpt2_small"), path, max_length=13)
    return path


@pytest.fixture
def kept(monkeypatch):
    """Names of the inputs that were not written whole, of each step in turn."""
    seen = []
    real = LiteRTStep._continue

    def spy(self, inputs, names):
        seen.append(set(names))
        return real(self, inputs, names)

    monkeypatch.setattr(LiteRTStep, "_continue", spy)
    return seen


class Text:
    """A text that is continued with given tokens, step by step."""

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
    text = Text(load_runner(path), seed, length)
    return [text.step(index, in_place=False) for index in range(STEPS)]


def test_a_cache_is_written_whole_once(path, kept):
    text = Text(load_runner(path), seed=1)
    found = [text.step(index, in_place=True) for index in range(STEPS)]
    np.testing.assert_array_equal(found, expected_of(path, 1))
    caches = {f"{part}_{block}" for part in ("key", "value") for block in (0, 1)}
    assert kept == [caches] * (STEPS - 1)


def test_two_texts_in_turn_and_prompts_in_between(path, kept):
    runner = load_runner(path)
    texts = [Text(runner, seed=1), Text(runner, seed=2, length=5)]
    found = []
    for index in range(STEPS):
        for text in texts:
            found.append(text.step(index, in_place=True))
            Text(runner, seed=3, length=7)  # Runs a prompt, of another length.
    np.testing.assert_array_equal(found[::2], expected_of(path, 1))
    np.testing.assert_array_equal(found[1::2], expected_of(path, 2, 5))
    assert not kept  # The arrays were never those of the step before.


def test_a_prompt_in_between_leaves_the_caches_where_they_are(path, kept):
    runner = load_runner(path)
    text, found = Text(runner, seed=1), []
    for index in range(STEPS):
        found.append(text.step(index, in_place=True))
        Text(runner, seed=3, length=7)
    np.testing.assert_array_equal(found, expected_of(path, 1))
    assert len(kept) == STEPS - 1


def test_without_the_promise_arrays_may_have_changed_anywhere(path, kept):
    text = Text(load_runner(path), seed=1)
    text.step(0, in_place=True)
    logits = text.step(1, in_place=False)
    np.testing.assert_array_equal(logits, expected_of(path, 1)[1])
    assert not kept


def test_after_a_step_that_fails_caches_are_written_whole(path, kept, monkeypatch):
    runner = load_runner(path)
    text = Text(runner, seed=1)
    first = text.step(0, in_place=True)
    before = dict(text.state)

    def broken(self, inputs, names):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(LiteRTStep, "_continue", broken)
        with pytest.raises(ExportError, match="LiteRT cannot run `step`.*memory"):
            text.step(1, in_place=True)
    text.state = before
    rest = [text.step(index, in_place=True) for index in range(1, STEPS)]
    np.testing.assert_array_equal([first, *rest], expected_of(path, 1))
    assert len(kept) == STEPS - 2


@pytest.mark.parametrize("strategy", [None, Beam(3)])
def test_generation_is_that_of_keras(path, kept, strategy):
    runner, model = load_runner(path), tiny("gpt2_small")
    prompt = np.array([[5, 7, 11]], "int32")
    options = {} if strategy is None else {"strategy": strategy}
    for _ in range(2):  # The second time other arrays stand where the first ones did.
        found = generate(runner, {"token_ids": prompt}, 8, **options)
        expected = generate(model, {"token_ids": prompt}, 8, **options)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    if strategy is None:
        assert len(kept) == 2 * 6  # Eight tokens are seven steps, the first one whole.


def test_texts_are_generated_from_several_threads(path):
    runner, random = load_runner(path), np.random.default_rng(3)
    prompts = [random.integers(1, V, (1, 3)).astype("int32") for _ in range(8)]

    def answer(prompt):
        return generate(runner, {"token_ids": prompt}, 8).token_ids

    expected = [answer(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(answer, prompts)), expected)


def test_with_another_interpreter_caches_are_written_whole(path, kept, monkeypatch):
    monkeypatch.setattr("keras_attn.export.formats.litert_step._PRIVATE", ("_of_old",))
    text = Text(load_runner(path), seed=1)
    found = [text.step(index, in_place=True) for index in range(STEPS)]
    np.testing.assert_array_equal(found, expected_of(path, 1))
    assert not kept
