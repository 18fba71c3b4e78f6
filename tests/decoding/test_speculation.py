"""Guessed tokens change how fast a text is generated, not which texts are."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
from decoding.toys import HostRunner, generate, log_softmax, table_model
from keras import ops
from model_cases import create, logits_of, randomize, tiny, varied
from variations import in_turn

from keras_attn.decoding import (
    Beam,
    DraftModel,
    Greedy,
    PromptLookup,
    Sample,
    Speculated,
    speculation,
)

# Prompts that repeat themselves, with padding on either side and in between.
PROMPTS = {
    "token_ids": [[5, 11, 2, 5, 11], [0, 0, 13, 3, 13], [5, 2, 0, 5, 0]],
    "padding_mask": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 1, 0]],
}


def shared(case, seed):
    """A tiny model whose weights are random numbers of a seed."""
    return randomize(varied(case, num_layers=1), seed=seed)


@pytest.mark.compiled
@pytest.mark.parametrize("case", in_turn(["gpt2_small", "gpt3_small"]))
def test_greedy_tokens_are_the_same(case):
    model = randomize(varied(case, num_layers=2), seed=1)
    (first, *_), *_ = generate(model, PROMPTS, 11).token_ids.tolist()
    for guesses in (PromptLookup(2, 3), DraftModel(shared(case, 4), 2)):
        for end in (None, first):
            options = {"end_token_id": end, "pad_token_id": 6}
            expected = generate(model, PROMPTS, 11, **options)
            answer = generate(model, PROMPTS, 11, speculation=guesses, **options)
            np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
            np.testing.assert_allclose(answer.scores, expected.scores, atol=1e-5)
            assert 0 <= answer.num_kept <= answer.num_guessed
            assert answer.num_guessed <= 3 * guesses.tokens * answer.num_passes


@pytest.mark.compiled
@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=3, temperature=0.9)])
def test_guesses_of_the_model_itself_are_kept(strategy):
    model = shared("gpt2_small", 2)
    options = {"strategy": strategy, "speculation": DraftModel(model, 3)}
    answer = generate(model, PROMPTS, 13, **options)
    # The first token comes from the prompt, then each pass adds 4.
    assert answer[2:] == (3, 27, 27)
    assert answer.acceptance_rate == 1
    # In the last pass, one new token is wanted.
    answer = generate(model, PROMPTS, 10, **options)
    assert answer[2:] == (3, 27, 21)
    assert Speculated(np.ones(1), np.ones(1), 0, 0, 0).acceptance_rate == 0


@pytest.mark.compiled
def test_a_text_that_repeats_itself_is_looked_up():
    # Token 1, 2, 3, 4, 0, 1, …, whatever came before.
    model = cyclic_model(5)
    inputs = {"token_ids": [[1, 2, 3, 4, 0, 1]]}
    tokens = np.asarray([7])[0]  # An int64 of NumPy.
    answer = generate(model, inputs, 17, speculation=PromptLookup(3, tokens))
    expected = [(2 + index) % 5 for index in range(17)]
    assert answer.token_ids.tolist() == [expected]
    # 1 + 8 + 8 tokens; what follows the prompt is repeated beyond its end.
    assert answer[2:] == (2, 14, 14)


def cyclic_model(vocabulary):
    """GPT-2 whose positions say the next token, (p + 2) % V after position p."""
    model = create("gpt2_small", num_layers=1, vocabulary_size=vocabulary)
    model.set_weights([np.zeros(weight.shape) for weight in model.weights])
    table = model.get_layer("token_embedding").embeddings
    table.assign(np.eye(*table.shape))
    positions = model.get_layer("position_embedding").embeddings
    following = (np.arange(positions.shape[0]) + 2) % vocabulary
    positions.assign(10 * np.eye(*table.shape)[following])
    norm = model.get_layer("final_norm")
    norm.gamma.assign(np.ones(norm.gamma.shape))
    return model


def naive_look_up(text, length, ngram, tokens):
    """The guesses for one row, or None; `text` is a list."""
    known = text[:length]
    for size in range(ngram, 0, -1):
        last = known[-size:]
        if -1 in last:
            continue
        for end in range(length - 1, size - 1, -1):
            if known[end - size : end] == last:
                copied = known[end:]
                return [copied[index % len(copied)] for index in range(tokens)]
    return None


def test_look_up_finds_the_longest_and_last_match():
    rng, found_any = np.random.default_rng(0), 0
    for ngram, tokens, known in ((1, 2, 9), (3, 5, 17), (2, 7, 13), (4, 3, 6)):
        ids, mask = rng.integers(0, 3, (23, 11)), rng.random((23, 11)) < 0.7
        mask[:, 5] = True
        text = speculation.text_before(ids, mask, ngram)
        for row, kept, before in zip(ids, mask, text, strict=True):
            assert [x for x in before.tolist() if x >= 0] == row[kept].tolist()
        new = np.concatenate([text, rng.integers(0, 3, (23, 7))], 1).astype("int32")
        length = min(text.shape[1] + known - 6, new.shape[1])
        guesses, found = map(
            ops.convert_to_numpy,
            speculation.look_up(ops.convert_to_tensor(new), length, ngram, tokens),
        )
        for row, guess, is_found in zip(new.tolist(), guesses, found, strict=True):
            expected = naive_look_up(row, length, ngram, tokens)
            assert is_found == (expected is not None)
            if is_found:
                assert guess.tolist() == expected
        found_any += found.sum()
    assert 40 < found_any < 92


def deviation(counts, probabilities):
    """Pearson's χ² of counts, in standard deviations of its distribution.

    Cells of less than 5 expected are merged.
    """
    expected = probabilities * counts.sum()
    assert not counts[expected == 0].any()
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    small = np.cumsum(expected) < 5
    cut = small.sum() + 1
    counts = np.append(counts[cut:], counts[:cut].sum())
    expected = np.append(expected[cut:], expected[:cut].sum())
    freedom = len(counts) - 1
    assert freedom > 2
    squared = ((counts - expected) ** 2 / expected).sum()
    return (squared - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "strategy",
    [
        Sample(temperature=0.7, top_k=4),
        Sample(top_p=0.9),
        Sample(top_k=8, top_p=0.95),
    ],
    ids=str,
)
@pytest.mark.parametrize("drawn", [True, False])
def test_kept_and_replaced_guesses_have_the_distribution_of_the_model(drawn, strategy):
    rng, rows, count, vocabulary = np.random.default_rng(5), 20_000, 2, 11
    logits = rng.normal(size=(1, count + 1, vocabulary)).astype("float32")
    target = ops.convert_to_numpy(strategy.probabilities(logits[0]))
    assert (target == 0).any(-1).all()
    uniform = rng.random((rows, count + 1, 3), "float32")
    draft, found = None, rng.random(rows) < 0.8
    guesses = np.tile(target.argmax(-1)[:count], (rows, 1)).astype("int32")
    if drawn:
        draft = rng.dirichlet(np.ones(vocabulary), count).astype("float32")
        beyond = draft.cumsum(-1)[None] > uniform[:, :count, :1]
        guesses, found = beyond.argmax(-1).astype("int32"), np.ones(rows, bool)
        draft = ops.convert_to_tensor(np.tile(draft, (rows, 1, 1)))
    checked = speculation.check_guesses(
        strategy,
        ops.convert_to_tensor(np.tile(logits, (rows, 1, 1))),
        ops.convert_to_tensor(guesses),
        ops.convert_to_tensor(found),
        draft,
        ops.convert_to_tensor(uniform),
    )
    kept = ops.convert_to_numpy(checked.num_kept)
    assert 0.1 < (kept / count).mean() < 0.9
    for index in range(count + 1):
        tokens = np.array(ops.convert_to_numpy(checked.replace(index)))
        if index < count:
            tokens = np.where(kept > index, guesses[:, index], tokens)
        counts = np.bincount(tokens[kept >= index], minlength=vocabulary)
        assert deviation(counts, target[index]) < 4


# Of χ² with 1, 2 and 3 degrees of freedom, at 0.999.


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_prompts_of_any_length_and_number(kind):
    """A graph that is compiled again has an unknown length; on JAX none has."""
    model, draft = shared("gpt2_small", 1), shared("gpt2_small", 4)
    guesses = DraftModel(draft, 2) if kind == "draft" else PromptLookup(2, 3)
    lengths = [(3, 1), (5, 1), (5, 3), (2, 2)]
    for length, rows in lengths if keras.backend.backend() != "jax" else lengths[1:2]:
        ids = np.random.default_rng(length).integers(0, 7, (rows, length))
        inputs = {"token_ids": ids, "padding_mask": np.arange(length) < length - 1}
        inputs["padding_mask"] = np.tile(inputs["padding_mask"], (rows, 1))
        expected = generate(model, inputs, 7, end_token_id=6)
        answer = generate(model, inputs, 7, end_token_id=6, speculation=guesses)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
        np.testing.assert_allclose(answer.scores, expected.scores, atol=1e-5)


CALLS, NEW = 400, 3


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_sampled_texts_have_the_distribution_of_the_model(kind):
    """All 125 texts of 3 tokens, from 1,600 samples, 4 of each call."""
    sizes = {"num_layers": 1, "vocabulary_size": 5}
    model = randomize(create("gpt2_small", **sizes), seed=1)
    guesses = PromptLookup(2, 2)
    if kind == "draft":
        draft = randomize(create("gpt2_small", **sizes), seed=8)
        guesses = DraftModel(draft, 2)
    prompt, strategy = [1, 3, 2, 1, 3], Sample(temperature=2.0)
    texts = np.array([*itertools.product(range(5), repeat=NEW)])
    whole = np.concatenate([np.tile(prompt, (len(texts), 1)), texts], 1)
    inputs = {"token_ids": whole.astype("int32"), "padding_mask": whole >= 0}
    logits = logits_of(model, inputs)[:, len(prompt) - 1 : -1] / strategy.temperature
    chosen = np.take_along_axis(log_softmax(logits), texts[..., None], -1)
    probabilities = np.exp(chosen.sum((1, 2)))
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-5)

    inputs = {"token_ids": [prompt] * 4}
    counts: Any = np.zeros(len(texts))
    kept = guessed = 0
    for seed in range(CALLS):
        strategy = Sample(temperature=2.0, seed=seed)
        options = {"strategy": strategy, "speculation": guesses}
        answer = generate(model, inputs, NEW, **options)
        np.add.at(counts, (answer.token_ids @ [25, 5, 1]).astype(int), 1)
        kept, guessed = kept + answer.num_kept, guessed + answer.num_guessed
    assert 0.1 < kept / guessed < 0.9
    assert (probabilities * counts.sum() > 5).sum() > 20
    assert deviation(counts, probabilities) < 4


def test_what_cannot_speculate():
    model = tiny("gpt2_small")

    def speculate(guesses=None, model=model, length=5, **options):
        inputs = {"token_ids": [[1, 2, 3]]}
        guesses = PromptLookup() if guesses is None else guesses
        return generate(model, inputs, length, speculation=guesses, **options)

    for wrong in ("lookup", PromptLookup):
        with pytest.raises(TypeError, match="`speculation` must be a `PromptLookup"):
            speculate(wrong)
    with pytest.raises(ValueError, match=r"one token after the other.*Beam\("):
        speculate(strategy=Beam(2))
    with pytest.raises(ValueError, match=r"leave out `on_token`"):
        speculate(on_token=print)
    table = table_model(np.eye(5))
    message = "`speculation` needs a decoder-only model.* Received: model="
    for other in (tiny("transformer_base"), table.incremental()):
        with pytest.raises(ValueError, match=message + type(other).__name__):
            speculate(model=other)
    with pytest.raises(ValueError, match=message + "HostRunner"):
        speculate(model=HostRunner(table.incremental()))
    with pytest.raises(ValueError, match=message + "TableModel"):
        speculate(DraftModel(table))
    with pytest.raises(
        ValueError, match=r"`speculation.model` must have .*_vocabulary"
    ):
        speculate(DraftModel(create("gpt2_small", vocabulary_size=23)))
    limit = model.max_length
    message = rf"need {limit + 1} positions, and the model has {limit}.*tokens=8"
    with pytest.raises(ValueError, match=message):
        speculate(length=limit - 9)
    draft = create("gpt2_small", max_sequence_length=11)
    message = "need 12 positions, and the draft model has 11. Received: tokens=4"
    with pytest.raises(ValueError, match=message):
        speculate(DraftModel(draft, 4), length=6)
    wrong: Any = ({"ngram": 0}, {"tokens": -1}, {"tokens": 1.5})
    for arguments in wrong:
        with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must be"):
            PromptLookup(**arguments)
    with pytest.raises(ValueError, match="`tokens` must be"):
        DraftModel(model, tokens=0)
