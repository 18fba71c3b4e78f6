"""Permutation language modelling: predict tokens in any order, from those before.

A row's tokens get a random order, of which the last few, the targets, are predicted;
all others are known to every token. So a target sees, from both its sides, the tokens
that are no targets and the targets that come before it in the order, and never itself.

Masks are True where a token may be seen, as everywhere in this library; XLNet's own
code and Hugging Face's `perm_mask` have 1 where it may not.

Legend: B batch, T length, P targets, J spans, K a target in so many tokens.
"""

import keras
from keras import ops

from keras_attn.checks import check_matches, check_positive, check_rank
from keras_attn.layers.xlnet_block import permutation_mask
from keras_attn.training.random_masking import (
    SeededNumbers,
    check_special_token_ids,
    may_be_chosen,
    positions_of,
    ranks,
)


def choose_spans(span_lengths, uniforms, padding_mask, one_in):
    """Which tokens are in the spans to predict: one in K, in runs of a few.

    Real tokens are cut into contexts of K·L tokens, one behind the other, L the length
    of the context's span, which begins anywhere in it where it ends in it too. A row
    that ends within its last context may end before the span.

    Args:
        span_lengths: L, whole numbers from 1 on, (B, J); what lies behind the last
            context is not chosen, so J = T / K, rounded up, is enough.
        uniforms: Numbers in [0, 1), (B, J), that say where spans begin.
        padding_mask: (B, T), True = real token.
        one_in: K.

    Returns:
        Bool (B, T).
    """
    real = ops.cast(padding_mask, "bool")
    place = ops.cumsum(ops.cast(real, "int32"), axis=1) - 1  # (B, T), among the real
    span_lengths = ops.cast(span_lengths, "int32")
    ends = ops.cumsum(span_lengths, axis=1) * one_in  # (B, J), of the contexts
    room = span_lengths * (one_in - 1)
    shift = ops.floor(uniforms * ops.cast(room + 1, "float32"))
    # The largest float below 1, times a number, can be that number.
    shift = ops.minimum(ops.cast(shift, "int32"), room)
    starts = ops.expand_dims(ends - one_in * span_lengths + shift, 2)  # (B, J, 1)
    stops = starts + ops.expand_dims(span_lengths, 2)
    place = ops.expand_dims(place, 1)
    inside = ops.logical_and(
        ops.greater_equal(place, starts), ops.less(place, stops)
    )  # (B, J, T)
    return ops.logical_and(real, ops.any(inside, axis=1))


@keras.saving.register_keras_serializable("keras_attn")
class PermutationLMMasking(keras.layers.Layer):
    """Draws an order of prediction and its targets, for XLNet's two streams.

    No token is replaced: who may see it is all that is decided. It draws whether or
    not in `training`, and belongs in front of a model, in a pipeline (`mask_batches`)
    or a training loop.

    Other than in XLNet's own code, special tokens are seen by all tokens and see no
    targets; there they have a turn in the order. In Hugging Face's collator they have
    a turn but are seen by all, so that what they saw of a target gets to targets that
    come before it.

    Args:
        special_token_ids: Never targets: `<sep>`, `<cls>`, …
        one_in: K; about one in K tokens is a target.
        max_span_length: Spans are 1 … this many tokens long, each as likely.
        max_predictions: P; of more targets than that some, chosen at random, are none.
            None = T / K, rounded down, and `max_span_length`: there can't be more.
        seed: Of the random numbers.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        token_ids: (B, T).
        padding_mask: (B, T), True = real token. Padding is never a target, nor seen.

    Returns:
        A dictionary of `permutation_mask` bool (B, T, T), True = token t may see token
        s (in the content stream every token sees itself besides); `target_mapping`
        float32 (B, P, T), 1 where target p is token t; `labels` int32 (B, P), the
        targets' tokens; and `sample_weight` float32 (B, P). Targets are in the order
        of the text; where there are fewer than P, rows of the mapping, labels and
        weights are 0.

    Raises:
        ValueError: for a K below 2, which would leave nothing to be seen.

    Reference:
        Yang et al. 2019, "XLNet", sections 2.2 and 2.3 (partial prediction), and 3.1
        for K = 6 and spans of up to 5 tokens (arXiv:1906.08237).
    """

    optional_inputs = ()

    def __init__(
        self,
        *,
        special_token_ids=(),
        one_in=6,
        max_span_length=5,
        max_predictions=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.special_token_ids = check_special_token_ids(special_token_ids)
        self.one_in = check_positive("one_in", one_in)
        if one_in < 2:
            raise ValueError(
                "`one_in` must be at least 2: of one token in one there is nothing "
                f"left to predict it from. Received: one_in={one_in}"
            )
        self.max_span_length = check_positive("max_span_length", max_span_length)
        if max_predictions is not None:
            check_positive("max_predictions", max_predictions)
        self.max_predictions = max_predictions
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def draw(self, shape, numbers):
        """The random numbers for a batch of a shape: arguments of `mask`."""
        spans = (shape[0], -(-shape[1] // self.one_in))
        return {
            "span_lengths": numbers.whole(spans, 1, self.max_span_length + 1),
            "span_starts": numbers.uniform(spans),
            "order": numbers.uniform(shape),
        }

    def mask(self, token_ids, padding_mask, *, span_lengths, span_starts, order):
        """Chooses by given numbers.

        Args:
            token_ids: As of a call.
            padding_mask: As of a call.
            span_lengths: See `choose_spans`.
            span_starts: See `choose_spans`, `uniforms`.
            order: (B, T): of the targets, that of the smallest number comes first.

        Returns:
            As of a call.
        """
        length = ops.shape(token_ids)[1]
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids, dtype="bool")
        real = ops.cast(padding_mask, "bool")
        targets = choose_spans(span_lengths, span_starts, real, self.one_in)
        allowed = may_be_chosen(token_ids, padding_mask, self.special_token_ids)
        targets = ops.logical_and(targets, allowed)
        turns = ranks(ops.where(targets, order, 2.0))
        count = self.max_predictions
        if count is None:
            count = length // self.one_in + self.max_span_length
        else:
            targets = ops.logical_and(targets, ops.less(turns, count))
        # All before the first turn, so that every target may see them.
        seen = permutation_mask(ops.where(targets, turns, -1))
        hidden = ops.expand_dims(targets, 1)  # (B, 1, T)
        known = ops.logical_and(ops.expand_dims(real, 1), ops.logical_not(hidden))
        positions, found = positions_of(targets, count)
        labels = ops.take_along_axis(token_ids, positions, axis=1)
        places = ops.arange(length, dtype="int32")
        mapping = ops.equal(ops.expand_dims(positions, 2), places)  # (B, P, T)
        mapping = ops.logical_and(mapping, ops.expand_dims(found, 2))
        return {
            "permutation_mask": ops.logical_or(known, ops.logical_and(hidden, seen)),
            "target_mapping": ops.cast(mapping, "float32"),
            "labels": ops.where(found, ops.cast(labels, "int32"), 0),
            "sample_weight": ops.cast(found, "float32"),
        }

    def call(self, token_ids, padding_mask=None):
        """Chooses by numbers of its own seed generator."""
        check_rank("token_ids", token_ids, 2, "(batch, length)")
        if padding_mask is not None:
            check_rank("padding_mask", padding_mask, 2, "(batch, length)")
            check_matches(
                "padding_mask", padding_mask.shape, token_ids.shape, "(batch, length)"
            )
        numbers = SeededNumbers(self.seed_generator)
        draws = self.draw(ops.shape(token_ids), numbers)
        return self.mask(token_ids, padding_mask, **draws)

    def get_config(self):
        """What the constructor takes."""
        return {
            **super().get_config(),
            "special_token_ids": list(self.special_token_ids),
            "one_in": self.one_in,
            "max_span_length": self.max_span_length,
            "max_predictions": self.max_predictions,
            "seed": self.seed,
        }
