"""`on_token`, several end tokens, and sampling from the softmax of a model."""

import itertools

import numpy as np
import pytest
from decoding.toys import HostRunner, log_softmax, penalty, shared_table_model
from model_cases import create, logits_of, randomize, tiny
from scipy import stats

from keras_attn.decoding import Beam, Greedy, Sample
from keras_attn.decoding import generate as generate_now

pytestmark = pytest.mark.compiled

SOURCE = [7, 3, 11, 2]
STRATEGIES = {"greedy": Greedy(), "sample": Sample(seed=5, temperature=1.3, top_k=11)}


def generate(model, inputs, length, **options):
    """`generate` without XLA, which takes seconds per shape and strategy on JAX."""
    return generate_now(model, inputs, length, **{"jit_compile": False, **options})


def prompts(case, rows=7):
    if case == "gpt2_small":
        return {"token_ids": np.arange(1, rows + 1)[:, None]}
    sources = np.tile(SOURCE, (rows, 1))
    return {"token_ids": sources, "decoder_token_ids": np.arange(1, rows + 1)[:, None]}


def stream(model, inputs, length, **options):
    """The tokens passed to `on_token`, and the result."""
    calls = []
    answer = generate(model, inputs, length, on_token=calls.append, **options)
    return calls, answer


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", ["gpt2_small", "transformer_base", "rnnsearch_50"])
def test_on_token_gets_the_tokens_of_each_step(case, strategy):
    model, inputs = tiny(case), prompts(case)
    options = {"strategy": STRATEGIES[strategy]}
    expected = generate(model, inputs, 5, **options)
    calls, answer = stream(model, inputs, 5, **options)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=0, atol=1e-4)
    assert {(type(call), call.dtype, call.shape) for call in calls} == {
        (np.ndarray, np.dtype("int32"), (7,))
    }
    np.testing.assert_array_equal(np.stack(calls, axis=1), expected.token_ids)


def test_on_token_is_called_before_the_next_step():
    runner = HostRunner(tiny("gpt2_small").incremental())
    steps = []
    generate(
        runner, prompts("gpt2_small"), 5, on_token=lambda _: steps.append(runner.steps)
    )
    assert steps == [0, 1, 2, 3, 4]


def test_an_exception_in_on_token_stops_the_loop():
    calls = []

    def interrupt(tokens):
        calls.append(tokens)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tiny("gpt2_small"), prompts("gpt2_small"), 5, on_token=interrupt)
    assert len(calls) == 2


def test_on_token_gets_padding_for_ended_rows_until_all_have_ended():
    # 0 → 1 → 2 → 3, the end token.
    table = np.full((5, 5), -30.0)
    table[[0, 1, 2, 3, 4], [1, 2, 3, 3, 3]] = 0.0
    calls, answer = stream(
        shared_table_model(table),
        {"token_ids": [[0], [2]]},
        9,
        end_token_id=3,
        pad_token_id=4,
    )
    assert [call.tolist() for call in calls] == [[1, 3], [2, 4], [3, 4]]
    assert answer.token_ids.tolist() == [[1, 2, 3, *[4] * 6], [3, *[4] * 8]]


def test_on_token_uses_new_weights_at_once():
    inputs = {"token_ids": [[0], [1]]}
    # The next token is always 2, then always 3.
    for token in (2, 3):
        calls, answer = stream(shared_table_model(np.eye(5)[[token] * 5]), inputs, 4)
        np.testing.assert_array_equal(np.stack(calls), np.full((4, 2), token))
        np.testing.assert_array_equal(answer.token_ids, np.full((2, 4), token))


def test_on_token_with_a_beam_is_refused():
    message = (
        r"`on_token` needs a strategy that never revises a token, `Greedy\(\)` or "
        r"`Sample\(...\)`. Received: strategy=Beam\(num_beams=1"
    )
    with pytest.raises(ValueError, match=message):
        stream(tiny("gpt2_small"), prompts("gpt2_small"), 3, strategy=Beam(1))


def test_on_token_must_be_a_function():
    message = (
        r"`on_token` must be a function of the new tokens. Received: on_token=\[\]"
    )
    with pytest.raises(TypeError, match=message):
        generate(tiny("gpt2_small"), prompts("gpt2_small"), 3, on_token=[])


# Several end tokens.


def cut(ids, ends, pad):
    """A row up to its first end token, then padding."""
    found = [index for index, token in enumerate(ids) if token in ends]
    stop = found[0] + 1 if found else len(ids)
    return [*ids[:stop], *[pad] * (len(ids) - stop)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_of_several_end_tokens_ends_a_row(strategy):
    model = shared_table_model(np.zeros((7, 7)))
    inputs = {"token_ids": np.ones((11, 1), int)}
    strategy = Sample(seed=3) if strategy == "sample" else Greedy()
    free = generate(model, inputs, 9, strategy=strategy).token_ids
    ends = [2, 5] if isinstance(strategy, Sample) else [0, 5]
    for given in (ends, tuple(ends), np.array(ends), set(ends)):
        answer = generate(
            model, inputs, 9, strategy=strategy, end_token_id=given, pad_token_id=6
        )
        expected = [cut(row, ends, 6) for row in free.tolist()]
        assert answer.token_ids.tolist() == expected
    used = {token for row in expected for token in row if token in ends}
    assert used == (set(ends) if isinstance(strategy, Sample) else {0})


@pytest.mark.parametrize("ends", [[3], [1, 3], [0, 1, 3]])
def test_a_wide_beam_with_several_end_tokens_finds_the_best_answer(ends):
    vocabulary, length = 4, 3
    logits = np.random.default_rng(len(ends)).normal(0, 1.5, (vocabulary, vocabulary))
    log_probs = log_softmax(logits)
    answers = {
        ids[: next((i + 1 for i, t in enumerate(ids) if t in ends), length)]
        for ids in itertools.product(range(vocabulary), repeat=length)
    }
    scores = {
        ids: sum(log_probs[a, b] for a, b in itertools.pairwise((2, *ids)))
        / penalty(len(ids), 0.6)
        for ids in answers
    }
    best = max(scores, key=lambda ids: scores[ids])
    answer = generate(
        shared_table_model(logits),
        {"token_ids": [[2]]},
        length,
        strategy=Beam(64),
        end_token_id=ends,
    )
    assert answer.token_ids[0].tolist() == [*best, *[0] * (length - len(best))]
    np.testing.assert_allclose(answer.scores[0], scores[best], rtol=1e-5)


def test_lists_of_one_end_token_and_of_none():
    model, inputs = tiny("gpt2_small"), prompts("gpt2_small")
    for strategy in (Greedy(), Beam(3)):
        end = int(generate(model, inputs, 4).token_ids[0, 1])
        alone = generate(model, inputs, 4, strategy=strategy, end_token_id=end)
        listed = generate(model, inputs, 4, strategy=strategy, end_token_id=[end])
        np.testing.assert_array_equal(listed.token_ids, alone.token_ids)
        none = generate(model, inputs, 4, strategy=strategy, end_token_id=[])
        free = generate(model, inputs, 4, strategy=strategy)
        np.testing.assert_array_equal(none.token_ids, free.token_ids)


@pytest.mark.parametrize("case", ["gpt2_small", "transformer_base"])
def test_one_beam_is_greedy(case):
    model, inputs = tiny(case), prompts(case)
    greedy = generate(model, inputs, 6)
    # A token that ends some rows but not others.
    end = int(greedy.token_ids[0, 2])
    greedy = generate(model, inputs, 6, end_token_id=end)
    beam = generate(
        model, inputs, 6, strategy=Beam(1, length_penalty=0.0), end_token_id=end
    )
    np.testing.assert_array_equal(beam.token_ids, greedy.token_ids)
    np.testing.assert_allclose(beam.scores, greedy.scores, rtol=0, atol=1e-4)


# Sampling.


def p_value(tokens, probabilities):
    """Pearson's test of sampled tokens; rare ones are pooled."""
    assert (probabilities[tokens] > 0).all()
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    return stats.chisquare(counts[kept], expected[kept]).pvalue


@pytest.fixture(scope="module")
def uncertain_model():
    """Small weights, so that no token is certain."""
    return randomize(create("gpt2_small"), seed=3, scale=0.4)


def probabilities_of(model, prompt, temperature=1.0, top_k=None):
    tokens = np.array([prompt])
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens, bool)}
    logits = logits_of(model, inputs)[0, -1].astype("float64") / temperature
    if top_k is not None:
        logits[np.argsort(logits)[:-top_k]] = -np.inf
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_k": 5}], ids=str)
def test_frequencies_follow_the_softmax_of_the_model(uncertain_model, options):
    """Those of the first token, and of the second after the most frequent first."""
    prompt, rows = [5, 11, 2], 4001
    inputs = {"token_ids": np.tile(prompt, (rows, 1))}
    answer = generate(uncertain_model, inputs, 2, strategy=Sample(seed=1, **options))
    first, second = answer.token_ids.T
    expected = probabilities_of(uncertain_model, prompt, **options)
    assert np.sort(expected)[-2] > 0.05
    assert p_value(first, expected) > 0.001
    most = int(np.bincount(first).argmax())
    after = probabilities_of(uncertain_model, [*prompt, most], **options)
    assert p_value(second[first == most], after) > 0.001
    # The test has the power to reject a distribution that is close.
    other = {**options, "temperature": 1.4 * options.get("temperature", 1.0)}
    assert p_value(first, probabilities_of(uncertain_model, prompt, **other)) < 1e-6


def test_a_seed_determines_the_text_of_a_model():
    model, inputs = tiny("gpt2_small"), {"token_ids": np.full((7, 1), 5)}

    def sample(seed, **options):
        strategy = Sample(seed=seed, temperature=3.0)
        return generate(model, inputs, 11, strategy=strategy, **options).token_ids

    np.testing.assert_array_equal(sample(4), sample(4))
    np.testing.assert_array_equal(sample(4), sample(4, on_token=lambda tokens: None))
    assert (sample(4) != sample(5)).mean() > 0.5
    assert (sample(None) != sample(None)).any()
    assert len({tuple(row) for row in sample(4)}) == 7
