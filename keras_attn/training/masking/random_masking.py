"""Base of the masking objectives: their layer, datasets and random numbers.

Legend: B batch, T length, P predictions per row.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.checks.arguments import (
    check_matches,
    check_positive,
    check_rank,
    is_whole,
)
from keras_attn.data.pipelines.epochs import Epoch, StatelessRandom, batch_seeds
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.layers.base import BaseLayer

# After every real position when positions are sorted.
_NO_POSITION = np.iinfo("int32").max


class RandomMasking(BaseLayer):
    """Base of the layers that select tokens at random for a model to predict.

    A subclass defines which random numbers a batch needs, `sample(shape, random)`, and
    what to do with them, `mask(token_ids, padding_mask, **numbers)`. The numbers come
    from a Keras seed generator when the layer is called (`SeededRandom`), and from
    TensorFlow's stateless generators in a `tf.data` pipeline (`StatelessRandom`).

    Args:
        special_token_ids: Tokens that are never predicted.
        max_predictions: Maximum number of predictions per row, or None.
        seed: Seed of the random numbers drawn in calls.
        **kwargs: Arguments of a Keras layer.
    """

    # Names of further arguments of `mask`, which a dataset may have.
    optional_inputs: tuple[str, ...] = ()

    def __init__(self, *, special_token_ids, max_predictions, seed, **kwargs):
        super().__init__(**kwargs)
        self.special_token_ids = check_special_token_ids(special_token_ids)
        if max_predictions is not None:
            check_positive("max_predictions", max_predictions)
        self.max_predictions = max_predictions
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def sample(self, shape, random):
        """Draws the random numbers for a batch, a dictionary.

        Args:
            shape: (B, T).
            random: Generator with `uniform(shape)` and `integers(shape, low, high)`.
        """
        raise NotImplementedError

    def mask(self, token_ids, padding_mask, *optional, **numbers):
        """Masks a batch by given random numbers."""
        raise NotImplementedError

    def _call(self, token_ids, padding_mask, **optional):
        """Checks the arguments of a call, and masks by the layer's own numbers."""
        axes = "(batch, length)"
        check_rank("token_ids", token_ids, 2, axes)
        for name, tensor in {"padding_mask": padding_mask, **optional}.items():
            if tensor is not None:
                check_rank(name, tensor, 2, axes)
                check_matches(name, tensor.shape, token_ids.shape, axes)
        numbers = self.sample(ops.shape(token_ids), SeededRandom(self.seed_generator))
        return self.mask(token_ids, padding_mask, **optional, **numbers)


def mask_batches(
    dataset,
    masking,
    *,
    seed,
    epoch: Epoch = None,
    same_each_epoch=False,
    label_names=("masked_lm", "next_sentence"),
):
    """Masks every batch of a dataset for `model.fit`, differently in each epoch.

    The masks of a batch depend only on `seed`, the epoch and the position of the batch
    in the dataset. So every run draws the same masks (given the same
    `keras.utils.set_random_seed`), however batches are processed in parallel.

    Args:
        dataset: Batches: a dictionary with `token_ids` int32 (B, T), optionally
            `padding_mask` (B, T), for `MaskedLMMasking` optionally `word_starts` bool
            (B, T), and other inputs of the model; or a tuple of such inputs and the
            labels (B,) of another task, as from `next_sentence_dataset`.
        masking: A `MaskedLMMasking` or `PermutationLMMasking`; its own seed is not
            used.
        seed: Seed of the masks, an integer.
        epoch: Epoch whose masks are drawn, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.
        same_each_epoch: Whether every epoch has the same masks, as for validation.
        label_names: Names of the labels of both tasks, if there are two.

    Returns:
        A dataset of the same number of batches `(inputs, labels, sample_weight)`: the
        masked inputs with the entries that the masking adds, masks as int32; its
        labels; and their weights. With a second task, labels and weights are
        dictionaries, and the weights of the second task are 1.

    Raises:
        RuntimeError: If the Keras backend is not TensorFlow: the operations of other
            backends cannot run in `tf.data`.
    """
    require_tensorflow("`mask_batches`")

    def mask_batch(batch_seed, inputs, other_labels=None):
        inputs = dict(inputs)
        given = {name: inputs.get(name) for name in ("token_ids", "padding_mask")}
        given |= {name: inputs.pop(name, None) for name in masking.optional_inputs}
        numbers = masking.sample(
            tf.shape(inputs["token_ids"]), StatelessRandom(batch_seed)
        )
        masked = masking.mask(**given, **numbers)
        labels, weights = masked.pop("labels"), masked.pop("sample_weight")
        if other_labels is not None:
            own, other = label_names
            labels = {own: labels, other: other_labels}
            ones = tf.ones(tf.shape(other_labels), tf.float32)
            weights = {own: weights, other: ones}
        return without_booleans({**inputs, **masked}), labels, weights

    def mask_element(batch_seed, batch):
        parts = batch if isinstance(batch, tuple) else (batch,)
        return mask_batch(batch_seed, *parts)

    return map_with_seeds(dataset, mask_element, seed, 0 if same_each_epoch else epoch)


def without_booleans(inputs):
    """Inputs of a model with masks as int32.

    Under `tf.distribute`, Keras 3.15 sums inputs, and booleans cannot be summed.

    Args:
        inputs: Tensors by name.
    """
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        for name, value in inputs.items()
    }


def map_with_seeds(dataset, function, seed, epoch: Epoch):
    """Applies a function of the seed of a batch and the batch.

    Args:
        dataset: Batches.
        function: The function.
        seed: Seed of all random numbers, an integer.
        epoch: See `epochs.batch_seeds`.
    """
    dataset = tf.data.Dataset.zip(batch_seeds(seed, epoch), dataset)
    dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


class SeededRandom:
    """Random numbers from a Keras seed generator.

    Args:
        seed_generator: A `keras.random.SeedGenerator`.
    """

    def __init__(self, seed_generator):
        self.seed_generator = seed_generator

    def uniform(self, shape):
        """Samples float32 numbers in [0, 1)."""
        return keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)

    def integers(self, shape, low, high):
        """Samples int32 numbers in [low, high)."""
        return keras.random.randint(
            shape, low, high, dtype="int32", seed=self.seed_generator
        )


def check_special_token_ids(special_token_ids, vocabulary_size=None):
    """Returns the ids as a sorted list without duplicates.

    Raises:
        ValueError: If an id is not an integer in [0, vocabulary_size).
    """
    ids = tuple(special_token_ids)
    for index in ids:
        if not is_whole(index) or not 0 <= index < (vocabulary_size or _NO_POSITION):
            raise ValueError(
                "`special_token_ids` must be non-negative integers, below "
                f"`vocabulary_size` if it is given. Received: special_token_ids={ids!r}"
            )
    return sorted({int(index) for index in ids})


def candidate_tokens(token_ids, padding_mask, excluded_token_ids):
    """Tokens that may be selected, bool (B, T): real ones that are not excluded."""
    candidates = ops.ones_like(token_ids, dtype="bool")
    if padding_mask is not None:
        candidates = ops.cast(padding_mask, "bool")
    for index in excluded_token_ids:
        candidates = ops.logical_and(candidates, ops.not_equal(token_ids, index))
    return candidates


def ranks(numbers):
    """Rank of each number in its row, 0 for the smallest, (B, T)."""
    # Among equal numbers the first has the lower rank, so ranks are always distinct.
    return ops.argsort(ops.argsort(numbers, axis=1), axis=1)


def selected_positions(selected, count):
    """Positions of the selected tokens of each row, in ascending order.

    Args:
        selected: Bool (B, T).
        count: P.

    Returns:
        Positions, int32 (B, P), and which of them are real, bool (B, P): a row with
        fewer selected tokens is padded with position 0.
    """
    positions = ops.arange(ops.shape(selected)[1], dtype="int32")
    positions = ops.where(selected, positions, _NO_POSITION)
    # A row may be shorter than P.
    positions = ops.pad(positions, [[0, 0], [0, count]], constant_values=_NO_POSITION)
    positions = ops.sort(positions, axis=1)[:, :count]
    real = ops.less(positions, _NO_POSITION)
    return ops.where(real, positions, 0), real
