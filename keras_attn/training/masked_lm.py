"""Masked language modelling: hide some tokens, and ask which they were.

Of the tokens chosen, 80 % are replaced by `[MASK]`, 10 % by any other token, and 10 %
stay: the model can't know which of what it sees is right. "Dynamic" is masking that
chooses anew each time a text is seen, as RoBERTa does; BERT chose once, beforehand.

Legend: B batch, T length, P predictions a row, V vocabulary.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_matches, check_positive, check_rank
from keras_attn.training.random_masking import (
    SeededNumbers,
    check_special_token_ids,
    may_be_chosen,
    positions_of,
    ranks,
)


def choose_tokens(
    uniforms, candidates, rate, *, word_starts=None, max_predictions=None
):
    """Which tokens to predict: a fixed share of each row, at least one.

    `max(1, round(rate · n))` of a row's n candidates are chosen, those with the
    smallest numbers: so many in every row, as in BERT, where a coin for each token
    would leave short rows without any. With `word_starts` n counts words, and a chosen
    word is chosen as a whole; each word is as likely as any other, however long, so
    the expected share of the tokens is the same.

    Args:
        uniforms: Numbers in [0, 1), (B, T): the first for the row's first candidate
            (or word), the second for its second, and so on.
        candidates: Tokens that may be chosen, bool (B, T).
        rate: Share to choose, in (0, 1].
        word_starts: Tokens that begin a word, bool (B, T). What follows something
            that is no candidate begins one anyway.
        max_predictions: Most tokens to choose of a row; a word that doesn't fit in
            any more is left out, and so are the words behind it in the random order.

    Returns:
        Bool (B, T).
    """
    candidates = ops.cast(candidates, "bool")
    starts = candidates
    if word_starts is not None:
        before = ops.pad(candidates[:, :-1], [[0, 0], [1, 0]])
        word_starts = ops.cast(word_starts, "bool")
        starts = ops.logical_or(word_starts, ops.logical_not(before))
        starts = ops.logical_and(candidates, starts)
    # From here on words, of which each has one token where there are no word starts.
    word = ops.cumsum(ops.cast(starts, "int32"), axis=1) - 1  # (B, T), of each token
    word = ops.maximum(word, 0)
    num_words = ops.sum(ops.cast(starts, "int32"), axis=1, keepdims=True)  # (B, 1)
    is_word = ops.less(ops.arange(ops.shape(candidates)[1], dtype="int32"), num_words)
    rank = ranks(ops.where(is_word, uniforms, 2.0))  # (B, T), of each word
    wanted = ops.round(ops.multiply(rate, ops.cast(num_words, "float32")))
    wanted = ops.maximum(ops.cast(wanted, rank.dtype), 1)
    chosen = ops.less(rank, wanted)
    if max_predictions is not None:
        fits = ops.less_equal(_tokens_so_far(candidates, starts, rank), max_predictions)
        chosen = ops.logical_and(chosen, fits)
    chosen = ops.take_along_axis(ops.cast(chosen, "int32"), word, axis=1)
    return ops.logical_and(candidates, ops.cast(chosen, "bool"))


def _tokens_so_far(candidates, starts, rank):
    """Tokens of a word and of all words of a smaller rank, for each word, (B, T)."""
    length = ops.shape(candidates)[1]
    places = ops.where(starts, ops.arange(length, dtype="int32"), length)
    first = ops.pad(ops.sort(places, axis=1), [[0, 0], [0, 1]], constant_values=0)
    is_last = ops.equal(ops.arange(length + 1, dtype="int32"), length)
    first = ops.where(is_last, length, first)  # (B, T + 1): where each word begins
    before = ops.cumsum(ops.cast(candidates, "int32"), axis=1)
    before = ops.pad(before, [[0, 0], [1, 0]])  # (B, T + 1): candidates in front
    before = ops.take_along_axis(before, first, axis=1)
    lengths = before[:, 1:] - before[:, :-1]  # (B, T)
    in_order = ops.take_along_axis(lengths, ops.argsort(rank, axis=1), axis=1)
    return ops.take_along_axis(ops.cumsum(in_order, axis=1), rank, axis=1)


def corrupt_tokens(
    token_ids,
    chosen,
    uniforms,
    random_token_ids,
    *,
    mask_token_id,
    mask_rate=0.8,
    random_rate=0.1,
):
    """What the model sees: of the chosen tokens, some masked, some replaced.

    Args:
        token_ids: (B, T).
        chosen: Bool (B, T).
        uniforms: Numbers in [0, 1), (B, T): below `mask_rate` a chosen token is
            masked, from there up to `mask_rate + random_rate` it is replaced, and
            beyond it stays.
        random_token_ids: What it is replaced by, (B, T).
        mask_token_id: What it is masked by.
        mask_rate: Share of the chosen tokens that are masked.
        random_rate: Share of the chosen tokens that are replaced.

    Returns:
        (B, T), of the type of `token_ids`.
    """
    masked = ops.less(uniforms, mask_rate)
    kept = ops.greater_equal(uniforms, mask_rate + random_rate)
    seen = ops.where(masked, mask_token_id, random_token_ids)
    changed = ops.logical_and(chosen, ops.logical_not(kept))
    return ops.where(changed, ops.cast(seen, token_ids.dtype), token_ids)


@keras.saving.register_keras_serializable("keras_attn")
class MaskedLMMasking(keras.layers.Layer):
    """Masks tokens at random, and says which to predict.

    It masks whether or not in `training`: validation asks for masked tokens too. It
    belongs in front of a model, not in it: in a pipeline (`mask_batches`) or a
    training loop.

    Args:
        vocabulary_size: V.
        mask_token_id: Of `[MASK]`.
        special_token_ids: Never chosen, and never put in another's place: `[CLS]`,
            `[SEP]`, `[PAD]`, … `[MASK]` is among them anyway.
        rate: Share of the tokens to predict, in (0, 1]; see `choose_tokens`.
        mask_rate: Share of these that are masked.
        random_rate: Share of these that are replaced by a token drawn evenly from the
            vocabulary.
        continuation_token_ids: Tokens that continue a word (in BERT's vocabulary those
            that begin with `##`): given, whole words are chosen.
        max_predictions: P. None = labels stand at all T positions.
        seed: Of the random numbers.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        token_ids: Whole numbers in [0, V), (B, T).
        padding_mask: (B, T), True = real token. Padding is never chosen.
        word_starts: (B, T), True = begins a word: whole words are chosen, whatever
            `continuation_token_ids` say.

    Returns:
        A dictionary of `token_ids` (B, T), what the model is to see; `labels` int32
        (B, T), the tokens that were chosen and 0 elsewhere; and `sample_weight`
        float32 (B, T), 1 on labels and 0 elsewhere. With `max_predictions` labels and
        weights are (B, P), and `masked_positions` int32 (B, P) are where they belong,
        in ascending order; of what is not needed the position is 0 and the weight 0.

    Raises:
        ValueError: for ids outside the vocabulary, or rates that are no shares.

    Example:
        ```python
        masking = MaskedLMMasking(
            30_522, mask_token_id=103, special_token_ids=[0, 100, 101, 102]
        )
        train = mask_batches(batches, masking, seed=1)  # For `model.fit`.
        ```

    Reference:
        Devlin et al. 2019, "BERT", section 3.1 (arXiv:1810.04805); dynamic: Liu et
        al. 2019, "RoBERTa", section 4.1 (arXiv:1907.11692). Whole words: the later
        BERT checkpoints of that name, of which ours differs in that every word is as
        likely as any other.
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
        super().__init__(**kwargs)
        self.vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        if not 0 <= mask_token_id < vocabulary_size:
            raise ValueError(
                "`mask_token_id` must be in the vocabulary. Received: "
                f"mask_token_id={mask_token_id!r}, vocabulary_size={vocabulary_size}"
            )
        self.mask_token_id = mask_token_id
        self.special_token_ids = check_special_token_ids(
            special_token_ids, vocabulary_size
        )
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"`rate` is a share in (0, 1]. Received: rate={rate!r}")
        self.rate = rate
        if mask_rate < 0 or random_rate < 0 or mask_rate + random_rate > 1.0:
            raise ValueError(
                "`mask_rate` and `random_rate` are shares, together at most 1. "
                f"Received: mask_rate={mask_rate!r}, random_rate={random_rate!r}"
            )
        self.mask_rate = mask_rate
        self.random_rate = random_rate
        self.continuation_token_ids = None
        self._continues = None
        if continuation_token_ids is not None:
            self.continuation_token_ids = [
                int(index) for index in continuation_token_ids
            ]
            self._continues = np.zeros(vocabulary_size, "bool")
            if min(self.continuation_token_ids, default=0) < 0 or (
                max(self.continuation_token_ids, default=0) >= vocabulary_size
            ):
                raise ValueError(
                    "`continuation_token_ids` must be in the vocabulary. Received: "
                    f"from {min(self.continuation_token_ids)} to "
                    f"{max(self.continuation_token_ids)}, "
                    f"vocabulary_size={vocabulary_size}"
                )
            self._continues[self.continuation_token_ids] = True
        if max_predictions is not None:
            check_positive("max_predictions", max_predictions)
        self.max_predictions = max_predictions
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        never = {self.mask_token_id, *self.special_token_ids}
        self._never = tuple(sorted(never))
        self._replacements = np.setdiff1d(
            np.arange(vocabulary_size, dtype="int32"), self._never
        )
        if not len(self._replacements):
            raise ValueError(
                "`special_token_ids` must leave tokens to predict. Received: "
                f"{len(never)} special tokens, vocabulary_size={vocabulary_size}"
            )

    def draw(self, shape, numbers):
        """The random numbers for a batch of a shape: arguments of `mask`."""
        return {
            "choice": numbers.uniform(shape),
            "fate": numbers.uniform(shape),
            "replacement": numbers.whole(shape, 0, len(self._replacements)),
        }

    def mask(
        self, token_ids, padding_mask, word_starts=None, *, choice, fate, replacement
    ):
        """Masks by given numbers.

        Args:
            token_ids: As of a call.
            padding_mask: As of a call.
            word_starts: As of a call.
            choice: See `choose_tokens`, `uniforms`.
            fate: See `corrupt_tokens`, `uniforms`.
            replacement: (B, T), of which of the tokens that are not special, in
                ascending order, to put in a token's place.

        Returns:
            As of a call.
        """
        candidates = may_be_chosen(token_ids, padding_mask, self._never)
        if word_starts is None and self._continues is not None:
            continues = ops.take(self._continues, token_ids, axis=0)
            word_starts = ops.logical_not(continues)
        chosen = choose_tokens(
            choice,
            candidates,
            self.rate,
            word_starts=word_starts,
            max_predictions=self.max_predictions,
        )
        seen = corrupt_tokens(
            token_ids,
            chosen,
            fate,
            ops.take(self._replacements, replacement, axis=0),
            mask_token_id=self.mask_token_id,
            mask_rate=self.mask_rate,
            random_rate=self.random_rate,
        )
        results, labels, real = {"token_ids": seen}, token_ids, chosen
        if self.max_predictions is not None:
            positions, real = positions_of(chosen, self.max_predictions)
            results["masked_positions"] = positions
            labels = ops.take_along_axis(token_ids, positions, axis=1)
        results["labels"] = ops.where(real, ops.cast(labels, "int32"), 0)
        results["sample_weight"] = ops.cast(real, "float32")
        return results

    def call(self, token_ids, padding_mask=None, word_starts=None):
        """Masks by numbers of its own seed generator."""
        check_rank("token_ids", token_ids, 2, "(batch, length)")
        given = {"padding_mask": padding_mask, "word_starts": word_starts}
        for name, tensor in given.items():
            if tensor is not None:
                check_rank(name, tensor, 2, "(batch, length)")
                check_matches(name, tensor.shape, token_ids.shape, "(batch, length)")
        numbers = SeededNumbers(self.seed_generator)
        draws = self.draw(ops.shape(token_ids), numbers)
        return self.mask(token_ids, padding_mask, word_starts, **draws)

    def get_config(self):
        """What the constructor takes."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "mask_token_id": self.mask_token_id,
            "special_token_ids": list(self.special_token_ids),
            "rate": self.rate,
            "mask_rate": self.mask_rate,
            "random_rate": self.random_rate,
            "continuation_token_ids": self.continuation_token_ids,
            "max_predictions": self.max_predictions,
            "seed": self.seed,
        }
