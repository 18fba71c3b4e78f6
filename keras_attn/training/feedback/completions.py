"""Completions that were sampled: where they end, and what a missing end costs.

Legend: B sequences, T tokens.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from keras import ops

from keras_attn.checks.arguments import check_above_zero, check_choice, fits, is_whole
from keras_attn.losses.masked_means import masked


class Truncated(NamedTuple):
    """Completions up to their first stop token.

    Attributes:
        token_ids: (B, T), the padding token after the stop token.
        mask: Booleans (B, T), True up to the stop token, which counts too.
        has_end: Booleans (B,), whether there was a stop token.
    """

    token_ids: Any
    mask: Any
    has_end: Any


def truncate_completions(
    token_ids,
    stop_token_ids: int | Sequence[int],
    *,
    mask=None,
    min_length: int = 0,
    pad_token_id: int = 0,
) -> Truncated:
    """Cuts each completion after the first stop token that is late enough.

    Args:
        token_ids: The sampled tokens, (B, T), integers.
        stop_token_ids: One or several tokens that end a text, such as the end token;
            OpenAI's experiments end at the first full stop.
        mask: Real tokens, (B, T), for rows that have padding. Default: all are.
        min_length: Real tokens before the first token that can end a text. OpenAI's
            experiments use 16, of 24.
        pad_token_id: Token that replaces what was cut off, and any other padding.

    Returns:
        Tokens, mask and `has_end`. In OpenAI's experiments only the reward model sees
        the truncated text, and the policy learns from all tokens; in TRL it learns from
        those up to the end.

    Raises:
        ValueError: If `token_ids` and `mask` are not both (B, T), or a number is not a
            token's id, or is negative.

    Reference:
        Ziegler et al. 2019, section 2.3 (arXiv:1909.08593).
    """
    token_ids = ops.convert_to_tensor(token_ids)
    mask = ops.ones_like(token_ids) if mask is None else mask
    _, mask = masked("token_ids", token_ids, mask)
    stops = stop_token_ids if isinstance(stop_token_ids, Sequence) else [stop_token_ids]
    given = {
        "stop_token_ids": list(stops),
        "min_length": [min_length],
        "pad_token_id": [pad_token_id],
    }
    for name, values in given.items():
        if not values or not all(is_whole(x) and x >= 0 for x in values):
            raise ValueError(
                f"`{name}` must be an integer of at least 0, and only stop tokens may "
                f"be several. Received: {name}={values}"
            )
    is_stop = ops.zeros_like(mask)
    for stop in stops:
        is_stop = ops.logical_or(is_stop, ops.equal(token_ids, stop))
    before = _before(mask)
    is_stop = ops.logical_and(is_stop, ops.logical_and(mask, before >= min_length))
    kept = ops.logical_and(mask, ops.equal(_before(is_stop), 0))
    token_ids = ops.where(kept, token_ids, ops.cast(pad_token_id, token_ids.dtype))
    return Truncated(token_ids, kept, ops.any(is_stop, axis=1))


def penalize_missing_end(
    scores,
    has_end,
    penalty: float = 1.0,
    *,
    how: Literal["replace", "subtract"] = "replace",
) -> Any:
    """Lowers the scores of completions that do not end.

    Args:
        scores: (B,).
        has_end: Whether a completion ends, (B,).
        penalty: Above 0.
        how: `"replace"` gives them the score `-penalty` instead of their own, as
            OpenAI's code; `"subtract"` subtracts it, as TRL.

    Returns:
        (B,), the dtype of `scores`.

    Raises:
        ValueError: If the shapes differ, `penalty` is not above 0, or `how` is neither.
    """
    check_choice("how", how, ("replace", "subtract"))
    penalty = check_above_zero("penalty", penalty)
    scores, has_end = map(ops.convert_to_tensor, (scores, has_end))
    if len(scores.shape) != 1 or not fits(has_end.shape, scores.shape, empty_axes=(0,)):
        raise ValueError(
            "`scores` and `has_end` must both be (batch,). Received: "
            f"scores.shape={tuple(scores.shape)}, has_end.shape={tuple(has_end.shape)}"
        )
    lower = 0.0 if how == "replace" else scores
    return ops.where(ops.cast(has_end, "bool"), scores, lower - penalty)


def _before(flags):
    """The number of True flags before each token, (B, T)."""
    counts = ops.cast(flags, "int32")
    return ops.cumsum(counts, axis=1) - counts
