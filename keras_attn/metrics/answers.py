"""Accuracy of answers to questions that several people have answered.

Legend: B batch, K answers to a question, A answers of the vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_same_length
from keras_attn.checks.configuration import Configured
from keras_attn.data.images.answers import normalize_answer
from keras_attn.losses.soft_answers import check_answers

# With fewer answers, even K equal ones give less than 1, since one is left out.
_MIN_ANSWERS = 4


@keras.saving.register_keras_serializable("keras_attn")
class VQAAccuracy(Configured, keras.metrics.MeanMetricWrapper):
    """Mean accuracy of the most likely answer, as the VQA challenge counts it.

    `min(n / 3, 1)` where n of K - 1 people gave that answer, averaged over all subsets
    of K - 1 of the K people. With K = 10 an answer of 1, 2, 3 and 4 people scores 0.3,
    0.6, 0.9 and 1.

    Args:
        name: Name of the metric.
        dtype: Dtype of the sums. Default: float32, under every policy.

    Call arguments:
        y_true: Answers, (B, K), K at least 4; -1 for one that is not in the vocabulary.
        y_pred: Logits or probabilities, (B, A).
        sample_weight: (B,).

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: If a shape differs from these.

    Reference:
        Antol et al. 2015, "VQA: Visual Question Answering" (arXiv:1505.00468), and the
        challenge's page on evaluation.
    """

    def __init__(self, name="vqa_accuracy", dtype=None):
        # Under float16, answers above 2048 would be rounded.
        super().__init__(_accuracy_of_likeliest, name=name, dtype=dtype or "float32")


def vqa_accuracy(
    predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> np.ndarray:
    """The accuracy of each predicted text, as `VQAAccuracy`.

    Args:
        predictions: B texts.
        answers: For each question, the K texts that people gave, K at least 4. All
            texts are normalized by `data.normalize_answer`.

    Returns:
        float32 (B,), in [0, 1].

    Raises:
        ValueError: If the numbers of predictions and questions differ, or a question
            has fewer than 4 answers.
    """
    check_same_length(predictions=predictions, answers=answers)
    scores = []
    for number, (prediction, given) in enumerate(
        zip(predictions, answers, strict=True)
    ):
        if isinstance(given, str) or len(given) < _MIN_ANSWERS:
            raise ValueError(
                f"`answers` must be lists of at least {_MIN_ANSWERS} texts, from "
                f"different people. Received: answers[{number}]={given!r}"
            )
        said = normalize_answer(prediction)
        matches = sum(normalize_answer(text) == said for text in given)
        scores.append(_accuracy(float(matches), len(given)))
    return np.array([float(score) for score in scores], np.float32)


def _accuracy_of_likeliest(y_true, y_pred):
    """The accuracy of each question, (B,)."""
    check_answers(y_true, y_pred)
    count = y_true.shape[-1]
    if count is None or count < _MIN_ANSWERS:
        raise ValueError(
            f"`y_true` must be (batch, K), K at least {_MIN_ANSWERS} answers to each "
            "question; use Keras' accuracy for a single answer. "
            f"Received: y_true.shape={tuple(y_true.shape)}"
        )
    likeliest = ops.argmax(y_pred, axis=-1, keepdims=True)
    equal = ops.equal(ops.cast(y_true, "int32"), ops.cast(likeliest, "int32"))
    return _accuracy(ops.sum(ops.cast(equal, "float32"), axis=-1), count)


def _accuracy(matches, count):
    """Mean over the people left out: `matches` of them gave the answer."""
    with_match_left_out = ops.minimum((matches - 1) / 3, 1.0)
    with_other_left_out = ops.minimum(matches / 3, 1.0)
    total = matches * with_match_left_out + (count - matches) * with_other_left_out
    return total / count
