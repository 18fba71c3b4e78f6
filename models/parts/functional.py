"""The functional model that every builder returns: it says which input is wrong.

It checks where values are known on the host: in `model(inputs)`, and in `predict` and
`predict_on_batch` of arrays. `fit`, `evaluate` and a `tf.data` data set run through
compiled graphs, which see shapes alone: there an index outside its table is clamped,
wraps around, or raises an error of the backend's.
"""

import functools

import keras

from keras_attn.checks import check_fits, empty_axes_of, fits
from keras_attn.indices import IndexRange, check_indices, index_ranges


# Under this name Keras' TensorBoard callback draws it.
@keras.saving.register_keras_serializable("keras_attn")
class Functional(keras.Model):
    """A functional model that checks the shapes and indices of its inputs.

    Raises:
        ValueError: when called with an input of another shape, an empty one, or an
            index (a token id, a position, a class) that the model has no row for.
    """

    def __call__(self, *args, **kwargs):
        """Calls the model as `keras.Model` does, but checks the inputs first."""
        self._check_inputs(args[0] if args else kwargs.get("inputs"))
        return super().__call__(*args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Predicts as `keras.Model.predict`, but checks arrays first."""
        self._check_inputs(x)
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x):
        """Predicts as `keras.Model.predict_on_batch`, but checks arrays first."""
        self._check_inputs(x)
        return super().predict_on_batch(x)

    @functools.cached_property
    def _ranges(self) -> dict[str, IndexRange]:
        return index_ranges(self)

    def _check_inputs(self, inputs) -> None:
        """Checks one array, or a dictionary of them; anything else is left to Keras."""
        expected = {tensor.name: tensor for tensor in self.inputs}
        if not isinstance(inputs, dict):
            inputs = dict.fromkeys(expected, inputs) if len(expected) == 1 else {}
        for name, tensor in expected.items():
            value = inputs.get(name)
            if not hasattr(value, "shape"):
                continue
            shape, declared = _shape(value), tuple(tensor.shape)
            empty_axes = empty_axes_of(name)
            if not fits(_squeezed(shape, declared), declared, empty_axes):
                check_fits(name, shape, declared, empty_axes)
            if name in self._ranges:
                check_indices(name, value, self._ranges[name])


def _shape(tensor) -> tuple | None:
    """A shape; None where TensorFlow does not even know the number of axes."""
    return None if getattr(tensor.shape, "rank", 0) is None else tuple(tensor.shape)


def _squeezed(shape, expected):
    """A shape with the last axis of size 1 that Keras removes or adds by itself."""
    if shape and len(shape) == len(expected) + 1 and shape[-1] == 1:
        return shape[:-1]
    if shape and len(shape) == len(expected) - 1 and expected[-1] == 1:
        return (*shape, 1)
    return shape
