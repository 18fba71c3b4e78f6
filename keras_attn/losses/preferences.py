"""Learning from preferences: the losses of a reward model and of DPO.

    ranking   mean over the pairs i better than j of -log σ(s_i - s_j - margin)
    DPO       f(β ((log π - log π_ref)(chosen) - (log π - log π_ref)(rejected)))

Legend: G rankings, K answers of each, B pairs.
"""

import numbers
from typing import Any, Literal

import keras
from keras import ops

from keras_attn.checks.arguments import (
    check_above_zero,
    check_at_least_zero,
    check_choice,
    check_rank,
    check_several,
    fits,
)
from keras_attn.checks.inputs import check_finite
from keras_attn.kernels.precision import at_least_float32
from keras_attn.losses.weighted_mean import WeightedMeanLoss

DPOKind = Literal["sigmoid", "ipo", "hinge", "robust"]


def ranking_loss(
    scores,
    ratings,
    *,
    is_real=None,
    margin: float = 0.0,
    center_weight: float = 0.0,
) -> Any:
    """The negative log-likelihood of a ranking's pairs under Bradley and Terry's model.

        mean over the pairs with r_i > r_j of
        -log σ(s_i - s_j - m (r_i - r_j)) + c (s_i + s_j)²

    All K (K - 1) / 2 pairs of a ranking are one example, so that an answer is never an
    example of its own, which would overfit. A tie says nothing, and its pair is left
    out.

    Args:
        scores: s, (G, K).
        ratings: r, (G, K), larger for the better answer. Without a margin only their
            order matters. In a graph the loss of a ranking is NaN if one is not finite.
        is_real: Whether an answer exists, (G, K), for rankings of fewer than K answers.
            Default: all do.
        margin: m; 0 for none. For pairs with ratings (margin, 0) and m = 1 this is
            TRL's and Llama 2's margin of a pair.
        center_weight: c, which keeps the scores of a pair around 0; 0 for none. Only
            differences matter otherwise, so scores may drift.

    Returns:
        (G,), float32 or wider; 0 for a ranking without a pair that counts.

    Raises:
        ValueError: If the shapes are not (G, K), a number is negative, or a known
            rating is not finite.

    Reference:
        Ouyang et al. 2022, section 3.5 (arXiv:2203.02155); the margin: Touvron et al.
        2023, section 3.2.2 (arXiv:2307.09288); centering: Eisenstein et al. 2023
        (arXiv:2312.09244).
    """
    check_at_least_zero("margin", margin)
    check_at_least_zero("center_weight", center_weight)
    scores = at_least_float32(ops.convert_to_tensor(scores))
    check_rank("scores", scores, 2, "(rankings, answers)")
    differences, ratings, counts = differences_of_pairs(scores, ratings, is_real)
    # -log σ(x) = softplus(-x)
    losses = ops.softplus(margin * ratings - differences)
    losses = ops.where(ops.isfinite(ratings), losses, float("nan"))
    if center_weight:
        sums = scores[:, :, None] + scores[:, None, :]
        losses = losses + center_weight * ops.square(sums)
    total = ops.sum(ops.where(counts, losses, 0.0), axis=(1, 2))
    count = ops.sum(ops.cast(counts, losses.dtype), axis=(1, 2))
    return total / ops.maximum(count, 1.0)


@keras.saving.register_keras_serializable("keras_attn")
class RankingLoss(WeightedMeanLoss):
    """Mean of `ranking_loss` over rankings whose answers are scored one by one.

    The answers of a ranking are consecutive rows of a batch, as the options of a
    `ChoiceCrossEntropy`. So a reward model is any model with one output, and
    `ranking_dataset` makes its batches.

    Args:
        num_answers: K.
        margin: See `ranking_loss`.
        center_weight: See `ranking_loss`.
        reduction: `"mean_with_sample_weight"`, or any other Keras reduction.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Ratings, (G·K,) or (G·K, 1), larger for the better answer.
        y_pred: Scores, (G·K, 1) or (G·K,).
        sample_weight: (G·K,). An answer with weight 0 does not exist; the weight of a
            ranking is the largest of its answers.

    Returns:
        A scalar, or (G,) with `reduction="none"`.

    Raises:
        ValueError: If `num_answers` is not an integer of at least 2, a number is
            negative; or the rows are not K for each ranking, where their number is
            known.

    Example:
        ```python
        import numpy as np
        from keras_attn import losses

        scores = np.array([[3.0], [1], [2], [0], [2], [1]])  # Of two prompts' answers.
        ranks = np.array([0, 1, 2, 0, 1, 2])  # 0 is the best.
        losses.RankingLoss(num_answers=3)(ranks, scores)  # 0.92
        ```
    """

    def __init__(
        self,
        num_answers: int = 2,
        *,
        margin: float = 0.0,
        center_weight: float = 0.0,
        reduction="mean_with_sample_weight",
        name="ranking_loss",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.num_answers = check_several("num_answers", num_answers)
        self.margin = check_at_least_zero("margin", margin)
        self.center_weight = check_at_least_zero("center_weight", center_weight)

    def __call__(self, y_true, y_pred, sample_weight: Any = None):
        """Computes the loss of the rankings; see the class."""
        ratings, scores, weights = by_ranking(
            y_true, y_pred, sample_weight, self.num_answers
        )
        # `call` gets no weights, but must know which answers exist.
        truth = ops.stack([ratings, ops.cast(weights > 0, ratings.dtype)], axis=-1)
        return super().__call__(truth, scores, ops.max(weights, axis=1))

    def call(self, y_true, y_pred):
        """The loss of each ranking, (G,), from (G, K, 2) and (G, K)."""
        return ranking_loss(
            y_pred,
            y_true[..., 0],
            is_real=y_true[..., 1] > 0,
            margin=self.margin,
            center_weight=self.center_weight,
        )


def dpo_loss(
    chosen,
    rejected,
    reference_chosen=None,
    reference_rejected=None,
    *,
    beta: float = 0.1,
    kind: DPOKind = "sigmoid",
    label_smoothing: float = 0.0,
    chosen_lengths=None,
    rejected_lengths=None,
    reference_free: bool = False,
) -> Any:
    """Direct preference optimization: the loss of each pair, as TRL 1.16 computes it.

        Δ = (log π - log π_ref)(chosen) - (log π - log π_ref)(rejected)
        sigmoid   -log σ(β Δ)
        hinge     max(0, 1 - β Δ)
        robust    ((1 - ε) (-log σ(β Δ)) - ε (-log σ(-β Δ))) / (1 - 2 ε)
        ipo       (Δ of means per token - 1 / (2 β))²

    A log-probability is the sum over the tokens of a completion.

    Args:
        chosen: log π of the better completions, (B,).
        rejected: log π of the worse completions, (B,).
        reference_chosen: log π_ref of the better ones, (B,), without a gradient.
        reference_rejected: log π_ref of the worse ones, (B,).
        beta: β, above 0.
        kind: `"sigmoid"`, `"ipo"`, `"hinge"` or `"robust"`.
        label_smoothing: ε, the assumed share of pairs in the wrong order, in [0, 0.5),
            of `"robust"`; an error for another kind, which would ignore it.
        chosen_lengths: Tokens of the better completions, (B,), for `"ipo"`.
        rejected_lengths: Tokens of the worse completions, (B,), for `"ipo"`.
        reference_free: Takes `log π_ref = 0`, the same for all completions, and no
            `reference_…`.

    Returns:
        (B,), float32 or wider.

    Raises:
        ValueError: If the shapes differ, an argument that the kind needs is missing or
            one that it ignores is given, or a number is out of range.

    Reference:
        Rafailov et al. 2023, equation 7 (arXiv:2305.18290); ipo: Azar et al. 2023,
        equation 17 (arXiv:2310.12036); hinge: Zhao et al. 2023 (arXiv:2305.10425);
        robust: Chowdhury et al. 2024 (arXiv:2403.00409).
    """
    check_dpo_options(kind, beta, label_smoothing)
    _check_given(
        not reference_free,
        "reference_free=False",
        reference_chosen=reference_chosen,
        reference_rejected=reference_rejected,
    )
    _check_given(
        kind == "ipo",
        'kind="ipo"',
        chosen_lengths=chosen_lengths,
        rejected_lengths=rejected_lengths,
    )
    chosen = at_least_float32(ops.convert_to_tensor(chosen))
    check_rank("chosen", chosen, 1, "(pairs,)")
    rejected = _like("rejected", rejected, chosen)
    if not reference_free:
        reference = _like("reference_chosen", reference_chosen, chosen)
        chosen = chosen - ops.stop_gradient(reference)
        reference = _like("reference_rejected", reference_rejected, chosen)
        rejected = rejected - ops.stop_gradient(reference)
    if kind == "ipo":
        # Means per token, of at least one token.
        lengths = _like("chosen_lengths", chosen_lengths, chosen)
        chosen = chosen / ops.maximum(lengths, 1.0)
        lengths = _like("rejected_lengths", rejected_lengths, chosen)
        rejected = rejected / ops.maximum(lengths, 1.0)
        return ops.square(chosen - rejected - 1.0 / (2.0 * beta))
    logits = beta * (chosen - rejected)
    if kind == "hinge":
        return ops.relu(1.0 - logits)
    loss = ops.softplus(-logits)  # -log σ(logits)
    if kind == "robust":
        wrong = label_smoothing * ops.softplus(logits)
        loss = ((1.0 - label_smoothing) * loss - wrong) / (1.0 - 2.0 * label_smoothing)
    return loss


def check_dpo_options(kind: DPOKind, beta: float, label_smoothing: float) -> None:
    """Raises a `ValueError` if the options of `dpo_loss` are not as described there."""
    check_choice("kind", kind, ("sigmoid", "ipo", "hinge", "robust"))
    check_above_zero("beta", beta)
    is_share = isinstance(label_smoothing, numbers.Real) and 0 <= label_smoothing < 0.5
    if not is_share or (label_smoothing and kind != "robust"):
        raise ValueError(
            '`label_smoothing` must be in [0, 0.5), and 0 unless `kind="robust"`. '
            f"Received: label_smoothing={label_smoothing!r}, kind={kind!r}"
        )


def differences_of_pairs(scores, ratings, is_real):
    """Differences of scores and ratings of all pairs, (G, K, K), and which count.

    Pairs count whose first answer is the better one, if both exist, and pairs with a
    rating that is not finite.
    """
    ratings = _like("ratings", ratings, scores)
    if is_real is not None:
        is_real = ops.cast(_like("is_real", is_real, scores), "bool")
        # The rating of an answer that does not exist may be any number.
        ratings = ops.where(is_real, ratings, 0.0)
    check_finite("ratings", ratings)
    # x_i - x_j, (G, K, K)
    of_scores, of_ratings = (x[:, :, None] - x[:, None, :] for x in (scores, ratings))
    counts = ops.logical_or(of_ratings > 0, ops.isnan(of_ratings))
    if is_real is not None:
        both = ops.logical_and(is_real[:, :, None], is_real[:, None, :])
        counts = ops.logical_and(counts, both)
    return of_scores, of_ratings, counts


def by_ranking(ratings, scores, weights, num_answers):
    """Ratings, scores and weights by ranking, each (G, K), float32 or wider."""
    scores = at_least_float32(ops.convert_to_tensor(scores))
    ratings = ops.cast(ops.convert_to_tensor(ratings), scores.dtype)
    weights = ops.ones_like(ratings) if weights is None else weights
    weights = ops.cast(ops.convert_to_tensor(weights), scores.dtype)
    named = {"y_true": ratings, "y_pred": scores, "sample_weight": weights}
    rows = {x.shape[0] for x in named.values()} - {None}
    axes = (), (1,), (None,)
    are_numbers = all(tuple(x.shape[1:]) in axes for x in named.values())
    if not are_numbers or len(rows) > 1 or any(n % num_answers for n in rows):
        shapes = ", ".join(
            f"{name}.shape={tuple(x.shape)}" for name, x in named.items()
        )
        raise ValueError(
            "Ratings, scores and weights must have one number per row, `num_answers` "
            "consecutive rows for each ranking. "
            f"Received: {shapes}, num_answers={num_answers}"
        )
    return tuple(ops.reshape(x, (-1, num_answers)) for x in named.values())


def _like(name, values, like):
    """Values in the dtype of others; raises unless they have their shape."""
    values = ops.convert_to_tensor(values)
    if not fits(values.shape, like.shape, empty_axes=range(len(like.shape))):
        raise ValueError(
            f"`{name}` must have the shape {tuple(like.shape)}. "
            f"Received: {name}.shape={tuple(values.shape)}"
        )
    return ops.cast(values, like.dtype)


def _check_given(expected, where, **arguments):
    """Raises unless all arguments are given if expected, and none otherwise."""
    wrong = [name for name, x in arguments.items() if (x is not None) != expected]
    if wrong:
        names = " and ".join(f"`{name}`" for name in arguments)
        received = ", ".join(
            f"{name}={'None' if x is None else 'given'}"
            for name, x in arguments.items()
        )
        raise ValueError(
            f"{names} must be given if and only if `{where}`. Received: {received}"
        )
