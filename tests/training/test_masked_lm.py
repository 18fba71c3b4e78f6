from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.training.masking.masked_lm import (
    MaskedLMMasking,
    replace_tokens,
    select_tokens,
)
from keras_attn.training.masking.random_masking import mask_batches

V, MASK = 101, 4
SPECIAL = [0, 1, 2]
B, T = 5, 13


def sliced(inputs: Any):
    return tf.data.Dataset.from_tensor_slices(inputs)


def whole(inputs: Any):
    return tf.data.Dataset.from_tensors(inputs)


def batch(rows=B, length=T, seed=0):
    """Rows `[1] tokens [2] padding`; in the second row the padding is on the left."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(5, V, (rows, length)).astype("int32")
    padding_mask = np.ones((rows, length), "bool")
    padding_mask[0, 9:] = padding_mask[1, :3] = False
    for row in range(rows):
        real = np.flatnonzero(padding_mask[row])
        token_ids[row, real[0]], token_ids[row, real[-1]] = 1, 2
    # Padding has ordinary ids, which would count if padding did.
    return token_ids, padding_mask


def counted(token_ids, padding_mask):
    return padding_mask & ~np.isin(token_ids, [*SPECIAL, MASK])


def numpy(outputs):
    return {name: np.asarray(tensor) for name, tensor in outputs.items()}


def masking(**options):
    return MaskedLMMasking(V, MASK, special_token_ids=SPECIAL, seed=3, **options)


def test_selection_by_hand():
    candidates = np.array([[0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1], [0] * 7])
    # The i-th number belongs to the i-th candidate.
    uniforms = np.array(
        [
            [0.9, 0.2, 0.8, 0.1, 0.0, 0.0, 0.0],
            [0.7, 0.1, 0.6, 0.2, 0.5, 0.3, 0.4],
            [0.0] * 7,
        ],
        "float32",
    )
    chosen = np.asarray(select_tokens(uniforms, candidates, 0.4))
    # round(0.4 · 4) = 2: the fourth and the second; round(0.4 · 7) = 3.
    assert chosen.astype(int).tolist() == [
        [0, 0, 1, 0, 0, 1, 0],
        [0, 1, 0, 1, 0, 1, 0],
        [0] * 7,
    ]
    few = np.asarray(select_tokens(uniforms, candidates, 0.4, max_predictions=1))
    assert [np.flatnonzero(row).tolist() for row in few] == [[5], [1], []]
    # At least one, however small the rate.
    least = np.asarray(select_tokens(uniforms, candidates, 0.01))
    assert least.sum(axis=1).tolist() == [1, 1, 0]


def test_selection_of_whole_words_by_hand():
    # Words: 1-3, 4, and 6-7, which starts one because it follows a special token.
    candidates = np.array([[0, 1, 1, 1, 1, 0, 1, 1, 0]])
    starts = np.array([[1, 1, 0, 0, 1, 1, 0, 0, 1]])
    uniforms = np.array([[0.5, 0.6, 0.1] + [0.0] * 6], "float32")

    def words(rate, **options):
        chosen = select_tokens(
            uniforms, candidates, rate, word_starts=starts, **options
        )
        return np.flatnonzero(np.asarray(chosen)[0]).tolist()

    assert words(0.33) == [6, 7]
    assert words(0.67) == [1, 2, 3, 6, 7]
    assert words(1.0) == [1, 2, 3, 4, 6, 7]
    assert words(1.0, max_predictions=6) == [1, 2, 3, 4, 6, 7]
    assert words(1.0, max_predictions=5) == [1, 2, 3, 6, 7]
    # The second word in random order does not fit; it and all after it are left out.
    assert words(1.0, max_predictions=4) == [6, 7]
    assert words(1.0, max_predictions=1) == []


def test_replacement_by_hand():
    token_ids = np.array([[11, 12, 13, 14, 15, 16]], "int32")
    chosen = np.array([[True, True, True, True, True, False]])
    uniforms = np.array([[0.0, 0.79, 0.8, 0.89, 0.91, 0.1]], "float32")
    seen = replace_tokens(
        token_ids, chosen, uniforms, token_ids + 50, mask_token_id=MASK
    )
    assert np.asarray(seen).tolist() == [[MASK, MASK, 63, 64, 15, 16]]


def test_labels_and_weights():
    token_ids, padding_mask = batch()
    out = numpy(masking(rate=0.4)(token_ids, padding_mask))
    weights = out["sample_weight"]
    assert weights.dtype == "float32" and out["labels"].dtype == "int32"
    chosen = weights == 1
    assert set(np.unique(weights)) == {0, 1}
    assert not (chosen & ~counted(token_ids, padding_mask)).any()
    np.testing.assert_array_equal(out["labels"], np.where(chosen, token_ids, 0))
    np.testing.assert_array_equal(out["token_ids"][~chosen], token_ids[~chosen])
    assert (out["token_ids"] != token_ids).any()
    n = counted(token_ids, padding_mask).sum(1)
    assert chosen.sum(1).tolist() == np.maximum(1, np.round(0.4 * n)).tolist()


@pytest.mark.parametrize("count", [3, 29])
def test_max_predictions(count):
    token_ids, padding_mask = batch()
    out = numpy(masking(rate=0.4, max_predictions=count)(token_ids, padding_mask))
    assert out["masked_positions"].shape == out["labels"].shape == (B, count)
    n = counted(token_ids, padding_mask).sum(1)
    wanted = np.minimum(np.maximum(1, np.round(0.4 * n)), count)
    assert out["sample_weight"].sum(1).tolist() == wanted.tolist()
    for row in range(B):
        real = out["sample_weight"][row] == 1
        positions = out["masked_positions"][row]
        assert (np.diff(positions[real]) > 0).all()
        assert counted(token_ids, padding_mask)[row, positions[real]].all()
        assert out["labels"][row, real].tolist() == (
            token_ids[row, positions[real]].tolist()
        )
        assert not positions[~real].any() and not out["labels"][row, ~real].any()
        untouched = np.setdiff1d(np.arange(T), positions[real])
        np.testing.assert_array_equal(
            out["token_ids"][row, untouched], token_ids[row, untouched]
        )


def within(hits, trials, rate):
    """Whether a binomial count is within 4 standard deviations: once in 16,000."""
    return abs(hits - trials * rate) < 4 * np.sqrt(trials * rate * (1 - rate))


def test_frequencies():
    rng = np.random.default_rng(1)
    token_ids = rng.integers(5, V, (400, 100)).astype("int32")
    out = numpy(masking()(token_ids))
    chosen = out["sample_weight"] == 1
    assert (chosen.sum(1) == 15).all()
    # Positions are uniformly distributed: chi-square, 99 degrees of freedom.
    hits = chosen.sum(0)
    assert ((hits - 60.0) ** 2 / 60).sum() / (1 - 0.15) < 149  # 99.9 %.
    was, now = token_ids[chosen], out["token_ids"][chosen]
    total = len(was)
    assert within((now == MASK).sum(), total, 0.8)
    replaced = (now != MASK) & (now != was)
    num_ordinary = V - len(SPECIAL) - 1
    # Some random tokens equal the original.
    assert within(replaced.sum(), total, 0.1 * (1 - 1 / num_ordinary))
    assert within((now == was).sum(), total, 0.1 + 0.1 / num_ordinary)
    # Random tokens are never special, and uniformly distributed otherwise.
    found = np.bincount(now[replaced], minlength=V)
    assert not found[[*SPECIAL, MASK]].any()
    others = np.delete(found, [*SPECIAL, MASK])
    mean = others.mean()
    assert ((others - mean) ** 2 / mean).sum() < 144  # 96 degrees, 99.9 %.


def test_extreme_rates():
    token_ids, padding_mask = batch(50)
    for mask_rate, random_rate in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
        layer = masking(rate=0.5, mask_rate=mask_rate, random_rate=random_rate)
        out = numpy(layer(token_ids, padding_mask))
        now = out["token_ids"][out["sample_weight"] == 1]
        assert (now == MASK).all() == (mask_rate == 1) and len(now) > 200
        if not mask_rate:
            same = out["token_ids"] == token_ids
            assert same.all() == (random_rate == 0)
            assert not np.isin(now, [*SPECIAL, MASK]).any()


def test_whole_words_from_the_vocabulary():
    token_ids, padding_mask = batch(60)
    layer = masking(
        rate=0.3, mask_rate=1, random_rate=0, continuation_token_ids=range(60, V)
    )
    out = numpy(layer(token_ids, padding_mask))
    chosen, candidates = out["sample_weight"] == 1, counted(token_ids, padding_mask)
    for row in range(60):
        words = []
        for position in np.flatnonzero(candidates[row]):
            if token_ids[row, position] < 60 or not candidates[row, position - 1]:
                words.append([])
            words[-1].append(chosen[row, position])
        assert all(len(set(word)) == 1 for word in words)
        hit = sum(word[0] for word in words)
        assert hit == max(1, round(np.float32(0.3) * len(words)))
    # `word_starts` takes precedence; here every token is a word.
    again = numpy(layer(token_ids, padding_mask, np.ones_like(padding_mask)))
    n = candidates.sum(1)
    assert again["sample_weight"].sum(1).tolist() == (
        np.maximum(1, np.round(np.float32(0.3) * n)).tolist()
    )


def test_a_seed_repeats_and_calls_differ():
    token_ids, padding_mask = batch()
    first, other = masking(rate=0.5), masking(rate=0.5)
    a, b = (numpy(first(token_ids, padding_mask)) for _ in range(2))
    assert (a["token_ids"] != b["token_ids"]).any()
    for expected in (a, b):
        again = numpy(other(token_ids, padding_mask))
        for name, tensor in expected.items():
            np.testing.assert_array_equal(again[name], tensor)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_predictions": 7, "continuation_token_ids": [50, 51], "rate": 0.25},
    ],
)
@pytest.mark.compiled
def test_it_is_saved_and_compiled_in_any_precision(options, check_masking):
    layer = masking(**options, dtype="mixed_float16")
    token_ids, padding_mask = batch()
    given = {"token_ids": token_ids, "padding_mask": padding_mask}
    # XLA has its own random numbers, so only the outputs' consistency is checked.
    compiled = check_masking(layer, given)
    at = compiled.get("masked_positions", np.arange(T)[None])
    chosen = compiled["sample_weight"] == 1
    tokens = np.where(chosen, np.take_along_axis(token_ids, at, 1), 0)
    np.testing.assert_array_equal(compiled["labels"], tokens)
    assert (chosen.sum(1) > 0).all()


def dataset(rows=23, size=5):
    token_ids, padding_mask = batch(rows)
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    return sliced(inputs).batch(size)


def drawn(batches):
    return [[np.asarray(x) for x in tf.nest.flatten(batch)] for batch in batches]


def same(one, other):
    return all(
        (a == b).all()
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_a_pipeline_differs_by_epoch_and_repeats_by_run():
    train = mask_batches(dataset(), masking(rate=0.4), seed=7)
    assert int(train.cardinality()) == 5
    epochs = [drawn(train) for _ in range(2)]
    assert not same(*epochs)
    again = mask_batches(dataset(), masking(rate=0.4), seed=7)
    for epoch in epochs:
        assert same(epoch, drawn(again))
    assert not same(
        epochs[0], drawn(mask_batches(dataset(), masking(rate=0.4), seed=8))
    )
    still = mask_batches(dataset(), masking(), seed=7, same_each_epoch=True)
    assert same(drawn(still), drawn(still))
    # Batches of equal tokens are masked differently.
    inputs = {"token_ids": np.full((2 * B, T), 50, "int32")}
    repeated = sliced(inputs).batch(B)
    first, second = mask_batches(repeated, masking(rate=0.4), seed=7)
    assert (first[2].numpy() != second[2].numpy()).any()


def test_in_a_pipeline_who_is_selected_does_not_decide_who_is_masked():
    rows = np.random.default_rng(3).integers(5, V, (200, 37)).astype("int32")
    dataset = mask_batches(whole({"token_ids": rows}), masking(), seed=1)
    inputs, _, weights = next(iter(dataset.as_numpy_iterator()))
    selected = weights > 0
    assert selected.sum() == 200 * round(0.15 * 37)
    assert 0.75 < (inputs["token_ids"] == MASK)[selected].mean() < 0.85
    assert 0.07 < (inputs["token_ids"] == rows)[selected].mean() < 0.14
    np.testing.assert_array_equal(inputs["token_ids"][~selected], rows[~selected])


def test_a_pipeline_keeps_other_inputs_and_labels():
    token_ids, padding_mask = batch()
    inputs = {
        "token_ids": token_ids,
        "padding_mask": padding_mask,
        "word_starts": np.ones((B, T), "bool"),
        "segment_ids": np.ones((B, T), "int32"),
    }
    alone = whole(inputs)
    ((out, labels, weights),) = mask_batches(alone, masking(), seed=1)
    assert set(out) == {"token_ids", "padding_mask", "segment_ids"}
    np.testing.assert_array_equal(out["segment_ids"], inputs["segment_ids"])
    chosen = weights.numpy() == 1
    np.testing.assert_array_equal(labels, np.where(chosen, token_ids, 0))
    both = whole((inputs, np.arange(B)))
    layer = masking(max_predictions=3)
    ((out, labels, weights),) = mask_batches(both, layer, seed=1)
    assert out["masked_positions"].shape == labels["masked_lm"].shape == (B, 3)
    np.testing.assert_array_equal(labels["next_sentence"], np.arange(B))
    np.testing.assert_array_equal(weights["next_sentence"], np.ones(B))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"vocabulary_size": 0}, "`vocabulary_size` must be a positive integer"),
        ({"mask_token_id": V}, "`mask_token_id` must be in.*101, vocabulary_size=101"),
        ({"special_token_ids": [V]}, r"must be non-negative integers.*\(101,\)"),
        ({"special_token_ids": [-1]}, "`special_token_ids` must be non-negative"),
        ({"special_token_ids": [0.5]}, "`special_token_ids` must be non-negative"),
        ({"special_token_ids": range(V)}, "must leave tokens.*101 special tokens"),
        ({"rate": 0.0}, r"`rate` must be in \(0, 1\]. Received: rate=0.0"),
        ({"mask_rate": 0.95}, "together at most 1. Received: mask_rate=0.95"),
        ({"random_rate": -0.1}, "`mask_rate` and `random_rate` must be at least 0"),
        ({"continuation_token_ids": [5, V]}, "from 5 to 101, vocabulary_size=101"),
        ({"continuation_token_ids": [-1]}, "`continuation_token_ids` must be in"),
        ({"max_predictions": 0}, "`max_predictions` must be a positive integer"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MaskedLMMasking(**{"vocabulary_size": V, "mask_token_id": MASK, **options})


def test_invalid_inputs_are_refused(refuses_invalid_inputs):
    token_ids, padding_mask = batch()
    refuses_invalid_inputs(masking(), token_ids, padding_mask)
    with pytest.raises(ValueError, match="`word_starts` must have the shape"):
        masking()(token_ids, padding_mask, padding_mask[:, :-1])


def test_a_pipeline_needs_the_tensorflow_backend(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="needs Keras' TensorFlow.*backend='jax'"):
        mask_batches(dataset(), masking(), seed=1)
