from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.training.masking.permutation_lm import (
    PermutationLMMasking,
    select_spans,
)
from keras_attn.training.masking.random_masking import SeededRandom, mask_batches

B, T = 3, 37
SPECIAL = [1, 2]


def sliced(inputs: Any):
    return tf.data.Dataset.from_tensor_slices(inputs)


def batch(rows=B, length=T, seed=0):
    """Rows `padding tokens [1] [2]`, as in XLNet."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(5, 101, (rows, length)).astype("int32")
    token_ids[:, -2:] = SPECIAL
    padding_mask = np.ones((rows, length), "bool")
    padding_mask[0, :11] = False
    return token_ids, padding_mask


def numpy(outputs):
    return {name: np.asarray(tensor) for name, tensor in outputs.items()}


def masking(**options):
    return PermutationLMMasking(special_token_ids=SPECIAL, seed=5, **options)


def targets_of(out):
    """Which tokens are targets by the mapping, bool (B, T)."""
    return out["target_mapping"].sum(axis=1) == 1


def test_spans_by_hand():
    # K = 2: contexts of 4, 2 and 6 tokens.
    lengths = np.array([[2, 1, 3]])
    padding_mask = np.ones((1, 12), "bool")

    def spans(uniforms, mask=padding_mask):
        chosen = select_spans(lengths, np.array([uniforms], "float32"), mask, 2)
        return np.flatnonzero(np.asarray(chosen)[0]).tolist()

    assert spans([0, 0, 0]) == [0, 1, 4, 6, 7, 8]
    last = np.nextafter(np.float32(1), np.float32(0))
    assert spans([last] * 3) == [2, 3, 5, 9, 10, 11]
    assert spans([0.34, 0.5, 0.5]) == [1, 2, 5, 8, 9, 10]
    # Padding is skipped; the last context is truncated.
    padding_mask = np.array([[False] * 3 + [True, False] + [True] * 7])
    assert spans([0.34, 0.5, 0.3], padding_mask) == [5, 6, 9, 11]


def test_masking_by_hand():
    token_ids = np.array([[11, 12, 13, 1, 14, 15, 0]])
    padding_mask = np.array([[True] * 6 + [False]])
    out = numpy(
        masking(one_in=2).mask(
            token_ids,
            padding_mask,
            # Contexts 0-3 and 4-7 with the spans 2-3 and 4-5, but 3 is special.
            span_lengths=np.array([[2, 2, 1, 1]]),
            span_starts=np.array([[0.9, 0.0, 0.0, 0.0]], "float32"),
            order=np.array([[0.0, 0.0, 0.5, 0.0, 0.7, 0.1, 0.0]], "float32"),
        )
    )
    # In the order 5, 2, 4. Rows attend to columns.
    assert out["permutation_mask"].astype(int)[0].tolist() == [
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
    ]
    assert out["target_mapping"].shape == (1, 7 // 2 + 5, 7)
    assert out["target_mapping"][0].argmax(1).tolist() == [2, 4, 5, 0, 0, 0, 0, 0]
    assert out["labels"].tolist() == [[13, 14, 15, 0, 0, 0, 0, 0]]
    assert out["sample_weight"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
    assert out["target_mapping"].sum(2).tolist() == out["sample_weight"].tolist()
    assert out["permutation_mask"].dtype == "bool"
    assert out["target_mapping"].dtype == out["sample_weight"].dtype == "float32"


@pytest.mark.parametrize("options", [{}, {"one_in": 2}, {"max_predictions": 3}])
def test_later_targets_do_not_leak(options):
    token_ids, padding_mask = batch()
    out = numpy(masking(**options)(token_ids, padding_mask))
    targets, seen = targets_of(out), out["permutation_mask"]
    assert not (targets & (~padding_mask | np.isin(token_ids, SPECIAL))).any()
    for row in range(B):
        mask, is_target = seen[row], targets[row]
        known = padding_mask[row] & ~is_target
        # All tokens attend to non-targets, and non-targets to nothing else.
        assert mask[:, known].all() and not mask[:, ~padding_mask[row]].any()
        assert not mask[np.ix_(~is_target, is_target)].any()
        # The targets are in one order: each attends to another number of them.
        among = mask[np.ix_(is_target, is_target)]
        assert sorted(among.sum(1)) == list(range(is_target.sum()))
        assert not among.diagonal().any()
        order = among.sum(1)
        np.testing.assert_array_equal(among, order[:, None] > order[None])
        # Tokens that reach a target's prediction through any number of layers.
        content = mask | np.eye(T, dtype=bool)
        reaches = np.linalg.matrix_power(content.astype(int), 5) > 0
        for t in np.flatnonzero(is_target):
            sources = reaches[mask[t]].any(0)
            assert not (sources & is_target & ~mask[t]).any()


@pytest.mark.parametrize("count", [None, 2, 53])
def test_labels_are_at_the_targets(count):
    token_ids, padding_mask = batch()
    out = numpy(masking(one_in=3, max_predictions=count)(token_ids, padding_mask))
    width = T // 3 + 5 if count is None else count
    assert out["target_mapping"].shape == (B, width, T)
    tokens = (out["target_mapping"] * token_ids[:, None]).sum(-1)
    np.testing.assert_array_equal(tokens, out["labels"])
    np.testing.assert_array_equal(out["target_mapping"].sum(-1), out["sample_weight"])
    positions = out["target_mapping"].argmax(-1)
    for row in range(B):
        real = out["sample_weight"][row] == 1
        assert real.any() and (np.diff(positions[row, real]) > 0).all()


def test_surplus_targets_are_dropped_at_random():
    token_ids = np.full((200, 60), 50)
    out = numpy(masking(one_in=3, max_predictions=5)(token_ids))
    assert (out["sample_weight"] == 1).all()
    # Equally many in both halves.
    first_half = targets_of(out)[:, :30].sum()
    assert abs(first_half - 500) < 4 * np.sqrt(1000 * 0.25)


def test_one_in_six_in_spans_of_one_to_five():
    rows, length = 200, 600
    layer = masking()
    out = numpy(layer(np.full((rows, length), 50)))
    targets = targets_of(out)
    share = targets[:, :540].mean()  # The last context is truncated.
    assert abs(share - 1 / 6) < 0.003
    # Lengths are uniformly distributed: chi-square, 4 degrees of freedom. Neighbouring
    # spans may touch, so the samples themselves are tested.
    sampled = layer.sample((rows, length), SeededRandom(layer.seed_generator))
    found = np.bincount(np.asarray(sampled["span_lengths"]).ravel(), minlength=7)
    assert not found[0] and not found[6]
    mean = found[1:6].mean()
    assert ((found[1:6] - mean) ** 2 / mean).sum() < 18.5  # 99.9 %.
    assert sampled["span_lengths"].shape == (rows, 100)


def test_the_default_max_predictions_is_always_enough():
    # The longest spans, in a row that ends right after one.
    length = 6 * 5 + 5
    layer = masking()
    out = numpy(
        layer.mask(
            np.full((1, length), 50),
            None,
            span_lengths=np.full((1, 6), 5),
            span_starts=np.zeros((1, 6), "float32"),
            order=np.random.default_rng(0).random((1, length)).astype("float32"),
        )
    )
    assert out["sample_weight"].sum() == 10 == targets_of(out).sum()
    assert out["labels"].shape == (1, length // 6 + 5)


def test_orders_are_uniformly_distributed():
    # Three targets of four tokens, in 6 orders: chi-square, 5 degrees of freedom.
    rows = 1200
    numbers = np.random.default_rng(2).random((rows, 4)).astype("float32")
    out = numpy(
        masking(one_in=2).mask(
            np.full((rows, 4), 50),
            None,
            span_lengths=np.full((rows, 2), 3),
            span_starts=np.zeros((rows, 2), "float32"),
            order=numbers,
        )
    )
    order = out["permutation_mask"][:, :3, :3].sum(-1)
    np.testing.assert_array_equal(order, numbers[:, :3].argsort(1).argsort(1))
    _, found = np.unique(order, axis=0, return_counts=True)
    assert len(found) == 6 and ((found - 200.0) ** 2 / 200).sum() < 20.5


def test_it_is_saved_and_compiled(check_masking):
    layer = masking(one_in=3, max_span_length=2, max_predictions=7)
    given = dict(zip(("token_ids", "padding_mask"), batch(), strict=True))
    # XLA has its own random numbers, so only the outputs' consistency is checked.
    compiled = check_masking(layer, given)
    tokens = (compiled["target_mapping"] * given["token_ids"][:, None]).sum(-1)
    np.testing.assert_array_equal(tokens, compiled["labels"])


def test_a_pipeline_differs_by_epoch_and_repeats_by_run():
    token_ids, padding_mask = batch(11)
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    inputs["segment_ids"] = np.zeros_like(token_ids)

    def run():
        slices = sliced(inputs)
        batches = mask_batches(slices.batch(4), masking(), seed=3)
        assert int(batches.cardinality()) == 3
        return [[x["permutation_mask"].numpy() for x, _, _ in batches] for _ in "ab"]

    one, other = run(), run()
    for a, b in zip(one, other, strict=True):
        assert all((x == y).all() for x, y in zip(a, b, strict=True))
    assert (one[0][0] != one[1][0]).any()
    slices = sliced(inputs).batch(11)
    ((out, labels, weights),) = mask_batches(slices, masking(), seed=3)
    assert set(out) == {*inputs, "permutation_mask", "target_mapping"}
    np.testing.assert_array_equal(out["token_ids"], token_ids)
    assert labels.shape == weights.shape == (11, T // 6 + 5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"special_token_ids": [-2]}, r"must be non-negative integers.*\(-2,\)"),
        ({"one_in": 1}, "`one_in` must be at least 2.*one_in=1"),
        ({"one_in": 0}, "`one_in` must be a positive integer"),
        ({"max_span_length": 0}, "`max_span_length` must be a positive integer"),
        ({"max_predictions": 0}, "`max_predictions` must be a positive integer"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PermutationLMMasking(**options)


def test_invalid_inputs_are_refused(refuses_invalid_inputs):
    refuses_invalid_inputs(masking(), *batch())
