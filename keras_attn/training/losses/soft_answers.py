"""A loss and a metric for the ten answers that people gave to each question.

Legend: B batch, K answers to a question (ten in VQA), A answers of the vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_same_length
from keras_attn.data.images.answers import normalize_answer

# With fewer answers, even K equal ones give less than 1, since one is left out.
_MIN_ANSWERS = 4


@keras.saving.register_keras_serializable("keras_attn")
class SoftAnswerCrossEntropy(keras.losses.Loss):
    """`1/K Σ_k -log p(a_k)` over the K answers to a question, in nats.

    An answer that is not in the vocabulary adds nothing to the sum, and K stays the
    number of all answers. So a question that people answer in unusual words counts
    less.

    Args:
        reduction: One of Keras' reductions. Default: the mean over the questions.
        name: Name of the loss.
        dtype: Dtype of the computation. Default: float32, under every policy.

    Call arguments:
        y_true: Answers, (B, K), integers in [0, A), or -1 for one that is not in the
            vocabulary.
        y_pred: Logits (B, A).
        sample_weight: (B,).

    Returns:
        A scalar, or (B,) with `reduction="none"`.

    Raises:
        ValueError: If `y_true` or `y_pred` does not have 2 axes.

    Reference:
        Kazemi and Elqursh 2017, section 3 (arXiv:1704.03162).
    """

    def __init__(
        self,
        *,
        reduction="sum_over_batch_size",
        name="soft_answer_cross_entropy",
        dtype=None,
    ):
        # Keras casts labels to this dtype too, and 16 bits cannot hold every answer.
        super().__init__(name=name, reduction=reduction, dtype=dtype or "float32")

    def call(self, y_true, y_pred):
        """Computes the loss of each question, (B,)."""
        _check_shapes(y_true, y_pred)
        answers = ops.cast(y_true, "int32")
        log_p = ops.log_softmax(y_pred, axis=-1)
        of_answers = ops.take_along_axis(log_p, ops.maximum(answers, 0), axis=-1)
        known = ops.cast(answers >= 0, log_p.dtype)
        return -ops.mean(ops.multiply(of_answers, known), axis=-1)

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "dtype": self.dtype}


@keras.saving.register_keras_serializable("keras_attn")
class VQAAccuracy(keras.metrics.MeanMetricWrapper):
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

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {"name": self.name, "dtype": self.dtype}


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
    _check_shapes(y_true, y_pred)
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


def _check_shapes(labels, logits):
    if len(labels.shape) != 2 or len(logits.shape) != 2:
        raise ValueError(
            "Labels must be (batch, answers to a question) and logits (batch, answers "
            "of the vocabulary). For one answer to each question add an axis: "
            "`labels[:, None]`. Received: "
            f"y_true.shape={tuple(labels.shape)}, y_pred.shape={tuple(logits.shape)}"
        )
