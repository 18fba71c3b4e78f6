"""The best classes of each row of logits, with their names.

Nothing here needs TensorFlow or Keras: runners of exported files call it, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_attn.checks.arguments import check_boolean, check_positive


def decode_predictions(
    preds: Any,
    class_names: Sequence[str] | None,
    top: int = 5,
    from_logits: bool | None = None,
) -> list[list[tuple[int, str, float]]]:
    """The classes with the highest scores of each row, the best first.

    Args:
        preds: Logits or probabilities, (B, C).
        class_names: The name of each class; None = their numbers.
        top: How many classes of each row; all, if there are fewer.
        from_logits: Whether `preds` are logits, of which the softmax is taken.
            None = unless each row is of probabilities, whose sum is 1.

    Returns:
        A list for each row, of the number, name and probability of each class.

    Raises:
        ValueError: If an argument is wrong, or the names are not those of C classes.
    """
    check_positive("top", top)
    if isinstance(preds, Mapping):
        raise ValueError(
            "`preds` must be one output, such as `outputs[name]`. "
            f"Received: a dictionary of {sorted(preds)}"
        )
    scores = np.asarray(preds, "float64")
    if scores.ndim != 2 or not scores.shape[1]:
        raise ValueError(
            "`preds` must be the scores of each class, (batch, classes). "
            f"Received: preds of shape {scores.shape}"
        )
    count = scores.shape[1]
    names = list(map(str, range(count) if class_names is None else class_names))
    if len(names) != count:
        raise ValueError(
            f"`preds` must have a score for each of the {len(names)} classes of the "
            f"model. Received: preds of shape {scores.shape}"
        )
    if from_logits is None:
        # Half precision may miss 1 by some thousandths.
        sums = scores.sum(axis=1)
        from_logits = bool((scores < 0).any()) or not np.allclose(sums, 1, atol=1e-2)
    if check_boolean("from_logits", from_logits):
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    elif (scores < 0).any() or (scores > 1).any():
        raise ValueError(
            "`preds` must be probabilities if `from_logits` is False. "
            f"Received: preds from {scores.min():g} to {scores.max():g}"
        )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    return [
        [(int(number), names[number], float(row[number])) for number in best]
        for row, best in zip(scores, order, strict=True)
    ]
