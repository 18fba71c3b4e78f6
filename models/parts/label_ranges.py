"""Which labels are valid, derived from the compiled losses of a model.

A loss with a method `check_targets(name, targets)` says itself what it can learn from.
"""

from typing import Any

import keras

from keras_attn.indices import check_indices, known_values

_SPARSE = "sparse_categorical_crossentropy"


def check_labels(model: keras.Model, labels) -> None:
    """Raises if a label is not one of the classes, or none that a loss can learn from.

    What a compiled graph does with such a label depends on the backend: TensorFlow
    raises a graph error, XLA returns NaN.

    Args:
        model: A compiled model; the losses of other models are unknown.
        labels: The labels of one output, or a dictionary by the name of the output;
            anything but arrays is not checked.

    Raises:
        ValueError: If a label is not one of the classes; the message names the output,
            the label and the number of classes.
    """
    losses, outputs = getattr(model, "loss", None), model.output
    if not isinstance(outputs, dict):
        outputs, losses, labels = {"y": outputs}, {"y": losses}, {"y": labels}
    if not isinstance(losses, dict) or not isinstance(labels, dict):
        return
    for name, loss in losses.items():
        value = labels.get(name)
        shown = name if name == "y" else f"y[{name!r}]"
        if hasattr(loss, "check_targets") and hasattr(value, "shape"):
            loss.check_targets(shown, value)
        if not _is_sparse(loss) or not hasattr(value, "shape"):
            continue
        array: Any = known_values(value)
        if array is None or array.dtype.kind not in "iu":
            continue
        ignored = getattr(loss, "ignore_class", None)
        if ignored is not None:
            array = array[array != ignored]
        check_indices(shown, array, (0, outputs[name].shape[-1]))


def _is_sparse(loss) -> bool:
    if isinstance(loss, str):
        return loss in (_SPARSE, "SparseCategoricalCrossentropy")
    return isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or loss is (
        keras.losses.sparse_categorical_crossentropy
    )
