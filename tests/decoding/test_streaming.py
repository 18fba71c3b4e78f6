"""Tokens as they come, several end tokens, and how a real model's chance falls."""

import itertools

import numpy as np
import pytest
from decoding.toys import HostRunner, log_softmax, penalty, table_model
from model_cases import create, logits_of, randomize, tiny
from scipy import stats

from keras_attn.decoding import Beam, Greedy, Sample
from keras_attn.decoding import generate as generate_now

SOURCE = [7, 3, 11, 2]
STRATEGIES = {"greedy": Greedy(), "sample": Sample(seed=5, temperature=1.3, top_k=11)}


def generate(model, inputs, length, **options):
    return generate_now(model, inputs, length, **{"jit_compile": False, **options})


def prompts(case, rows=3):
    if case == "gpt2_small":
        return {"token_ids": np.arange(1, rows + 1)[:, None]}
    sources = np.tile(SOURCE, (rows, 1))
    return {"token_ids": sources, "decoder_token_ids": np.arange(1, rows + 1)[:, None]}


def streamed(model, inputs, length, **options):
    """What `on_token` was called with, and what was returned."""
    calls = []
    answer = generate(model, inputs, length, on_token=calls.append, **options)
    return calls, answer


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", ["gpt2_small", "transformer_base", "rnnsearch_50"])
def test_tokens_come_as_they_are_chosen(case, strategy):
    model, inputs = tiny(case), prompts(case)
    options = {"strategy": STRATEGIES[strategy]}
    expected = generate(model, inputs, 5, **options)
    calls, answer = streamed(model, inputs, 5, **options)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=0, atol=1e-4)
    assert {(type(call), call.dtype, call.shape) for call in calls} == {
        (np.ndarray, np.dtype("int32"), (3,))
    }
    np.testing.assert_array_equal(np.stack(calls, axis=1), expected.token_ids)


def test_a_token_comes_before_the_next_step():
    runner = HostRunner(tiny("gpt2_small").incremental())
    steps = []
    generate(
        runner, prompts("gpt2_small"), 5, on_token=lambda _: steps.append(runner.steps)
    )
    assert steps == [0, 1, 2, 3, 4]


def test_who_listens_may_stop_it():
    heard = []

    def listen(tokens):
        heard.append(tokens)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tiny("gpt2_small"), prompts("gpt2_small"), 5, on_token=listen)
    assert len(heard) == 2


def test_a_row_that_has_ended_gets_padding_and_the_last_one_ends_it_all():
    # From each token to the next; 3 is the end.
    table = np.full((5, 5), -30.0)
    table[[0, 1, 2, 3, 4], [1, 2, 3, 3, 3]] = 0.0
    calls, answer = streamed(
        table_model(table), {"token_ids": [[0], [2]]}, 9, end_token_id=3, pad_token_id=4
    )
    assert [call.tolist() for call in calls] == [[1, 3], [2, 4], [3, 4]]
    assert answer.token_ids.tolist() == [[1, 2, 3, *[4] * 6], [3, *[4] * 8]]


def test_new_weights_are_heard_at_once():
    model = create("gpt2_small")
    before, _ = streamed(model, prompts("gpt2_small"), 4)
    randomize(model, seed=8)
    after, answer = streamed(model, prompts("gpt2_small"), 4)
    expected = generate(model, prompts("gpt2_small"), 4)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    assert (np.stack(after) != np.stack(before)).any()


def test_a_beam_is_not_heard():
    message = (
        r"`on_token` needs a strategy whose tokens are final at once, `Greedy\(\)` or "
        r"`Sample\(...\)`. Received: strategy=Beam\(num_beams=1"
    )
    with pytest.raises(ValueError, match=message):
        streamed(tiny("gpt2_small"), prompts("gpt2_small"), 3, strategy=Beam(1))


def test_who_listens_is_a_function():
    message = (
        r"`on_token` must be a function of the new tokens. Received: on_token=\[\]"
    )
    with pytest.raises(TypeError, match=message):
        generate(tiny("gpt2_small"), prompts("gpt2_small"), 3, on_token=[])


# Several end tokens.


def cut(ids, ends, pad):
    """A row up to its first end token, and padding behind it."""
    found = [index for index, token in enumerate(ids) if token in ends]
    stop = found[0] + 1 if found else len(ids)
    return [*ids[:stop], *[pad] * (len(ids) - stop)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_of_several_tokens_ends_a_row(strategy):
    model, inputs = table_model(np.zeros((7, 7))), {"token_ids": np.ones((11, 1), int)}
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
def test_a_wide_beam_finds_the_best_of_all_answers_with_several_ends(ends):
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
        table_model(logits),
        {"token_ids": [[2]]},
        length,
        strategy=Beam(64),
        end_token_id=ends,
    )
    assert answer.token_ids[0].tolist() == [*best, *[0] * (length - len(best))]
    np.testing.assert_allclose(answer.scores[0], scores[best], rtol=1e-5)


def test_one_end_token_in_a_list_is_one_end_token():
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
    model, inputs = tiny(case), prompts(case, rows=7)
    greedy = generate(model, inputs, 6)
    # Some rows end by it, others do not.
    end = int(greedy.token_ids[0, 2])
    greedy = generate(model, inputs, 6, end_token_id=end)
    beam = generate(
        model, inputs, 6, strategy=Beam(1, length_penalty=0.0), end_token_id=end
    )
    np.testing.assert_array_equal(beam.token_ids, greedy.token_ids)
    np.testing.assert_allclose(beam.scores, greedy.scores, rtol=0, atol=1e-4)


# Chance.


def p_value(tokens, probabilities):
    """Pearson's test of drawn tokens; rare ones are counted together."""
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
def even_model():
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
def test_frequencies_follow_the_softmax_of_the_model(even_model, options):
    """Of the first token, and of the second behind the most frequent first."""
    prompt, rows = [5, 11, 2], 4001
    inputs = {"token_ids": np.tile(prompt, (rows, 1))}
    answer = generate(even_model, inputs, 2, strategy=Sample(seed=1, **options))
    first, second = answer.token_ids.T
    expected = probabilities_of(even_model, prompt, **options)
    assert np.sort(expected)[-2] > 0.05
    assert p_value(first, expected) > 0.001
    most = int(np.bincount(first).argmax())
    behind = probabilities_of(even_model, [*prompt, most], **options)
    assert p_value(second[first == most], behind) > 0.001
    # The test can tell: a distribution close by does not pass.
    other = {**options, "temperature": 1.4 * options.get("temperature", 1.0)}
    assert p_value(first, probabilities_of(even_model, prompt, **other)) < 1e-6


def test_a_seed_says_what_a_model_writes(even_model):
    inputs = {"token_ids": np.tile([5, 11, 2], (7, 1))}

    def draw(seed, **options):
        strategy = Sample(seed=seed)
        return generate(even_model, inputs, 11, strategy=strategy, **options).token_ids

    np.testing.assert_array_equal(draw(4), draw(4))
    np.testing.assert_array_equal(draw(4), draw(4, on_token=lambda tokens: None))
    assert (draw(4) != draw(5)).mean() > 0.5
    assert (draw(None) != draw(None)).any()
    assert len({tuple(row) for row in draw(4)}) == 7
