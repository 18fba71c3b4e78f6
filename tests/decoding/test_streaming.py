"""`on_token`, and several end tokens."""

import numpy as np
import pytest
from decoding.toys import HostRunner, generate, shared_table_model
from model_cases import tiny

from keras_attn.decoding import Beam, Greedy, Sample

pytestmark = pytest.mark.compiled

SOURCE = [7, 3, 11, 2]
STRATEGIES = {"greedy": Greedy(), "sample": Sample(seed=5, temperature=1.3, top_k=11)}


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


def test_on_token_is_a_function_and_its_strategy_revises_no_token():
    message = (
        r"`on_token` needs a strategy that never revises a token, `Greedy\(\)` or "
    )
    message += r"`Sample\(...\)`. Received: strategy=Beam\(num_beams=1"
    model, inputs = tiny("gpt2_small"), prompts("gpt2_small")
    with pytest.raises(ValueError, match=message):
        stream(model, inputs, 3, strategy=Beam(1))
    message = (
        r"`on_token` must be a function of the new tokens. Received: on_token=\[\]"
    )
    with pytest.raises(TypeError, match=message):
        generate(model, inputs, 3, on_token=[])


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
    none = generate(model, inputs, 9, strategy=strategy, end_token_id=[])
    np.testing.assert_array_equal(none.token_ids, free)
    used = {token for row in expected for token in row if token in ends}
    assert used == (set(ends) if isinstance(strategy, Sample) else {0})
