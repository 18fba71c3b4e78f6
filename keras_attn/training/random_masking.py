"""What the masking objectives share: who may be chosen, and where numbers come from.

A masking layer says what numbers it needs, `draw(shape, numbers)`, and what it does
with them, `mask(...)`. The numbers come from a Keras seed generator where the layer is
called, and from TensorFlow's stateless generators in a `tf.data` pipeline.

Legend: B batch, T length, P predictions a row.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.data.epochs import Epoch, batch_seeds, fold_in
from keras_attn.kernels.runtime import require_tensorflow

# Behind every position there is, where positions are sorted.
_NOWHERE = np.iinfo("int32").max


class SeededNumbers:
    """Random numbers that follow from the state of a Keras seed generator.

    Args:
        seed_generator: A `keras.random.SeedGenerator`.
    """

    def __init__(self, seed_generator):
        self.seed_generator = seed_generator

    def uniform(self, shape):
        """Numbers in [0, 1), in float32."""
        return keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)

    def whole(self, shape, low, high):
        """Whole numbers in [low, high), in int32."""
        return keras.random.randint(
            shape, low, high, dtype="int32", seed=self.seed_generator
        )


class StatelessNumbers:
    """Random numbers that follow from a seed alone: the n-th draw from its n-th part.

    Args:
        seed: Two whole numbers, a tensor (2,).
    """

    def __init__(self, seed):
        self.seed = seed
        self.num_draws = 0

    def _next(self):
        self.num_draws += 1
        return fold_in(self.seed, self.num_draws)

    def uniform(self, shape):
        """Numbers in [0, 1), in float32."""
        return tf.random.stateless_uniform(shape, self._next())

    def whole(self, shape, low, high):
        """Whole numbers in [low, high), in int32."""
        return tf.random.stateless_uniform(shape, self._next(), low, high, tf.int32)


def mask_batches(
    dataset,
    masking,
    *,
    seed,
    epoch: Epoch = None,
    same_each_epoch=False,
    label_names=("masked_lm", "next_sentence"),
):
    """Masks every batch of a dataset for `model.fit`, anew each epoch.

    Each batch gets a seed of its own, from `seed`, its position in the dataset and the
    epoch, and the rest follows from that seed: the same masks in each run (given the
    same `keras.utils.set_random_seed`), whatever is done in parallel.

    Args:
        dataset: Of batches: a dictionary with `token_ids` int32 (B, T), perhaps
            `padding_mask` (B, T) and, for `MaskedLMMasking`, `word_starts` bool
            (B, T), and whatever else the model takes; or a tuple of such inputs and of
            the labels (B,) of another task, as from `next_sentence_dataset`.
        masking: A `MaskedLMMasking` or `PermutationLMMasking`; its own seed counts
            nothing here.
        seed: Of the masks, a whole number.
        epoch: Number of the epoch whose masks are drawn, or a `tf.Variable` that holds
            it, such as that of `BackupAndResume`. None counts the iterations.
        same_each_epoch: Whether masks are the same each epoch: for validation.
        label_names: What the two labels are called if there are those of another task.

    Returns:
        A dataset of as many batches `(inputs, labels, sample_weight)`: the inputs with
        what the masking changed or added, masks as int32, its labels and their
        weights; where the batches had labels, labels and weights are dictionaries, the
        other task's weights all 1.

    Raises:
        RuntimeError: on another backend of Keras than TensorFlow, whose operations
            can't run in `tf.data`.
    """
    require_tensorflow("`mask_batches`")

    def step(batch_seed, inputs, other_labels=None):
        inputs = dict(inputs)
        numbers = StatelessNumbers(batch_seed)
        known = {
            name: inputs.get(name)
            for name in ("token_ids", "padding_mask", *masking.optional_inputs)
        }
        draws = masking.draw(tf.shape(inputs["token_ids"]), numbers)
        masked = masking.mask(**known, **draws)
        for name in masking.optional_inputs:
            inputs.pop(name, None)
        labels, weights = masked.pop("labels"), masked.pop("sample_weight")
        if other_labels is not None:
            own, other = label_names
            labels = {own: labels, other: other_labels}
            ones = tf.ones(tf.shape(other_labels), tf.float32)
            weights = {own: weights, other: ones}
        # `tf.distribute` of Keras 3.15 adds up what it takes, and no booleans.
        inputs = {
            name: tf.cast(value, tf.int32) if value.dtype == tf.bool else value
            for name, value in {**inputs, **masked}.items()
        }
        return inputs, labels, weights

    def split(batch_seed, batch):
        return step(batch_seed, *(batch if isinstance(batch, tuple) else (batch,)))

    seeds = batch_seeds(seed, 0 if same_each_epoch else epoch)
    dataset = tf.data.Dataset.zip(seeds, dataset)
    dataset = dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def check_special_token_ids(special_token_ids, vocabulary_size=None):
    """The ids as a sorted tuple, each once.

    Raises:
        ValueError: for an id that is no whole number in [0, vocabulary_size).
    """
    ids = tuple(special_token_ids)
    for index in ids:
        whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not whole or index < 0 or index >= (vocabulary_size or _NOWHERE):
            raise ValueError(
                "`special_token_ids` must be whole numbers from zero on, below "
                "`vocabulary_size` where there is one. "
                f"Received: special_token_ids={ids!r}"
            )
    return tuple(sorted({int(index) for index in ids}))


def may_be_chosen(token_ids, padding_mask, special_token_ids):
    """Tokens that are real and not special, bool (B, T)."""
    chosen = ops.ones_like(token_ids, dtype="bool")
    if padding_mask is not None:
        chosen = ops.cast(padding_mask, "bool")
    for index in special_token_ids:
        chosen = ops.logical_and(chosen, ops.not_equal(token_ids, index))
    return chosen


def ranks(numbers):
    """The place of each number among those of its row, 0 for the smallest, (B, T)."""
    # Of two that are equal the one is first: the ranks are always all different.
    return ops.argsort(ops.argsort(numbers, axis=1), axis=1)


def positions_of(chosen, count):
    """Where the chosen tokens of a row are, in ascending order.

    Args:
        chosen: Bool (B, T).
        count: P.

    Returns:
        Positions, int32 (B, P), and whether there are so many, bool (B, P): the rest
        are at position 0.
    """
    places = ops.arange(ops.shape(chosen)[1], dtype="int32")
    places = ops.where(chosen, places, _NOWHERE)
    # A row may be shorter than P.
    places = ops.pad(places, [[0, 0], [0, count]], constant_values=_NOWHERE)
    places = ops.sort(places, axis=1)[:, :count]
    found = ops.less(places, _NOWHERE)
    return ops.where(found, places, 0), found
