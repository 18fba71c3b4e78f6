"""A loss for the ten answers that people gave to each question.

Legend: B batch, K answers to a question (ten in VQA), A answers of the vocabulary.
"""

import keras
from keras import ops

from keras_attn.checks.configuration import Configured


@keras.saving.register_keras_serializable("keras_attn")
class SoftAnswerCrossEntropy(Configured, keras.losses.Loss):
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
        check_answers(y_true, y_pred)
        answers = ops.cast(y_true, "int32")
        log_p = ops.log_softmax(y_pred, axis=-1)
        of_answers = ops.take_along_axis(log_p, ops.maximum(answers, 0), axis=-1)
        known = ops.cast(answers >= 0, log_p.dtype)
        return -ops.mean(ops.multiply(of_answers, known), axis=-1)


def check_answers(labels, logits):
    """Raises unless both have two axes."""
    if len(labels.shape) != 2 or len(logits.shape) != 2:
        raise ValueError(
            "Labels must be (batch, answers to a question) and logits (batch, answers "
            "of the vocabulary). For one answer to each question add an axis: "
            "`labels[:, None]`. Received: "
            f"y_true.shape={tuple(labels.shape)}, y_pred.shape={tuple(logits.shape)}"
        )
