"""Pre-training of a model of vision and language: batches for its three objectives.

Of the pairs of a batch some get the text of another pair (alignment); then words are
masked as in BERT, and regions by setting their features to zero. The model predicts the
words, the classes of the regions, and whether the text is of the image.

Legend: B batch, T words, R regions, F width of their features, C classes of the
detector.
"""

from typing import Literal

import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_fraction, check_share
from keras_attn.data.pipelines.epochs import Epoch, StatelessRandom
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.training.masking.masked_lm import MaskedLMMasking
from keras_attn.training.masking.random_masking import map_with_seeds, without_booleans

_TEXT = ("token_ids", "padding_mask", "segment_ids", "word_starts")
_NEEDED = (
    *("token_ids", "padding_mask"),
    *("region_features", "region_padding_mask", "class_distributions"),
)


def mask_pairs(
    dataset: tf.data.Dataset,
    masking: MaskedLMMasking,
    *,
    seed: int,
    epoch: Epoch = None,
    same_each_epoch: bool = False,
    region_rate: float = 0.15,
    region_mask_rate: float = 0.9,
    mismatch_rate: float = 0.5,
    masked_losses: Literal["all", "aligned"] = "all",
) -> tf.data.Dataset:
    """Prepares every batch for `build_vilbert_pretrainer`, anew in each epoch.

    What is masked and exchanged depends only on `seed`, the epoch and the position of
    the batch in the dataset, as in `mask_batches`.

    Args:
        dataset: Batches: a dictionary with `token_ids` int32 (B, T), `padding_mask`
            (B, T), `region_features` float (B, R, F), `region_padding_mask` (B, R) and
            `class_distributions` float (B, R, C), of each real region; optionally
            `word_starts` (B, T) of `masking`, and `index` (B,), the number of the
            image, so that a text of the same image counts as aligned; and other inputs
            of the model. Shuffle the pairs, so that a batch has others in each epoch.
        masking: Masks the words; without `max_predictions`. Its own seed is not used.
        seed: Seed of all random numbers, an integer.
        epoch: Epoch whose numbers are drawn, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        same_each_epoch: Whether every epoch has the same numbers, as for validation.
        region_rate: Probability that a region is predicted, in [0, 1).
        region_mask_rate: Probability that the features of such a region are set to
            zero, in [0, 1]; else they are kept. Its box is always kept.
        mismatch_rate: Probability that a pair gets the text of a different pair of its
            batch, in [0, 1). A batch of one pair keeps it.
        masked_losses: Whether words and regions are predicted in all pairs, as in the
            paper, or only in aligned ones, as in the authors' later code: what a text
            of another image says does not follow from this one.

    Returns:
        A dataset of the same number of batches `(inputs, labels, sample_weight)`, the
        last two dictionaries: `masked_lm` (B, T); `masked_regions`, labels (B, R, C)
        for `MaskedRegionLoss` and weights (B, R); and `alignment` (B,), 0 where the
        text is of the image, else 1.

    Raises:
        ValueError: If a rate is out of range, `masking` has `max_predictions`, or the
            batches lack a key.
        RuntimeError: If the Keras backend is not TensorFlow.

    Example:
        ```python
        import numpy as np
        from keras_attn import data, training

        pairs = {"token_ids": np.full((2, 6), 9), "padding_mask": np.ones((2, 6))}
        pairs["region_features"] = np.random.normal(size=(2, 3, 8))  # Of three regions.
        pairs["region_padding_mask"] = np.ones((2, 3))
        pairs["class_distributions"] = np.full((2, 3, 5), 0.2)
        batches = data.shuffled_dataset(pairs, seed=0).batch(2)
        train = training.mask_pairs(batches, training.MaskedLMMasking(1000, 3), seed=1)
        ```

    Reference:
        Lu et al. 2019, section 2.2, "Training Tasks and Objectives" (arXiv:1908.02265);
        `"aligned"`: Lu et al. 2020, "12-in-1" (arXiv:1912.02315).
    """
    require_tensorflow("`mask_pairs`")
    check_fraction("region_rate", region_rate)
    check_share("region_mask_rate", region_mask_rate)
    check_fraction("mismatch_rate", mismatch_rate)
    check_choice("masked_losses", masked_losses, ("all", "aligned"))
    if masking.max_predictions is not None:
        raise ValueError(
            "`masking` must have no `max_predictions`: ViLBERT predicts at all words. "
            f"Received: max_predictions={masking.max_predictions}"
        )
    spec = dataset.element_spec
    missing = [
        name for name in _NEEDED if not isinstance(spec, dict) or name not in spec
    ]
    if missing:
        raise ValueError(
            f"`dataset` must have dictionaries with {', '.join(_NEEDED)}. Received: "
            f"none of {', '.join(missing)}"
        )

    def mask_batch(batch_seed, batch):
        random, batch = StatelessRandom(batch_seed), dict(batch)
        count = tf.shape(batch["token_ids"])[0]
        texts, is_aligned = _exchange(count, batch.pop("index", None), random)
        text = {name: batch.pop(name) for name in _TEXT if name in batch}
        text = {name: tf.gather(value, texts) for name, value in text.items()}
        own = ("token_ids", "padding_mask", *masking.optional_inputs)
        numbers = masking.sample(tf.shape(text["token_ids"]), random)
        masked = masking.mask(**{name: text.get(name) for name in own}, **numbers)
        text.pop("word_starts", None)
        words, word_weights = masked.pop("labels"), masked.pop("sample_weight")

        real = tf.cast(batch["region_padding_mask"], tf.bool)
        is_chosen = (random.uniform(tf.shape(real)) < region_rate) & real
        is_masked = random.uniform(tf.shape(real)) < region_mask_rate
        is_zero = (is_chosen & is_masked)[..., None]
        features = batch["region_features"]
        batch["region_features"] = tf.where(is_zero, tf.zeros_like(features), features)
        region_weights = tf.cast(is_chosen, tf.float32)
        if masked_losses == "aligned":
            counts = tf.cast(is_aligned, tf.float32)[:, None]
            word_weights, region_weights = (
                word_weights * counts,
                region_weights * counts,
            )
        labels = {
            "masked_lm": words,
            "masked_regions": batch.pop("class_distributions"),
            "alignment": tf.cast(~is_aligned, tf.int32),
        }
        weights = {
            "masked_lm": word_weights,
            "masked_regions": region_weights,
            "alignment": tf.ones(count),
        }
        return without_booleans({**batch, **text, **masked}), labels, weights

    def _exchange(count, images, random):
        """For each pair the row that its text is from, and whether it is aligned."""
        rows = tf.range(count)
        others = random.uniform([count]) * tf.cast(count - 1, tf.float32)
        others = (rows + 1 + tf.cast(others, tf.int32)) % count
        is_exchanged = (random.uniform([count]) < mismatch_rate) & (count > 1)
        texts = tf.where(is_exchanged, others, rows)
        if images is not None:
            return texts, tf.gather(images, texts) == images
        return texts, texts == rows

    return map_with_seeds(dataset, mask_batch, seed, 0 if same_each_epoch else epoch)
