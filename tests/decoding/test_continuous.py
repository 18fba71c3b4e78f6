"""Continuous batching: each prompt gets the tokens that it gets alone."""

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest
from decoding.toys import HostRunner, log_softmax, shared_table_model, table_model
from model_cases import create, randomize, varied
from scipy import stats
from variations import in_turn

from keras_attn.decoding import Beam, IncrementalPair, Sample, generate
from keras_attn.decoding import generate_all as generate_all_now

pytestmark = pytest.mark.compiled

LENGTHS, LIMITS = (1, 5, 3, 2, 6, 4, 3), (3, 5, 1, 7, 2, 4, 6)
CASES = ["gpt2_small", "gpt3_small", "transformer_base", "rnnsearch_50"]


def generate_all(model, prompts, limits, **options):
    """`generate_all` without XLA, which takes seconds to compile on JAX."""
    return generate_all_now(model, prompts, limits, **{"jit_compile": False, **options})


def random_prompts(vocabulary=7):
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocabulary, length).tolist() for length in LENGTHS]


def alone(model, prompt, limit, **options):
    """Tokens and score of `generate`, without what follows the end token."""
    without_xla: Any = {"jit_compile": False, **options}
    found = generate(model, {"token_ids": [prompt]}, limit, **without_xla)
    tokens = found.token_ids[0].tolist()
    end = options.get("end_token_id")
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens, found.scores[0]


def tokens_of(answers):
    return [answer.token_ids.tolist() for answer in answers]


@pytest.mark.parametrize("case", in_turn(CASES))
def test_each_prompt_gets_the_tokens_that_it_gets_alone(case):
    model, prompts = randomize(varied(case), seed=1), random_prompts()
    options: dict[str, Any] = {"end_token_id": 5, "pad_token_id": 6}
    if "decoder_token_ids" in model.input:
        options["start_token_id"] = 1
    seen = {}
    answers = generate_all(
        model,
        prompts,
        LIMITS,
        batch_size=3,
        on_completion=seen.setdefault,
        **options,
    )
    for index, (prompt, limit) in enumerate(zip(prompts, LIMITS, strict=True)):
        tokens, score = alone(model, prompt, limit, **options)
        assert answers[index].token_ids.tolist() == tokens
        assert answers[index].token_ids.dtype == "int32"
        assert answers[index].score == pytest.approx(score, abs=1e-4)
        assert seen[index] is answers[index]
    # More rows than prompts.
    assert tokens_of(generate_all(model, prompts[:2], 3, **options)) == [
        alone(model, prompt, 3, **options)[0] for prompt in prompts[:2]
    ]


def test_a_row_that_ends_is_taken_by_the_next_prompt():
    """0 ends after step 2, 2 after step 5, 3 after step 8, 1 after step 9."""
    model, order = shared_table_model(np.eye(5)), []
    generate_all(
        model,
        [[0], [1], [2], [3]],
        [2, 9, 3, 3],
        batch_size=2,
        on_completion=lambda index, answer: order.append((index, answer.token_ids)),
    )
    assert [index for index, _ in order] == [0, 2, 3, 1]
    assert [tokens.tolist() for _, tokens in order] == [
        [0] * 2,
        [2] * 3,
        [3] * 3,
        [1] * 9,
    ]


def test_a_sampled_answer_does_not_depend_on_the_other_prompts():
    model, prompts = randomize(varied("gpt2_small"), seed=1), [[3, 2]] * 4 + [[4]] * 3
    strategy = Sample(seed=3, temperature=1.7, top_k=11)
    answers = tokens_of(generate_all(model, prompts, 7, strategy=strategy))
    assert len({*map(tuple, answers[:4])}) > 1  # Equal prompts, unlike answers.
    again = generate_all(
        model,
        prompts[:6] + [[1, 2, 3]],
        [7] * 5 + [3, 5],
        batch_size=2,
        strategy=strategy,
    )
    assert tokens_of(again)[:5] == answers[:5]
    assert tokens_of(again)[5] == answers[5][:3]
    other = generate_all(model, prompts, 7, strategy=Sample(seed=4, temperature=1.7))
    assert tokens_of(other) != answers


def test_sampled_tokens_have_the_distribution_of_the_model():
    logits = np.array([[0, 1, -1], [2, 0, 0], [0, 0, 1.5]])
    model = shared_table_model(logits)
    answers = generate_all(
        model, [[0]] * 700, [1, 2] * 350, batch_size=64, strategy=Sample(seed=1)
    )
    probabilities = np.exp(log_softmax(logits))
    counts = Counter(answer.token_ids[0] for answer in answers)
    expected = 700 * probabilities[0]
    assert stats.chisquare([counts[t] for t in range(3)], expected).pvalue > 1e-3
    pairs = Counter(tuple(answer.token_ids) for answer in answers[1::2])
    expected = 350 * (probabilities[0][:, None] * probabilities).ravel()
    found = [pairs[divmod(index, 3)] for index in range(9)]
    assert stats.chisquare(found, expected).pvalue > 1e-3


def test_prompts_are_padded_to_few_lengths_under_xla():
    model = randomize(varied("gpt2_small", num_layers=1), seed=1)
    prompts = [[3], [2, 1]]
    traced = []
    call = type(model.incremental().prefill).call

    def counted(self, inputs, *arguments, **options):
        if self.name == "prefill":
            traced.append(inputs["token_ids"].shape)
        return call(self, inputs, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(model.incremental().prefill), "call", counted)
        # So many that they need the slots of the padding.
        limit = model.max_length - 2
        answers = generate_all(model, prompts, limit, batch_size=1, jit_compile=True)
    assert {*traced} <= {(1, 16), (None, 16)} and traced
    assert tokens_of(answers) == [alone(model, x, limit)[0] for x in prompts]


def test_no_prompts():
    assert generate_all(shared_table_model(np.eye(5)), [], 3) == []


def test_arguments_are_checked_before_anything_is_compiled():
    model = create("gpt2_small")
    limit = model.max_length

    def raises(error, message, prompts: Any = ((1, 2),), tokens: Any = 2, **options):
        with pytest.raises(error, match=message):
            generate_all(options.pop("model", model), prompts, tokens, **options)

    raises(ValueError, "`batch_size` must be a positive .*=0", batch_size=0)
    raises(ValueError, "`max_new_tokens` must be a positive .*=0", tokens=0)
    raises(ValueError, "one for each prompt.* 2 numbers for 1 prompts", tokens=[1, 2])
    raises(ValueError, r"`prompts\[1\]` must be .*at least one.*\(0,\)", [[1], []])
    raises(ValueError, r"`prompts\[0\]` must be a sequence.*\(\)", [3])
    message = r"`prompts\[1\]` must have at most \d+ tokens"
    raises(ValueError, message, [[1], [1] * limit])
    raises(ValueError, "`max_new_tokens` exceeds", [[1]], limit)
    raises(ValueError, "`token_ids` must be in", [[1], [10_000]])
    raises(TypeError, "`strategy` must be `Greedy.*Beam", strategy=Beam(2))
    raises(TypeError, "`on_completion` must be a function", on_completion=3)
    runner = HostRunner(table_model(np.eye(5)).incremental())
    raises(TypeError, "`model` must be a Keras model; for an artefact", model=runner)
    raises(TypeError, "can't decode", model=keras.Sequential())
    walker = create("listen_attend_walk")
    raises(TypeError, "`model` must continue tokens or translate", model=walker)
    tokens, start = (
        keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "decoder_token_ids")
    )
    last = keras.Input((), dtype="int32", name="token_ids")
    source = keras.Input((None,), dtype="int32", name="source")
    embed = keras.layers.Embedding(5, 5)
    pair = IncrementalPair(
        keras.Model(
            {"token_ids": tokens, "decoder_token_ids": start},
            {"logits": embed(start[:, -1]), "source": tokens},
        ),
        keras.Model(
            {"token_ids": last, "source": source},
            {"logits": embed(last) + keras.ops.sum(embed(source), 1)},
        ),
        prompt="decoder_token_ids",
    )
    message = "`prompts` must have one length.* from 1 to 2"
    raises(ValueError, message, [[1], [1, 2]], model=pair, start_token_id=1)
    assert isinstance(generate_all(pair, [[1], [2]], 2, start_token_id=1), list)
