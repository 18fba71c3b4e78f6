"""Permutation language modelling: predict tokens in any order, each from earlier ones.

Each row gets a random order, and its last tokens, the targets, are predicted; all other
tokens are visible to every token. So a target attends, on both sides of it, to the
non-targets and to the targets before it in the order, and never to itself.

Masks are True where attention is allowed, as everywhere in this library; in XLNet's own
code and in Hugging Face's `perm_mask`, 1 means the opposite.

Legend: B batch, T length, P targets per row, J spans per row, 1/K share of targets.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive, check_several
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers.blocks.xlnet_block import permutation_mask
from keras_attn.training.masking.random_masking import (
    RandomMasking,
    candidate_tokens,
    ranks,
    selected_positions,
)


@keras.saving.register_keras_serializable("keras_attn")
class PermutationLMMasking(RandomMasking):
    """Samples a prediction order and its targets, for XLNet's two streams.

    No token is replaced: the outputs only define what each token attends to. It samples
    whether or not in `training`. Use it before a model, in a pipeline (`mask_batches`)
    or a training loop.

    Special tokens are treated differently in other implementations. Here they are
    visible to all tokens and attend to no targets. In XLNet's own code they are part of
    the order. In Hugging Face's collator they are also part of the order, yet visible
    to all tokens, so that what they see of a target leaks to the targets before it.

    Args:
        special_token_ids: Tokens that are never targets: `<sep>`, `<cls>`, …
        one_in: K; about one in K tokens is a target.
        max_span_length: Spans have 1 … this many tokens, with equal probability.
        max_predictions: P; if there are more targets, a random subset is kept. None
            sets it to T / K, rounded down, plus `max_span_length`, which is always
            enough.
        seed: Seed of the random numbers.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        token_ids: (B, T).
        padding_mask: (B, T), True = real token. Padding is never a target, and never
            attended to.

    Returns:
        A dictionary of `permutation_mask` bool (B, T, T), True = token t may attend to
        token s (in the content stream every token also attends to itself);
        `target_mapping` float32 (B, P, T), 1 where target p is token t; `labels` int32
        (B, P), the targets' tokens; and `sample_weight` float32 (B, P). Targets are in
        the order of the text. In a row with fewer than P targets, unused entries of the
        mapping, labels and weights are 0.

    Raises:
        ValueError: If `one_in` is below 2, which would leave no visible tokens.

    Reference:
        Yang et al. 2019, "XLNet", sections 2.2 and 2.3 (partial prediction), and 3.1
        for K = 6 and spans of up to 5 tokens (arXiv:1906.08237).
    """

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
        super().__init__(
            special_token_ids=special_token_ids,
            max_predictions=max_predictions,
            seed=seed,
            **kwargs,
        )
        self.one_in = check_several("one_in", one_in)  # Of one in one none is visible.
        self.max_span_length = check_positive("max_span_length", max_span_length)

    def call(self, token_ids, padding_mask=None):
        """Samples by the layer's own random numbers; see the class."""
        return self._call(token_ids, padding_mask)

    @described_as(RandomMasking.sample)
    def sample(self, shape, random):
        """Draws the random numbers for a batch of shape (B, T): arguments of `mask`."""
        spans = (shape[0], -(-shape[1] // self.one_in))
        return {
            "span_lengths": random.integers(spans, 1, self.max_span_length + 1),
            "span_starts": random.uniform(spans),
            "order": random.uniform(shape),
        }

    def mask(self, token_ids, padding_mask, *, span_lengths, span_starts, order):
        """Selects targets and their order by given random numbers.

        Args:
            token_ids: As in a call.
            padding_mask: As in a call.
            span_lengths: As in `select_spans`.
            span_starts: `uniforms` of `select_spans`.
            order: (B, T): targets are predicted in ascending order of their numbers.

        Returns:
            As in a call.
        """
        length = ops.shape(token_ids)[1]
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids, dtype="bool")
        real = ops.cast(padding_mask, "bool")
        targets = select_spans(span_lengths, span_starts, real, self.one_in)
        candidates = candidate_tokens(token_ids, padding_mask, self.special_token_ids)
        targets = ops.logical_and(targets, candidates)
        rank = ranks(ops.where(targets, order, 2.0))
        count = self.max_predictions
        if count is None:
            count = length // self.one_in + self.max_span_length
        else:
            targets = ops.logical_and(targets, ops.less(rank, count))
        # Non-targets come first in the order, so that every target attends to them.
        earlier = permutation_mask(ops.where(targets, rank, -1))
        is_target = ops.expand_dims(targets, 1)  # (B, 1, T)
        known = ops.logical_and(ops.expand_dims(real, 1), ops.logical_not(is_target))
        positions, found = selected_positions(targets, count)
        labels = ops.take_along_axis(token_ids, positions, axis=1)
        columns = ops.arange(length, dtype="int32")
        mapping = ops.equal(ops.expand_dims(positions, 2), columns)  # (B, P, T)
        mapping = ops.logical_and(mapping, ops.expand_dims(found, 2))
        return {
            "permutation_mask": ops.logical_or(
                known, ops.logical_and(is_target, earlier)
            ),
            "target_mapping": ops.cast(mapping, "float32"),
            "labels": ops.where(found, ops.cast(labels, "int32"), 0),
            "sample_weight": ops.cast(found, "float32"),
        }


def select_spans(span_lengths, uniforms, padding_mask, one_in):
    """Selects spans of tokens to predict, one in K tokens.

    The real tokens are divided into consecutive contexts of K·L tokens, where L is the
    length of the context's span. The span starts at a random token such that it ends
    within its context. A row that ends within its last context may end before the span.

    Args:
        span_lengths: L, integers of at least 1, (B, J). Tokens after the last context
            are not selected, so J = T / K, rounded up, is enough.
        uniforms: Numbers in [0, 1), (B, J), that determine where spans start.
        padding_mask: (B, T), True = real token.
        one_in: K.

    Returns:
        Bool (B, T).
    """
    real = ops.cast(padding_mask, "bool")
    index = ops.cumsum(ops.cast(real, "int32"), axis=1) - 1  # (B, T), of real tokens
    span_lengths = ops.cast(span_lengths, "int32")
    ends = ops.cumsum(span_lengths, axis=1) * one_in  # (B, J), of the contexts
    slack = span_lengths * (one_in - 1)
    shift = ops.floor(uniforms * ops.cast(slack + 1, "float32"))
    # The largest float below 1, times an integer, may round up to that integer.
    shift = ops.minimum(ops.cast(shift, "int32"), slack)
    starts = ops.expand_dims(ends - one_in * span_lengths + shift, 2)  # (B, J, 1)
    stops = starts + ops.expand_dims(span_lengths, 2)
    index = ops.expand_dims(index, 1)  # (B, 1, T)
    inside = ops.logical_and(
        ops.greater_equal(index, starts), ops.less(index, stops)
    )  # (B, J, T)
    return ops.logical_and(real, ops.any(inside, axis=1))
