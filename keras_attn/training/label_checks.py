"""A label that is none of a model's classes: said by name, before it is learned from.

Legend: B batch, C classes.
"""

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive

_SAYS = (
    "Labels must be whole numbers from 0 to num_classes - 1. Count the classes again, "
    "number them from 0, or build the model with another `num_classes`."
)


def check_labels(labels, num_classes: int):
    """Refuses labels that are none of `num_classes` classes.

    A sparse categorical cross-entropy does not do so everywhere: on a GPU, and compiled
    by XLA, a label that is out of range makes the loss NaN. One that is to be ignored
    (`ignore_class`) is refused too.

    Args:
        labels: Whole numbers of any shape; or a dataset of batches `(inputs, labels)`,
            perhaps with sample weights behind them.
        num_classes: C.

    Returns:
        The labels, as they came; or the dataset, which checks each batch as it is read.

    Raises:
        TypeError: for labels that are not whole numbers, or a dataset without labels.
        ValueError: for labels below 0, or of C and above.
        tf.errors.InvalidArgumentError: the same, from a dataset while it is read.

    Example:
        ```python
        train = check_labels(train, num_classes=10)
        model.fit(images, check_labels(labels, num_classes=10))
        ```
    """
    check_positive("num_classes", num_classes)
    if isinstance(labels, tf.data.Dataset):
        return _checked(labels, num_classes)
    array = np.asarray(labels)
    if not array.size:
        return labels
    _check_whole(array.dtype, array.shape)
    wrong = np.unique(array[(array < 0) | (array >= num_classes)])
    if wrong.size:
        raise ValueError(
            f"{_SAYS} Received: labels {wrong[:5].tolist()}, num_classes={num_classes}"
        )
    return labels


def _checked(dataset, num_classes):
    spec = dataset.element_spec
    spec = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(
            "A dataset must have pairs of inputs and labels, one tensor of these. "
            f"Received: labels.element_spec={dataset.element_spec}"
        )
    _check_whole(spec.dtype.as_numpy_dtype, spec.shape)

    def check(*batch):
        labels = tf.reshape(tf.cast(batch[1], "int64"), [-1])
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        says = [_SAYS, "Received: labels", wrong, f"num_classes={num_classes}"]
        with tf.control_dependencies([tf.debugging.Assert(tf.size(wrong) == 0, says)]):
            return (batch[0], tf.identity(batch[1]), *batch[2:])

    return dataset.map(check)


def _check_whole(dtype, shape):
    if not np.issubdtype(dtype, np.integer):
        raise TypeError(
            "Labels must be whole numbers, a class each: of one-hot rows, "
            "`np.argmax(labels, -1)`; of floats, `labels.astype(int)`. Received: "
            f"labels.dtype={np.dtype(dtype)}, labels.shape={shape}"
        )
