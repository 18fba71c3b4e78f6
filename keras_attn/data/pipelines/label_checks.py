"""Checks class labels before a model learns from them.

Legend: B batch, C classes.
"""

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive

_EXPECTED = (
    "Labels must be integers from 0 to num_classes - 1. Check the number of classes, "
    "number them from 0, or build the model with a different `num_classes`."
)


def check_labels(labels, num_classes: int, ignore_label: int | None = None):
    """Refuses labels outside [0, num_classes).

    Sparse categorical cross-entropy does not check them everywhere: on a GPU, or
    compiled by XLA, a label out of range makes the loss NaN.

    Args:
        labels: Integers of any shape; or a dataset of batches `(inputs, labels)`,
            optionally followed by sample weights.
        num_classes: C.
        ignore_label: An additional label that is accepted because the loss ignores it:
            the `ignore_label` of `SegmentationCrossEntropy`, or the `ignore_class` of a
            Keras loss.

    Returns:
        The labels, unchanged; or the dataset, which checks each batch as it is read.

    Raises:
        TypeError: If the labels are not integers, or a dataset has no labels.
        ValueError: If a label is negative, or C or above.
        tf.errors.InvalidArgumentError: The same, from a dataset while it is read.

    Example:
        ```python
        import numpy as np
        from keras_attn import data

        labels = data.check_labels(np.array([0, 3, 9]), num_classes=10)
        ```
    """
    check_positive("num_classes", num_classes)
    if isinstance(labels, tf.data.Dataset):
        return _checked_dataset(labels, num_classes, ignore_label)
    array = np.asarray(labels)
    if not array.size:
        return labels
    _check_integers(array.dtype, array.shape)
    wrong = (array < 0) | (array >= num_classes)
    if ignore_label is not None:
        wrong &= array != ignore_label
    wrong = np.unique(array[wrong])
    if wrong.size:
        raise ValueError(
            f"{_EXPECTED} Received: labels {wrong[:5].tolist()}, "
            f"num_classes={num_classes}"
        )
    return labels


def _checked_dataset(dataset, num_classes, ignore_label):
    spec = dataset.element_spec
    spec = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(spec, tf.TensorSpec):
        raise TypeError(
            "A dataset must yield pairs of inputs and labels, with the labels in one "
            f"tensor. Received: labels.element_spec={dataset.element_spec}"
        )
    _check_integers(spec.dtype.as_numpy_dtype, spec.shape)

    def check(*batch):
        labels = tf.reshape(tf.cast(batch[1], "int64"), [-1])
        is_wrong = (labels < 0) | (labels >= num_classes)
        if ignore_label is not None:
            is_wrong &= labels != ignore_label
        wrong = labels[is_wrong]
        message = [_EXPECTED, "Received: labels", wrong, f"num_classes={num_classes}"]
        valid = tf.debugging.Assert(tf.size(wrong) == 0, message)
        with tf.control_dependencies([valid]):
            return (batch[0], tf.identity(batch[1]), *batch[2:])

    return dataset.map(check)


def _check_integers(dtype, shape):
    if not np.issubdtype(dtype, np.integer):
        raise TypeError(
            "Labels must be integers, one per class. Convert one-hot rows by "
            "`np.argmax(labels, -1)`, floats by `labels.astype(int)`. Received: "
            f"labels.dtype={np.dtype(dtype)}, labels.shape={shape}"
        )
