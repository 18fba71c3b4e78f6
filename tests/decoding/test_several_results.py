"""Several continuations of a prompt: the n best of a beam search, n samples."""

from typing import Any

import numpy as np
import pytest
from decoding.toys import (
    HostRunner,
    every_answer,
    generate,
    log_softmax,
    penalty,
    shared_table_model,
    table_model,
)
from model_cases import varied

from keras_attn.decoding import Beam, Greedy, PromptLookup, Sample
from keras_attn.ops import MASKED

END = 2


def log_prob(table, start, ids):
    total, previous = 0.0, start
    for token in ids:
        total += log_softmax(table[previous])[token]
        previous = token
        if token == END:
            break
    return total


def chan(ids, alpha):
    """Chan et al. 2016, section 3.4: the length without the end token."""
    return max(len(ids) - (ids[-1] == END), 1) ** alpha


@pytest.mark.parametrize(
    "strategy, lengths",
    [
        (Beam(27, 0.6), lambda ids: penalty(len(ids), 0.6)),
        (Beam(27, 3.0), lambda ids: penalty(len(ids), 3.0)),
        (Beam(27, 1.0, "length"), lambda ids: chan(ids, 1.0)),
    ],
)
def test_the_n_best_of_a_beam(strategy, lengths):
    rng = np.random.default_rng(4)
    orders = set()
    for _ in range(4):
        table = rng.normal(0, 1.5, (3, 3))
        table[:, END] -= 1
        inputs = {"token_ids": [[0], [1]]}
        options = {"strategy": strategy, "end_token_id": END, "num_results": 17}
        model = shared_table_model(table)
        found = generate(model, inputs, 3, **options)
        assert found.token_ids.shape == (2, 17, 3) and found.scores.shape == (2, 17)
        one = generate(model, inputs, 3, strategy=strategy, end_token_id=END)
        np.testing.assert_array_equal(found.token_ids[:, 0], one.token_ids)
        np.testing.assert_array_equal(found.scores[:, 0], one.scores)
        for row, start in enumerate([0, 1]):
            scored = {
                ids: log_prob(table, start, ids) / lengths(ids)
                for ids in every_answer(3, 3, [END])
            }
            # Padded as here; 0 is no end, so no two answers become the same.
            scored = {(*ids, 0, 0)[:3]: score for ids, score in scored.items()}
            best = sorted(scored.values(), reverse=True)
            np.testing.assert_allclose(found.scores[row, :15], best, atol=1e-4)
            # Two answers of the same transitions may have the same score.
            rows = [tuple(ids) for ids in found.token_ids[row, :15].tolist()]
            assert set(rows) == set(scored) and len(scored) == 15
            expected = [scored[ids] for ids in rows]
            np.testing.assert_allclose(found.scores[row, :15], expected, atol=1e-4)
            orders.add(tuple(rows))
            # There are no more, whatever a penalty makes of empty beams.
            np.testing.assert_array_equal(found.scores[row, 15:], MASKED)
    assert len(orders) > 1


def test_one_result_has_an_axis():
    model = shared_table_model(np.eye(5))
    found = generate(model, {"token_ids": [[1], [3]]}, 2, num_results=1)
    np.testing.assert_array_equal(found.token_ids, [[[1, 1]], [[3, 3]]])
    assert found.scores.shape == (2, 1)


def test_samples_of_a_known_seed():
    # Four equally probable tokens divide [0, 1) into quarters.
    numbers = np.random.default_rng(0).random((2 * 3, 5), "float32")
    expected = (numbers * 4).astype(int).reshape(2, 3, 5)
    inputs, options = {"token_ids": [[0], [2]]}, {"strategy": Sample(seed=0)}
    model = shared_table_model(np.zeros((4, 4)))
    found = generate(model, inputs, 5, num_results=3, **options)
    np.testing.assert_array_equal(found.token_ids, expected)
    np.testing.assert_allclose(found.scores, np.full((2, 3), 5 * np.log(0.25)), 1e-6)
    # Of one prompt, the first is the sample without `num_results`.
    inputs = {"token_ids": [[0]]}
    one = generate(model, inputs, 5, **options)
    several = generate(model, inputs, 5, num_results=3, **options)
    np.testing.assert_array_equal(one.token_ids, several.token_ids[:, 0])


def test_samples_on_the_host_are_the_same_and_scored():
    table = np.random.default_rng(8).normal(0, 1, (5, 5))
    runner = HostRunner(table_model(table).incremental())
    prompts, steps = [[1], [4], [0]], []
    options = {"strategy": Sample(seed=8, top_k=4), "end_token_id": END}
    options |= {"num_results": 7, "pad_token_id": 3}
    inputs = {"token_ids": prompts}
    host = generate(runner, inputs, 6, on_token=steps.append, **options)
    compiled = generate(shared_table_model(table), inputs, 6, **options)
    np.testing.assert_array_equal(host.token_ids, compiled.token_ids)
    np.testing.assert_allclose(host.scores, compiled.scores, rtol=1e-5)
    tokens = np.stack(steps, axis=-1).reshape(3, 7, -1)
    np.testing.assert_array_equal(tokens, host.token_ids[..., : tokens.shape[-1]])
    for (start,), rows, scores in zip(
        prompts, host.token_ids, host.scores, strict=True
    ):
        assert len({tuple(row) for row in rows.tolist()}) > 3
        for ids, score in zip(rows.tolist(), scores, strict=True):
            assert np.isclose(score, log_prob(table, start, ids), atol=1e-4)
    beams = generate(runner, inputs, 6, strategy=Beam(4), num_results=2)
    ours = generate(
        shared_table_model(table), inputs, 6, strategy=Beam(4), num_results=2
    )
    np.testing.assert_array_equal(beams.token_ids, ours.token_ids)


@pytest.mark.compiled
@pytest.mark.parametrize("case", ["gpt2_small", "rnnsearch_50"])
def test_states_and_padding_are_those_of_each_prompt(case):
    """Of caches and of a recurrent state; the prompts, or sources, differ in length."""
    model = varied(case)
    inputs = {
        "token_ids": np.array([[5, 11, 2, 7], [13, 3, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    options = {"start_token_id": 1} if "decoder_token_ids" in model.input else {}
    options |= {"end_token_id": 4}
    repeated = {name: np.repeat(x, 3, axis=0) for name, x in inputs.items()}
    strategy = Sample(seed=3)
    several = generate(model, inputs, 6, strategy=strategy, num_results=3, **options)
    expected = generate(model, repeated, 6, strategy=strategy, **options)
    np.testing.assert_array_equal(several.token_ids.reshape(6, 6), expected.token_ids)
    np.testing.assert_allclose(several.scores.reshape(6), expected.scores, rtol=1e-5)
    options |= {"strategy": Beam(4), "num_results": 4}
    beams = generate(model, inputs, 6, **options)
    for row, length in enumerate([4, 2]):
        alone = {name: x[row : row + 1, :length] for name, x in inputs.items()}
        one = generate(model, alone, 6, **options)
        np.testing.assert_array_equal(beams.token_ids[row], one.token_ids[0])
        np.testing.assert_allclose(beams.scores[row], one.scores[0], rtol=1e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_results": 0}, "`num_results` must be a positive integer"),
        ({"num_results": 2}, r"at most 1 with this strategy.*strategy=Greedy\(\)"),
        (
            {"num_results": 5, "strategy": Beam(4)},
            "`num_results` must be at most 4 .*Received: num_results=5, strategy=Beam",
        ),
        (
            {"num_results": 2, "strategy": Sample(), "speculation": PromptLookup()},
            "`num_results` cannot be combined with `speculation`.*num_results=2",
        ),
    ],
)
def test_numbers_of_results_that_are_refused(options, message):
    model = shared_table_model(np.zeros((4, 4)))
    options = {"strategy": Greedy(), **options}
    with pytest.raises(ValueError, match=message):
        generate(model, {"token_ids": [[0]]}, 2, **options)


def test_an_unknown_normalization():
    unknown: Any = "words"
    with pytest.raises(ValueError, match="`normalization` must be one of 'wu', 'len"):
        Beam(4, normalization=unknown)
