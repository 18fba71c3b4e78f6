"""Masked language modelling: replace some tokens, and predict the originals.

Of the selected tokens 80 % are replaced by `[MASK]`, 10 % by a random token, and 10 %
are kept, so the model cannot tell which of its inputs are correct. "Dynamic" masking
selects anew each time a text is read, as RoBERTa does; BERT selected once, beforehand.

Legend: B batch, T length, P predictions per row, V vocabulary.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.docstrings.descriptions import described_as
from keras_attn.training.masking.random_masking import (
    RandomMasking,
    candidate_tokens,
    check_special_token_ids,
    ranks,
    selected_positions,
)


@keras.saving.register_keras_serializable("keras_attn")
class MaskedLMMasking(RandomMasking):
    """Masks tokens at random, and returns the labels to predict.

    It masks whether or not in `training`, since validation needs masked tokens too. Use
    it before a model, not inside it: in a pipeline (`mask_batches`) or a training loop.

    Args:
        vocabulary_size: V.
        mask_token_id: Id of `[MASK]`.
        special_token_ids: Tokens that are never selected and never used as a random
            replacement: `[CLS]`, `[SEP]`, `[PAD]`, … `[MASK]` is always one of them.
        rate: Share of the tokens to predict, in (0, 1]; see `select_tokens`.
        mask_rate: Share of the selected tokens that are masked.
        random_rate: Share of the selected tokens that are replaced by a token sampled
            uniformly from the vocabulary.
        continuation_token_ids: Tokens that continue a word (in BERT's vocabulary those
            that begin with `##`). If given, whole words are selected.
        max_predictions: P. None returns labels for all T positions.
        seed: Seed of the random numbers.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        token_ids: Integers in [0, V), (B, T).
        padding_mask: (B, T), True = real token. Padding is never selected.
        word_starts: (B, T), True = first token of a word: whole words are selected,
            regardless of `continuation_token_ids`.

    Returns:
        A dictionary of `token_ids` (B, T), the masked input; `labels` int32 (B, T), the
        original tokens where selected and 0 elsewhere; and `sample_weight` float32
        (B, T), 1 where selected and 0 elsewhere. With `max_predictions`, labels and
        weights are (B, P), and `masked_positions` int32 (B, P) are their positions in
        ascending order; unused entries have position 0 and weight 0.

    Raises:
        ValueError: If an id is outside the vocabulary, or a rate is out of range.

    Example:
        ```python
        import numpy as np
        from keras_attn import training

        masking = training.MaskedLMMasking(1000, mask_token_id=3, special_token_ids=[0])
        token_ids = np.random.randint(4, 1000, (2, 8))
        masked = masking(token_ids, np.ones((2, 8), bool))
        masked["sample_weight"]  # (2, 8), 1 at the tokens to predict.
        ```

    Reference:
        Devlin et al. 2019, "BERT", section 3.1 (arXiv:1810.04805); dynamic: Liu et
        al. 2019, "RoBERTa", section 4.1 (arXiv:1907.11692). Whole words: BERT's later
        "whole word masking" checkpoints, except that here every word has the same
        probability.
    """

    optional_inputs = ("word_starts",)

    def __init__(
        self,
        vocabulary_size,
        mask_token_id,
        *,
        special_token_ids=(),
        rate=0.15,
        mask_rate=0.8,
        random_rate=0.1,
        continuation_token_ids=None,
        max_predictions=None,
        seed=None,
        **kwargs,
    ):
        check_positive("vocabulary_size", vocabulary_size)
        _check_rates(rate, mask_rate, random_rate)
        super().__init__(
            special_token_ids=check_special_token_ids(
                special_token_ids, vocabulary_size
            ),
            max_predictions=max_predictions,
            seed=seed,
            **kwargs,
        )
        if not 0 <= mask_token_id < vocabulary_size:
            raise ValueError(
                "`mask_token_id` must be in the vocabulary. Received: "
                f"mask_token_id={mask_token_id!r}, vocabulary_size={vocabulary_size}"
            )
        self.vocabulary_size = vocabulary_size
        self.mask_token_id = mask_token_id
        self.rate = rate
        self.mask_rate = mask_rate
        self.random_rate = random_rate
        self.continuation_token_ids = None
        self._continues_word = None
        if continuation_token_ids is not None:
            ids = [int(index) for index in continuation_token_ids]
            self.continuation_token_ids = ids
            self._continues_word = _is_one_of(ids, vocabulary_size)
        self._excluded = tuple(sorted({mask_token_id, *self.special_token_ids}))
        self._random_tokens = np.setdiff1d(
            np.arange(vocabulary_size, dtype="int32"), self._excluded
        )
        if not len(self._random_tokens):
            raise ValueError(
                "`special_token_ids` must leave tokens to predict. Received: "
                f"{len(self._excluded)} special tokens, "
                f"vocabulary_size={vocabulary_size}"
            )

    def call(self, token_ids, padding_mask=None, word_starts=None):
        """Masks a batch by the layer's own random numbers; see the class."""
        return self._call(token_ids, padding_mask, word_starts=word_starts)

    @described_as(RandomMasking.sample)
    def sample(self, shape, random):
        """Draws the random numbers for a batch of shape (B, T): arguments of `mask`."""
        return {
            "selection": random.uniform(shape),
            "replacement": random.uniform(shape),
            "random_tokens": random.integers(shape, 0, len(self._random_tokens)),
        }

    def mask(
        self,
        token_ids,
        padding_mask,
        word_starts=None,
        *,
        selection,
        replacement,
        random_tokens,
    ):
        """Masks a batch by given random numbers.

        Args:
            token_ids: As in a call.
            padding_mask: As in a call.
            word_starts: As in a call.
            selection: `uniforms` of `select_tokens`.
            replacement: `uniforms` of `replace_tokens`.
            random_tokens: (B, T), indices of random tokens among those that are not
                special, in ascending order of their ids.

        Returns:
            As in a call.
        """
        candidates = candidate_tokens(token_ids, padding_mask, self._excluded)
        if word_starts is None and self._continues_word is not None:
            continues = ops.take(self._continues_word, token_ids, axis=0)
            word_starts = ops.logical_not(continues)
        selected = select_tokens(
            selection,
            candidates,
            self.rate,
            word_starts=word_starts,
            max_predictions=self.max_predictions,
        )
        masked = replace_tokens(
            token_ids,
            selected,
            replacement,
            ops.take(self._random_tokens, random_tokens, axis=0),
            mask_token_id=self.mask_token_id,
            mask_rate=self.mask_rate,
            random_rate=self.random_rate,
        )
        outputs, labels, real = {"token_ids": masked}, token_ids, selected
        if self.max_predictions is not None:
            positions, real = selected_positions(selected, self.max_predictions)
            outputs["masked_positions"] = positions
            labels = ops.take_along_axis(token_ids, positions, axis=1)
        outputs["labels"] = ops.where(real, ops.cast(labels, "int32"), 0)
        outputs["sample_weight"] = ops.cast(real, "float32")
        return outputs


def select_tokens(
    uniforms, candidates, rate, *, word_starts=None, max_predictions=None
):
    """Selects the tokens to predict: a fixed share of each row, at least one.

    Of a row's n candidates, `max(1, round(rate · n))` are selected, those with the
    smallest random numbers. As in BERT the number is fixed: selecting each token
    independently would leave short rows without any. With `word_starts`, n counts
    words and whole words are selected. Every word has the same probability, however
    long it is, so the expected share of the tokens is the same.

    Args:
        uniforms: Numbers in [0, 1), (B, T): the first for the row's first candidate
            (or word), the second for its second, and so on.
        candidates: Tokens that may be selected, bool (B, T).
        rate: Share to select, in (0, 1].
        word_starts: First tokens of words, bool (B, T). A candidate that follows a
            token that is not a candidate always starts a word.
        max_predictions: Maximum number of tokens to select per row. The first word in
            random order that does not fit is left out, as are all words after it.

    Returns:
        Bool (B, T).
    """
    candidates = ops.cast(candidates, "bool")
    starts = candidates
    if word_starts is not None:
        previous = ops.pad(candidates[:, :-1], [[0, 0], [1, 0]])
        word_starts = ops.cast(word_starts, "bool")
        starts = ops.logical_or(word_starts, ops.logical_not(previous))
        starts = ops.logical_and(candidates, starts)
    # From here on in words, which have one token each if `word_starts` is None.
    word = ops.cumsum(ops.cast(starts, "int32"), axis=1) - 1  # (B, T), of each token
    word = ops.maximum(word, 0)
    num_words = ops.sum(ops.cast(starts, "int32"), axis=1, keepdims=True)  # (B, 1)
    is_word = ops.less(ops.arange(ops.shape(candidates)[1], dtype="int32"), num_words)
    rank = ranks(ops.where(is_word, uniforms, 2.0))  # (B, T), of each word
    count = ops.round(ops.multiply(rate, ops.cast(num_words, "float32")))
    count = ops.maximum(ops.cast(count, rank.dtype), 1)
    selected = ops.less(rank, count)
    if max_predictions is not None:
        tokens = _cumulative_tokens(candidates, starts, rank)
        selected = ops.logical_and(selected, ops.less_equal(tokens, max_predictions))
    selected = ops.take_along_axis(ops.cast(selected, "int32"), word, axis=1)
    return ops.logical_and(candidates, ops.cast(selected, "bool"))


def _cumulative_tokens(candidates, starts, rank):
    """Number of tokens in each word and in all words of lower rank, (B, T)."""
    length = ops.shape(candidates)[1]
    first = ops.where(starts, ops.arange(length, dtype="int32"), length)
    first = ops.pad(ops.sort(first, axis=1), [[0, 0], [0, 1]], constant_values=0)
    is_last = ops.equal(ops.arange(length + 1, dtype="int32"), length)
    first = ops.where(is_last, length, first)  # (B, T + 1), first token of each word
    before = ops.cumsum(ops.cast(candidates, "int32"), axis=1)
    before = ops.pad(before, [[0, 0], [1, 0]])  # (B, T + 1), candidates before each
    before = ops.take_along_axis(before, first, axis=1)
    lengths = before[:, 1:] - before[:, :-1]  # (B, T)
    in_order = ops.take_along_axis(lengths, ops.argsort(rank, axis=1), axis=1)
    return ops.take_along_axis(ops.cumsum(in_order, axis=1), rank, axis=1)


def replace_tokens(
    token_ids,
    selected,
    uniforms,
    random_token_ids,
    *,
    mask_token_id,
    mask_rate=0.8,
    random_rate=0.1,
):
    """Replaces selected tokens, some by the mask token and some by random tokens.

    Args:
        token_ids: (B, T).
        selected: Bool (B, T).
        uniforms: Numbers in [0, 1), (B, T): below `mask_rate` a selected token is
            masked, from there to `mask_rate + random_rate` it is replaced by a random
            token, and above it is kept.
        random_token_ids: Random tokens, (B, T).
        mask_token_id: Id of the mask token.
        mask_rate: Share of the selected tokens that are masked.
        random_rate: Share of the selected tokens that are replaced by random ones.

    Returns:
        (B, T), in the dtype of `token_ids`.
    """
    masked = ops.less(uniforms, mask_rate)
    kept = ops.greater_equal(uniforms, mask_rate + random_rate)
    replacement = ops.where(masked, mask_token_id, random_token_ids)
    changed = ops.logical_and(selected, ops.logical_not(kept))
    return ops.where(changed, ops.cast(replacement, token_ids.dtype), token_ids)


def _check_rates(rate, mask_rate, random_rate):
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"`rate` must be in (0, 1]. Received: rate={rate!r}")
    if mask_rate < 0 or random_rate < 0 or mask_rate + random_rate > 1.0:
        raise ValueError(
            "`mask_rate` and `random_rate` must be at least 0, and together at most "
            f"1. Received: mask_rate={mask_rate!r}, random_rate={random_rate!r}"
        )


def _is_one_of(token_ids, vocabulary_size):
    """Lookup table over the vocabulary, bool (V,)."""
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if low < 0 or high >= vocabulary_size:
        raise ValueError(
            "`continuation_token_ids` must be in the vocabulary. Received: "
            f"from {low} to {high}, vocabulary_size={vocabulary_size}"
        )
    table = np.zeros(vocabulary_size, "bool")
    table[token_ids] = True
    return table
