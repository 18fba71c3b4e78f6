"""Inputs of `generate`: prompts of unequal length, lengths of caches, errors."""

import keras
import numpy as np
import pytest
from decoding.toys import HostRunner, generate, table_model
from model_cases import (
    POSITIONS,
    SOURCE_V,
    V,
    create,
    logits_of,
    make_inputs,
    tiny,
    varied,
)

from keras_attn.decoding import Beam, Sample
from keras_attn.decoding.compiled import rounded_length

pytestmark = pytest.mark.compiled

PADDED = ["gpt2_small", "gpt_117m", "gpt3_small", "transformer_base"]
SOURCE = [7, 3, 11, 2]


def as_inputs(model, tokens, mask):
    """Prompts and their mask as inputs of the model; one source for every row."""
    if "decoder_token_ids" not in model.input:
        return {"token_ids": tokens, "padding_mask": mask}
    return {
        "token_ids": np.tile(SOURCE, (len(tokens), 1)),
        "decoder_token_ids": tokens,
        "decoder_padding_mask": mask,
    }


def by_full_passes(model, prompt, length):
    """Greedy text after a prompt without any padding, and its score."""
    tokens, score = list(prompt), 0.0
    for _ in range(length):
        row = np.array([tokens])
        inputs = as_inputs(model, row, np.ones_like(row, bool))
        inputs.pop("decoder_padding_mask", None)
        if "decoder_token_ids" in inputs:
            inputs["padding_mask"] = np.ones_like(inputs["token_ids"], bool)
        logits = logits_of(model, inputs)[0, -1].astype("float64")
        tokens.append(int(logits.argmax()))
        score += logits.max() - np.log(np.exp(logits).sum())
    return tokens[len(prompt) :], score


@pytest.mark.parametrize("case", PADDED)
def test_prompts_of_unequal_length_share_a_batch(case):
    """With padding at the left, right or in between, each gets its text alone."""
    model = varied(case)
    prompts = [[5, 11, 2], [13], [17, 3, 3, 7, 1]]
    # Three layouts in six columns for each prompt: the columns of its tokens.
    layouts = [
        *([0, 1, 2], [3, 4, 5], [0, 2, 5]),
        *([0], [5], [2]),
        *([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [0, 1, 3, 4, 5]),
    ]
    # Padding is a real token of other rows, so attending to it would show.
    tokens, mask = np.full((9, 6), 4), np.zeros((9, 6), bool)
    for row, columns in enumerate(layouts):
        tokens[row, columns], mask[row, columns] = prompts[row // 3], True
    answer = generate(model, as_inputs(model, tokens, mask), 5)
    texts = set()
    for row, prompt in enumerate(prompts):
        expected, score = by_full_passes(model, prompt, 5)
        texts.add(tuple(expected))
        for found in range(3 * row, 3 * row + 3):
            assert answer.token_ids[found].tolist() == expected
            np.testing.assert_allclose(answer.scores[found], score, atol=1e-4)
    assert len(texts) == 3


@pytest.mark.parametrize("case", ["gpt2_small", "transformer_base"])
def test_without_a_mask_every_token_is_real(case):
    model, tokens = tiny(case), np.array([[5, 11, 2], [17, 3, 7]])
    inputs = as_inputs(model, tokens, np.ones_like(tokens, bool))
    expected = generate(model, inputs, 4)
    bare = {name: value for name, value in inputs.items() if "mask" not in name}
    answer = generate(model, bare, 4)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    assert "decoder_padding_mask" not in bare and "padding_mask" not in bare


@pytest.mark.parametrize("strategy", [Sample(seed=3, top_k=7), Beam(3)], ids=str)
def test_every_strategy_ignores_padding(strategy):
    model = tiny("gpt2_small")
    tokens, mask = np.array([[0, 5, 11, 2]] * 2), np.array([[0, 1, 1, 1]] * 2)
    options = {"strategy": strategy, "end_token_id": 3}
    expected = generate(model, {"token_ids": tokens[:, 1:]}, 5, **options)
    inputs = {"token_ids": tokens, "padding_mask": mask}
    answer = generate(model, inputs, 5, **options)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.scores, expected.scores, atol=1e-4)


# Lengths of the caches.


def record_lengths(model, monkeypatch):
    """A list to which every call of `incremental` adds its `max_length`."""
    lengths, real = [], type(model).incremental

    def incremental(self, max_length=None):
        lengths.append(max_length)
        return real(self, max_length)

    monkeypatch.setattr(type(model), "incremental", incremental)
    return lengths


def test_caches_are_rounded_up_and_shared(monkeypatch):
    model = create("gpt2_small", num_layers=1)
    lengths = record_lengths(model, monkeypatch)
    tokens = np.ones((1, POSITIONS), int)
    for prompt, more, expected in [
        (3, 4, [POSITIONS]),  # No longer than the model has positions.
        (5, 3, [POSITIONS]),  # The same length: nothing new is built.
        (POSITIONS - 4, np.int64(4), [POSITIONS]),
    ]:
        answer = generate(model, {"token_ids": tokens[:, :prompt]}, more)
        assert lengths == expected
        assert answer.token_ids.shape == (1, more)


@pytest.mark.parametrize("limit", [None, 1024])
def test_cache_lengths_are_few_and_close(limit):
    lengths = [rounded_length(length, limit) for length in range(1, 1025)]
    for length, rounded in enumerate(lengths, start=1):
        assert length <= rounded <= max(length + 63, length * 1.25)
    assert sorted(set(lengths)) == [*range(64, 513, 64), 640, 768, 896, 1024]
    assert rounded_length(97, 100) == 100
    assert rounded_length(97, None) == 128


def test_a_state_without_caches_serves_every_length(monkeypatch):
    model = create("seq2seq_context")
    lengths = record_lengths(model, monkeypatch)
    for more in (3, 23):
        generate(model, {"token_ids": [SOURCE]}, more, start_token_id=1)
    assert len(lengths) == 1
    assert model.incremental(5).max_length is None


def test_a_transformer_generates_past_256_positions():
    model = tiny("transformer_base")
    assert model.incremental().max_length == 256
    answer = generate(model, {"token_ids": [SOURCE]}, 260, start_token_id=1)
    assert answer.token_ids.shape == (1, 260)
    assert np.isfinite(answer.scores).all()


def test_a_pair_keeps_its_length():
    pair, prompt = tiny("gpt2_small").incremental(max_length=9), [[1, 2, 3]] * 2
    message = "exceeds the model's 9 positions; at most 6 fit after this prompt"
    with pytest.raises(ValueError, match=message):
        generate(pair, {"token_ids": prompt}, 7)
    expected = generate(tiny("gpt2_small"), {"token_ids": prompt}, 6)
    answer = generate(pair, {"token_ids": prompt}, 6)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)


# Errors.

EMPTY = "`inputs` are empty: every row needs at least one token. Received: "
VOCABULARY = rf"must be in \[0, {V}\), the vocabulary of the model"
INVALID = {
    "negative": (
        "gpt2_small",
        {"token_ids": [[3, -1]]},
        rf"`token_ids` {VOCABULARY}, masked tokens included. Received: ids from -1",
    ),
    "unknown token": (
        "gpt2_small",
        {"token_ids": [[V, 3]], "padding_mask": [[False, True]]},
        rf"`token_ids` {VOCABULARY}, .*ids from 3 to {V}",
    ),
    "unknown token of the prompt": (
        "transformer_base",
        {"token_ids": [SOURCE], "decoder_token_ids": [[V]]},
        rf"`decoder_token_ids` {VOCABULARY}",
    ),
    "unknown token of the source": (
        "transformer_base",
        {"token_ids": [[V]], "decoder_token_ids": [[1]]},
        rf"`token_ids` {VOCABULARY}",
    ),
    "unknown token of another source": (
        "rnnsearch_50",
        {"token_ids": [[V, SOURCE_V]], "decoder_token_ids": [[1]]},
        rf"`token_ids` must be in \[0, {SOURCE_V}\), .*from {V} to {SOURCE_V}",
    ),
    "fractions": (
        "gpt2_small",
        {"token_ids": [[0.5, 1.0]]},
        r"`token_ids` must be integers. Received: token_ids.dtype=float64",
    ),
    "ragged": (
        "gpt2_small",
        {"token_ids": [[1, 2], [3]]},
        r"`token_ids` must be an array: pad rows to equal length",
    ),
    "rows": (
        "transformer_base",
        {"token_ids": [SOURCE, SOURCE], "decoder_token_ids": [[1]]},
        r"the same number of rows. Received: rows=.*'decoder_token_ids': 1",
    ),
    "mask of another shape": (
        "gpt2_small",
        {"token_ids": [[1, 2]], "padding_mask": [[1]]},
        r"`padding_mask` must have the shape of `token_ids`, \(1, 2\). Received: "
        r"padding_mask.shape=\(1, 1\)",
    ),
    "rows of padding": (
        "transformer_base",
        {
            "token_ids": [SOURCE] * 3,
            "decoder_token_ids": [[1, 2]] * 3,
            "decoder_padding_mask": [[0, 0], [0, 1], [0, 0]],
        },
        r"`decoder_padding_mask` must have at least one real token in every row. "
        r"Received: only padding in rows \[0, 2\]",
    ),
    "long prompt": (
        "gpt2_small",
        {"token_ids": np.ones((1, POSITIONS + 2), int)},
        rf"`token_ids` must have at most {POSITIONS - 1} tokens, padding included: "
        rf"the model has {POSITIONS} positions, and a new token needs one. Shorten the "
        rf"prompt. Received: prompt length={POSITIONS + 2}",
    ),
    "full prompt": (
        "gpt2_small",
        {"token_ids": np.ones((1, POSITIONS), int)},
        rf"at most {POSITIONS - 1} tokens.*prompt length={POSITIONS}",
    ),
    "long text": (
        "gpt2_small",
        {"token_ids": np.ones((1, POSITIONS - 2), int)},
        rf"`max_new_tokens` exceeds the model's {POSITIONS} positions; at most "
        rf"2 fit .*max_new_tokens=3, prompt length={POSITIONS - 2}",
    ),
}


# Also of an artefact.
INVALID |= {
    "no tokens": (
        "rnnsearch_50",
        {"token_ids": np.zeros((2, 0))},
        EMPTY + r"token_ids.shape=\(2, 0\)",
    ),
    "no rows": (
        "rnnsearch_50",
        {"token_ids": np.zeros((0, 5))},
        EMPTY + r"token_ids.shape=\(0, 5\)",
    ),
    "empty prompt": (
        "rnnsearch_50",
        {"token_ids": np.ones((2, 5)), "decoder_token_ids": np.zeros((2, 0))},
        EMPTY + r"decoder_token_ids.shape=\(2, 0\)",
    ),
    "no prompt": (
        "rnnsearch_50",
        {"token_ids": np.ones((2, 5))},
        r"`inputs` must be named .*; or give `start_token_id`. "
        r"Received: missing=\['decoder_token_ids'\], unknown=\[\]",
    ),
    "no source": (
        "rnnsearch_50",
        {"decoder_token_ids": np.ones((2, 1))},
        r"Received: missing=\[.*'token_ids'.*\], unknown=\[\]",
    ),
    "unknown": (
        "rnnsearch_50",
        {**make_inputs(), "language_ids": np.ones((2, 5))},
        r"must be named .*\. Received: missing=\[\], unknown=\['language_ids'\]",
    ),
    "segments": (
        "rnnsearch_50",
        {**make_inputs(), "segment_ids": np.ones((2, 5))},
        r"`segment_ids` must be 0 for every token.*Received: segments \[1\]",
    ),
    "prompt of rank 1": (
        "rnnsearch_50",
        {"token_ids": np.ones((2, 5)), "decoder_token_ids": np.ones(2)},
        r"`decoder_token_ids` must have 2 axes, \(batch, length\). "
        r"Received: decoder_token_ids.shape=\(2,\)",
    ),
    "nothing": ("rnnsearch_50", {}, r"Received: missing=\["),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_inputs_are_refused(name):
    case, inputs, message = INVALID[name]
    with pytest.raises(ValueError, match=message):
        generate(tiny(case), inputs, 3)
    if case == "rnnsearch_50" and "source" not in name:
        with pytest.raises(ValueError, match=message):
            generate(HostRunner(tiny(case).incremental()), inputs, 3)


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("end_token_id", V, rf"{VOCABULARY}. Received: end_token_id={V}"),
        ("end_token_id", [1, -1], rf"{VOCABULARY}. .*end_token_id=-1"),
        (
            "end_token_id",
            "2",
            r"must be a token id, an integer. Rec.*: end_token_id='2",
        ),
        ("pad_token_id", V, rf"{VOCABULARY}. Received: pad_token_id={V}"),
        (
            "pad_token_id",
            "2",
            r"must be a token id, an integer. Rec.*: pad_token_id='2",
        ),
    ],
)
def test_special_tokens_must_be_in_the_vocabulary(option, value, message):
    error = TypeError if value == "2" else ValueError
    with pytest.raises(error, match=f"`{option}` {message}"):
        generate(tiny("gpt2_small"), {"token_ids": [[1]]}, 3, **{option: value})
    message = "`inputs` must be a dictionary of arrays by name, as in .*of type list"
    with pytest.raises(TypeError, match=message):
        generate(tiny("gpt2_small"), [[1, 2]], 3)


def test_tokens_of_any_dtype():
    model, answers, prompt = tiny("gpt2_small"), [], [[1, 2, 3]] * 2
    for dtype in ("int64", "uint8", "float32"):
        answers.append(generate(model, {"token_ids": np.array(prompt, dtype)}, 3))
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer.token_ids, answers[0].token_ids)


def test_an_unknown_vocabulary_is_not_checked():
    runner = HostRunner(table_model(np.zeros((5, 5))).incremental())
    runner.signatures["prefill"].outputs = {"logits": keras.KerasTensor((None, None))}
    answer = generate(runner, {"token_ids": [[3]]}, 2, end_token_id=7)
    assert answer.token_ids.tolist() == [[0, 0]]
    with pytest.raises(ValueError, match="`token_ids` must be at least 0, .* from -1"):
        generate(runner, {"token_ids": [[-1]]}, 2)


@pytest.mark.parametrize("case", ["gpt2_small", "rnnsearch_50"])
def test_segments_of_zero_are_left_out(case):
    """As a tokenizer's `encode_batch` returns them; XLNet's padding has segment 3."""
    ids, mask = np.array([[3, 5, 2], [4, 1, 1]]), np.array([[1, 1, 1], [1, 1, 0]])
    inputs = {"token_ids": ids, "padding_mask": mask}
    segments = np.where(mask, 0, 3)
    start = {"start_token_id": 1, "jit_compile": False}
    for model in (tiny(case), HostRunner(tiny(case).incremental())):
        expected = generate(model, inputs, 3, **start).token_ids
        answer = generate(model, {**inputs, "segment_ids": segments}, 3, **start)
        np.testing.assert_array_equal(answer.token_ids, expected)
    segments[0, 2] = 1
    with pytest.raises(ValueError, match=r"Received: segments \[0, 1\]"):
        generate(tiny(case), {**inputs, "segment_ids": segments}, 3, **start)


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_max_new_tokens_must_be_a_positive_integer(count):
    with pytest.raises(
        ValueError, match=f"`max_new_tokens` must be a positive.*max_new_tokens={count}"
    ):
        generate(tiny("rnnsearch_50"), make_inputs(), count)


# Artefacts that take prompts of one length.


class FixedRunner(HostRunner):
    """An artefact whose inputs have the shape (1, 5)."""

    def __init__(self, pair):
        super().__init__(pair)
        for name, tensor in self.signatures["prefill"].inputs.items():
            self.signatures["prefill"].inputs[name] = keras.KerasTensor(
                (1, 5), tensor.dtype
            )
        self.max_length = pair.max_length

    def prefill(self, inputs):
        assert {np.shape(value) for value in inputs.values()} == {(1, 5)}
        return super().prefill(inputs)


@pytest.mark.parametrize("case", ["gpt3_small", "transformer_base"])
def test_short_prompts_are_padded_to_a_fixed_length(case):
    model = tiny(case)
    pair = model.incremental(max_length=11)
    runner = FixedRunner(pair)
    # Two fill the caches, one of them with padding.
    for length, more in ((1, 6), (3, 2), (5, 6)):
        tokens = np.array([[5, 11, 2, 3, 7]])[:, :length]
        inputs = as_inputs(model, tokens, np.ones_like(tokens, bool))
        compiled = length == 1
        expected = generate(model if compiled else HostRunner(pair), inputs, more)
        answer = generate(runner, inputs, more, pad_token_id=4)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
        np.testing.assert_allclose(answer.scores, expected.scores, atol=1e-4)
    tokens = np.ones((1, 6), int)
    message = r"must have at most 5 tokens, the length that the artefact was exported"
    with pytest.raises(ValueError, match=message):
        generate(runner, as_inputs(model, tokens, tokens), 1)
    # Padding takes slots: of eleven, six are left.
    message = "exceeds the model's 11 positions; at most 6 .*=7, prompt length=5"
    with pytest.raises(ValueError, match=message):
        generate(runner, as_inputs(model, tokens[:, :1], tokens[:, :1]), 7)
