"""The valid labels, derived from the compiled losses of a model.

A loss with a method `check_targets(name, targets)` says itself what it can learn from.
"""

from typing import Any

import keras

from keras_attn.checks.indices import check_indices, known_values

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
    loss: Any
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


def check_class_weight(model: keras.Model, class_weight: Any) -> None:
    """Raises if classes cannot be weighted: if a row has several of them.

    Keras would take the largest label of a text for its class, or fail for pixels.

    Args:
        model: A model.
        class_weight: The argument of `fit`.

    Raises:
        ValueError: If the output has a class at each position.
    """
    outputs = keras.tree.flatten(model.output)
    if class_weight is None or len(outputs) != 1 or len(outputs[0].shape) < 3:
        return
    raise ValueError(
        "`class_weight` needs one class for each row, and this model has one at each "
        "position: pass `sample_weight=np.take(weights, labels)` with an array "
        "`weights`, or put these weights into the data set. Received: "
        f"class_weight={class_weight!r}, output of shape {tuple(outputs[0].shape)}"
    )


def _is_sparse(loss) -> bool:
    if isinstance(loss, str):
        return loss in (_SPARSE, "SparseCategoricalCrossentropy")
    return isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or loss is (
        keras.losses.sparse_categorical_crossentropy
    )
