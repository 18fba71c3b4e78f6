import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data.text.translation_lm import (
    language_probabilities,
    sample_languages,
    translation_lm_dataset,
)

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
    assert int(dataset(sources, targets, drop_remainder=True).cardinality()) == 1
    exact = dataset(sources, targets, batch_size=1, pad_to_multiple_of=1)
    assert [x["token_ids"].shape[1] for x in exact] == [5, 15, 23]


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


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="same length. Received: 1 sources, 2 targ"):
        dataset([[5]], [[6], [7]])
    with pytest.raises(ValueError, match="at least one pair.*max_length=5, 1 pairs"):
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
