import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data.text.translation_lm import (
    language_probabilities,
    sample_languages,
    translation_lm_dataset,
)
from keras_attn.training.masking.masked_lm import MaskedLMMasking
from keras_attn.training.masking.random_masking import mask_batches

END, PAD = 1, 2


def dataset(sources, targets, **options):
    given = {
        "source_language": 3,
        "target_language": 5,
        "end_token_id": END,
        "pad_token_id": PAD,
        "max_length": 23,
        "batch_size": 2,
        **options,
    }
    return translation_lm_dataset(sources, targets, **given)


def test_pairs_by_hand():
    batches = dataset([[11, 12, 13], [14]], [[21], [22, 23]])
    (inputs,) = batches.as_numpy_iterator()
    assert inputs["token_ids"].tolist() == [
        [END, 11, 12, 13, END, END, 21, END],
        [END, 14, END, END, 22, 23, END, PAD],
    ]
    assert inputs["position_ids"].tolist() == [
        [0, 1, 2, 3, 4, 0, 1, 2],
        [0, 1, 2, 0, 1, 2, 3, 0],
    ]
    assert inputs["language_ids"].tolist() == [
        [3, 3, 3, 3, 3, 5, 5, 5],
        [3, 3, 3, 5, 5, 5, 5, 5],
    ]
    assert inputs["padding_mask"].tolist() == [[True] * 8, [True] * 7 + [False]]
    dtypes = {name: array.dtype.name for name, array in inputs.items()}
    assert set(dtypes.values()) == {"int32"}


def test_lengths_are_rounded_up_and_long_pairs_dropped():
    sources = [[7] * n for n in (1, 5, 9, 10, 30)]
    targets = [[8] * n for n in (0, 6, 10, 10, 1)]
    batches = dataset(sources, targets, batch_size=1)
    # 5, 15, and 23, which is not rounded up above the maximum; 24 and 35 are too long.
    assert [x["token_ids"].shape for x in batches] == [(1, 8), (1, 16), (1, 23)]
    assert int(batches.cardinality()) == 3
    exact = dataset(sources, targets, batch_size=1, pad_to_multiple_of=1)
    assert [x["token_ids"].shape[1] for x in exact] == [5, 15, 23]


def test_the_order_differs_by_epoch_and_repeats_by_run():
    rows = [[n] for n in range(7, 30)]

    def epochs():
        batches = dataset(rows, rows, shuffle_seed=1, drop_remainder=True)
        assert int(batches.cardinality()) == 11
        return [[x["token_ids"].numpy().tolist() for x in batches] for _ in "ab"]

    one, other = epochs(), epochs()
    assert one == other and one[0] != one[1]


def test_small_languages_are_sampled_more_often():
    sizes = [900, 90, 10]
    shares = np.array(sizes) / 1000
    expected = shares**0.7 / (shares**0.7).sum()
    given = language_probabilities(sizes)
    np.testing.assert_allclose(given, expected, rtol=1e-12)
    assert given[0] < 0.9 and given[2] > 0.01
    np.testing.assert_allclose(language_probabilities(sizes, 1.0), shares)
    np.testing.assert_allclose(language_probabilities(sizes, 0.0), [1 / 3] * 3)


def test_languages_are_sampled_at_their_rates():
    languages = [
        tf.data.Dataset.from_tensors({"language": tf.fill([2], n)}) for n in range(3)
    ]
    sizes = [900, 90, 10]

    def sample(seed):
        batches = sample_languages(languages, sizes, seed=seed).take(1500)
        return [batch["language"].tolist() for batch in batches.as_numpy_iterator()]

    sampled = sample(0)
    assert all(a == b for a, b in sampled)
    found = np.bincount([a for a, _ in sampled], minlength=3)
    expected = 1500 * language_probabilities(sizes)
    # Chi-square, 2 degrees of freedom, 99.9 %.
    assert ((found - expected) ** 2 / expected).sum() < 13.8
    assert sampled == sample(0) != sample(1)


@pytest.mark.compiled
def test_a_model_learns_from_the_translation(learn):
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    # Word n is translated to word n + 20, at the same position.
    sources = rng.integers(5, 25, (64, 3))
    batches = dataset(
        sources.tolist(),
        (sources + 20).tolist(),
        max_length=10,
        batch_size=16,
        shuffle_seed=0,
    )
    masking = MaskedLMMasking(
        45, mask_token_id=4, special_token_ids=[0, END, PAD, 3], max_predictions=1
    )
    train = mask_batches(batches.repeat(20), masking, seed=1)
    names = {"padding_mask": "bool", "language_ids": "int32", "position_ids": "int32"}
    inputs = {
        name: keras.Input((10,), dtype=names.get(name, "int32"), name=name)
        for name in ("token_ids", *names)
    }
    inputs["masked_positions"] = keras.Input(
        (1,), dtype="int32", name="masked_positions"
    )
    # The sum of all tokens with the same position id in either language.
    one_hot = keras.ops.one_hot(inputs["position_ids"], 10)
    one_hot *= keras.ops.cast(inputs["padding_mask"], "float32")[..., None]
    words = keras.layers.Embedding(45, 16)(inputs["token_ids"])
    by_position = keras.ops.matmul(keras.ops.transpose(one_hot, (0, 2, 1)), words)
    mixed = keras.ops.matmul(one_hot, by_position)
    index = keras.ops.expand_dims(inputs["masked_positions"], -1)
    at = keras.ops.take_along_axis(mixed, index, axis=1)
    language = keras.layers.Embedding(7, 16)(inputs["language_ids"])
    at = at + keras.ops.take_along_axis(language, index, axis=1)
    hidden = keras.layers.Dense(32, activation="relu")(at)
    model = keras.Model(inputs, keras.layers.Dense(45)(hidden))
    history = learn(model, train, rate=0.02)
    # Without the translation, one in twenty.
    assert history["accuracy"][-1] > 0.8


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="same length. Received: 1 sources, 2 targ"):
        dataset([[5]], [[6], [7]])
    with pytest.raises(
        ValueError, match="must fit at least one pair.*max_length=5, 1 pairs"
    ):
        dataset([[5]], [[6]], max_length=5)
    for name in ("max_length", "batch_size", "pad_to_multiple_of"):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
            dataset([[5]], [[6]], **{name: 0})
    for sizes in ([], [5, 0]):
        with pytest.raises(ValueError, match="`sizes` must be one or more positive"):
            language_probabilities(sizes)
    with pytest.raises(ValueError, match=r"`exponent` must be in \[0, 1\].*=1.5"):
        language_probabilities([5], 1.5)
    with pytest.raises(ValueError, match="Received: 1 datasets, 2 sizes"):
        sample_languages([tf.data.Dataset.range(3)], [5, 6], seed=0)
