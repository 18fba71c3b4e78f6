"""Accuracy of scores by which answers are ranked."""

import keras
from keras import ops

from keras_attn.checks.arguments import check_several
from keras_attn.checks.configuration import Configured
from keras_attn.losses.preferences import by_ranking, differences_of_pairs


@keras.saving.register_keras_serializable("keras_attn")
class RankingAccuracy(Configured, keras.metrics.Mean):
    """Share of the pairs of answers that the scores put in the right order.

    A tie in the ratings is left out; one in the scores is wrong. Pass it to `compile`
    in `weighted_metrics` if rankings have different numbers of answers.

    Args:
        num_answers: K.
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: As of `RankingLoss`.
        y_pred: As of `RankingLoss`.
        sample_weight: As of `RankingLoss`.

    Returns:
        A scalar in [0, 1]; a constant score gives 0, random ones 0.5.

    Raises:
        ValueError: As `RankingLoss`.
    """

    def __init__(self, num_answers: int = 2, name="ranking_accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype or "float32")
        self.num_answers = check_several("num_answers", num_answers)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the pairs of a batch; see the class."""
        ratings, scores, weights = by_ranking(
            y_true, y_pred, sample_weight, self.num_answers
        )
        differences, ratings, counts = differences_of_pairs(
            scores, ratings, weights > 0
        )
        of_pairs = ops.where(counts, ops.max(weights, axis=1)[:, None, None], 0.0)
        is_right = ops.cast(differences > 0, "float32")
        are_known = ops.isfinite(differences) & ops.isfinite(ratings)
        is_right = ops.where(are_known | ~counts, is_right, float("nan"))
        return super().update_state(is_right, of_pairs)
