"""Turns an image classifier into a network that accepts larger images.

A dense layer after `Flatten` is a convolution whose kernel covers the whole map, and a
dense layer on a vector is a 1 × 1 convolution. In this form, the classifier slides over
a larger image and gives logits for each location (Long et al. 2015, section 3.1).

The file has more than 400 lines because the conversions of all kinds of layers belong
together.

Legend: B batch, H and W pixels, h and w rows and columns of the last map, C classes.
"""

from typing import Any

import keras
from keras import layers

from keras_attn.checks.arguments import check_pair
from keras_attn.layers.convolution.minimum_image_size import MinimumImageSize
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.graph import Graph, is_graph

# Elementwise layers and operations, by their names in Keras.
_ELEMENTWISE_LAYERS = (
    *(layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Identity),
    *(layers.Dropout, layers.AlphaDropout, layers.GaussianDropout),
    *(layers.GaussianNoise, layers.Rescaling, layers.ActivityRegularization),
)
_MERGES = (
    *(layers.Add, layers.Subtract, layers.Multiply, layers.Average),
    *(layers.Maximum, layers.Minimum),
)
_ELEMENTWISE_OPERATIONS = set(
    "Abs Add Cast Celu Clip Divide Elu Exp Expm1 Gelu HardSigmoid HardSilu HardSwish "
    "HardTanh Identity LeakyRelu Log Log1p LogSigmoid Maximum Minimum Multiply "
    "Negative Power Relu Relu6 Selu Sigmoid Silu Softplus Softsign Sqrt Square "
    "Subtract Tanh TrueDivide".split()
)
# Layers with one weight, or one sum, per channel.
_CHANNEL_LAYERS = (
    *(layers.BatchNormalization, layers.LayerNormalization, layers.Softmax),
    *(layers.UnitNormalization, layers.Concatenate),
)
_FLATTENING = (layers.Flatten, layers.Reshape)
_POOLINGS = {
    layers.GlobalAveragePooling2D: layers.AveragePooling2D,
    layers.GlobalMaxPooling2D: layers.MaxPooling2D,
}
# Operations of `keras.ops`, by name.
_POOLING_OPERATIONS = {"Mean": layers.AveragePooling2D, "Max": layers.MaxPooling2D}
_WHOLE = (1, 1)  # The window of a vector: it has one number per channel.


def convolutionize(model, *, image_size=None, name=None) -> keras.Model:
    """A classifier of images with convolutions in place of its dense layers.

    `Flatten` and the dense layer after it become a convolution with a kernel of the
    size of the map; other dense layers become 1 × 1 convolutions; global pooling
    becomes pooling with a window of the size of the map and a stride of 1. An image of
    the original size gives a map of 1 × 1 with the logits of `model`; a larger one
    gives a map with one more location for every further row and column of the last map.

    The logits of a location differ from what the classifier gives for that part of the
    image: the convolutions see pixels beyond the part where the classifier sees
    padding, and a block that pools the whole map (squeeze and excitation) pools over
    the whole image.

    Args:
        model: A functional or sequential model from images (B, H, W, channels) to
            logits or probabilities (B, C), such as a model of `keras.applications`. It
            may contain nested models.
        image_size: H and W, one number or two, rows first. Default: the size of the
            model's input; required if the input has no fixed size.
        name: Name of the new model. Default: the name of `model`.

    Returns:
        A model of new layers with the same names and copied weights, from images
        (B, ≥ H, ≥ W, channels) to (B, rows, columns, C). It is not compiled.

    Raises:
        TypeError: If `model` is neither functional nor sequential.
        ValueError: If `model` is not built or its input is not a single image tensor,
            the image size is unknown, or a layer cannot be converted; the message names
            the layer.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import models

        pool = [keras.Input((32, 32, 3)), keras.layers.MaxPooling2D(8)]
        head = [keras.layers.Flatten(), keras.layers.Dense(10)]
        classifier = keras.Sequential([*pool, *head])
        models.convolutionize(classifier)(np.zeros((1, 64, 96, 3)))  # (1, 5, 9, 10)
        ```

    Reference:
        Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation",
        section 3.1 (arXiv:1411.4038).
    """
    images = _image_input(model)
    size = _image_size(images, image_size)
    converter = _Converter(model, images, size)
    inputs, outputs = converter.convert()
    return Functional(inputs, outputs, name=name or model.name)


def _image_input(model):
    """The only input of a model."""
    if not is_graph(model):
        raise TypeError(
            "`model` must be a functional or sequential Keras model. "
            f"Received: model={model!r}"
        )
    inputs = model.inputs if model.built else ()
    if not inputs:
        raise ValueError(
            "`model` must be built: give it an input, or call it once. "
            f"Received: model={model!r}"
        )
    (images, *others) = inputs
    if others or len(images.shape) != 4 or images.shape[-1] is None:
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        raise ValueError(
            "`model` must have one input, images (batch, height, width, channels). "
            f"Received: inputs of shape {shapes}"
        )
    return images


def _image_size(images, image_size):
    """Rows and columns of the images that the classifier was built for."""
    sides = tuple(images.shape[1:3])
    if image_size is None and None in sides:
        raise ValueError(
            "`image_size` must be given for a model that takes images of any size: "
            "pass the size for which the classifier gives a map of 1 × 1. "
            f"Received: image_size=None, images of shape {tuple(images.shape)}"
        )
    if image_size is None:
        return sides
    size = check_pair("image_size", image_size)
    if any(side not in (None, own) for side, own in zip(sides, size, strict=True)):
        raise ValueError(
            f"`image_size` must equal the size of the model's input, {sides}. "
            f"Received: image_size={image_size}"
        )
    return size


class _Converter:
    """Walks the graph of a classifier and builds the convolutional one beside it.

    Tensors are referred to by keys, because a nested model may be called several times.
    A tensor after the last map is a *vector* in the old graph and a map in the new one.
    Its window is what a kernel must cover to see all of it: the whole last map after
    `Flatten`, one location otherwise.

    Attributes:
        old: Key to symbolic tensor of the old graph, at the original image size.
        new: Key to symbolic tensor of the new graph.
        larger: Key to symbolic tensor of the new graph for a larger image, to check
            that it fits.
        windows: Key of a vector to its window.
    """

    def __init__(self, model, images, size):
        self.model = model
        self._graph = Graph(model)
        self.steps = self._graph.steps
        channels = images.shape[-1]
        source = self._graph.input_key
        sides = [2 * side + 1 for side in size]
        self.old = {source: keras.KerasTensor((None, *size, channels), images.dtype)}
        self.larger = {
            source: keras.KerasTensor((None, *sides, channels), images.dtype)
        }
        self.inputs = keras.Input(
            (None, None, channels), dtype=images.dtype, name=images.name
        )
        check = MinimumImageSize(size, name="minimum_image_size")
        self.new = {source: check(self.inputs)}
        self.windows: dict[Any, tuple[int, int]] = {}
        self._copies = {}

    def convert(self):
        """The inputs and outputs of the new graph."""
        for step in self.steps:
            self._infer(step)
        before_maps = self._before_maps()
        for step in self.steps:
            if any(key in self.windows for key in step.inputs):
                self._convert_vector(step)
            elif self._is_last_map(step) and not before_maps & set(step.outputs):
                self._convert_last_map(step)
            else:
                self._repeat(step)
        if not self.windows:
            raise ValueError(
                "`model` must be a classifier: none of its layers flattens or pools "
                f"the last map into a vector. Received: model={self.model.name!r}"
            )
        return self.inputs, self._graph.map_outputs(self._output)

    def _output(self, key):
        if self.windows.get(key, _WHOLE) != _WHOLE:
            raise ValueError(
                "`model` must have a dense layer after it flattens the last map. "
                f"Received: model={self.model.name!r}"
            )
        return self.new[key]

    # The old graph.

    def _infer(self, step):
        """Infers the outputs of the old graph at the original image size."""
        args, kwargs = step.arguments(self.old)
        outputs = step.operation.compute_output_spec(*args, **kwargs)
        self._keep(self.old, step, outputs)

    def _keep(self, tensors, step, outputs):
        tensors.update(zip(step.outputs, keras.tree.flatten(outputs), strict=True))

    def _before_maps(self) -> set:
        """Keys of tensors that a map depends on; their vectors are not the last."""
        keys = set()
        for step in reversed(self.steps):
            if any(_is_map(self.old[key]) or key in keys for key in step.outputs):
                keys.update(step.inputs)
        return keys

    def _is_last_map(self, step):
        """Whether a step turns a map into a vector."""
        if len(step.inputs) != 1 or len(step.outputs) != 1:
            return False
        (before,), (after,) = step.inputs, step.outputs
        is_vector = len(self.old[after].shape) == 2 or not _is_map(self.old[after])
        operation = step.operation
        kinds = (*_FLATTENING, *_POOLINGS)
        is_known = isinstance(operation, kinds) or _is_operation(
            operation, {"Reshape", *_POOLING_OPERATIONS}
        )
        return len(self.old[before].shape) == 4 and is_vector and is_known

    # The new graph.

    def _repeat(self, step):
        """Calls a copy of a layer before the last map, or beside it."""
        operation = step.operation
        if isinstance(operation, MinimumImageSize):
            return self._pass_on(step)
        after = [self.old[key] for key in step.outputs]
        before = [self.old[key] for key in step.inputs]
        ranks = [len(tensor.shape) for tensor in before]
        if 4 in ranks and any(len(tensor.shape) != 4 for tensor in after):
            pools = isinstance(operation, tuple(_POOLINGS)) or _is_operation(
                operation, set(_POOLING_OPERATIONS)
            )
            if not pools:
                raise self._refusal(
                    operation,
                    f"turns a map into the shape {tuple(after[0].shape)}, or into a "
                    "vector from which a later layer makes a map; only Flatten and "
                    "Reshape to a vector, global pooling, and `keras.ops.mean` over "
                    "rows and columns can be converted",
                )
        self._call(step, self._copy(operation))

    def _convert_last_map(self, step):
        """`Flatten` is absorbed by the next layer; global pooling gets a window."""
        operation = step.operation
        (before,), (after,) = step.inputs, step.outputs
        _, *window, channels = self.old[before].shape
        window = tuple(window)
        (larger_rows, larger_columns) = self.larger[before].shape[1:3]
        if larger_rows <= window[0] or larger_columns <= window[1]:
            raise self._refusal(
                operation,
                f"gets a map of {window} locations from larger images, too: a layer "
                "before it resizes the image or the map",
            )
        pooling = self._find_pooling(operation)
        if pooling is None:
            size = window[0] * window[1] * channels
            ordered = getattr(operation, "data_format", None) != "channels_first"
            if tuple(self.old[after].shape[1:]) != (size,) or not ordered:
                raise self._refusal(
                    operation, "must flatten the map to one vector, channels last"
                )
            self._pass_on(step)
            self.windows[after] = window
            return
        if window == _WHOLE:
            self._pass_on(step)
        else:
            layer = pooling(
                window,
                strides=1,
                data_format="channels_last",
                dtype=getattr(operation, "dtype_policy", None),
                name=operation.name,
            )
            self._call_on(step, layer, self.new[before], self.larger[before])
        self.windows[after] = _WHOLE

    def _find_pooling(self, operation):
        """The class of layers that replaces global pooling; None for `Flatten`."""
        for kind, replacement in _POOLINGS.items():
            if isinstance(operation, kind):
                if operation.data_format == "channels_first":
                    raise self._refusal(operation, "must have channels last")
                return replacement
        if not _is_operation(operation, set(_POOLING_OPERATIONS)):
            return None
        axes = operation.axis
        if axes is None or sorted(axis % 4 for axis in axes) != [1, 2]:
            raise self._refusal(
                operation, "must be over rows and columns, axes 1 and 2"
            )
        return _POOLING_OPERATIONS[type(operation).__name__]

    def _convert_vector(self, step):
        """A layer after the last map."""
        operation = step.operation
        if any(key not in self.windows for key in step.inputs):
            raise self._refusal(operation, "combines the vector with a map")
        window, *others = {self.windows[key] for key in step.inputs}
        if others:
            raise self._refusal(operation, "combines vectors of several maps")
        if isinstance(operation, layers.Dense):
            return self._convert_dense(step, window)
        if self._keeps_vector(step, window):
            self._pass_on(step)
        elif self._is_elementwise(step):
            self._call(step, self._copy(operation))
        elif isinstance(operation, _CHANNEL_LAYERS) or _is_operation(
            operation, {"Softmax", "LogSoftmax", "Concatenate"}
        ):
            self._check_channels(operation, window)
            self._call(step, self._copy_on_last_axis(operation))
        elif isinstance(operation, layers.Conv2D) and window == _WHOLE:
            self._call(step, self._copy(operation))
        else:
            raise self._refusal(
                operation,
                "follows the last map, where only dense layers, convolutions of 1 × 1, "
                "activations, dropout, sums and products of vectors, batch and layer "
                "norms can be converted",
            )
        for key in step.outputs:
            self.windows[key] = window

    def _convert_dense(self, step, window):
        layer = step.operation
        if getattr(layer, "quantization_mode", None) is not None:
            raise self._refusal(layer, "is quantized; convert the model first")
        key = (id(layer), window)
        (before,) = step.inputs
        if key not in self._copies:
            config = layer.get_config()
            shared = (
                *("name", "trainable", "dtype", "activation", "use_bias"),
                *("kernel_initializer", "bias_initializer", "kernel_regularizer"),
                *("bias_regularizer", "activity_regularizer", "kernel_constraint"),
                "bias_constraint",
            )
            convolution = layers.Conv2D.from_config(
                {
                    **{name: config[name] for name in shared if name in config},
                    "filters": layer.units,
                    "kernel_size": window,
                    "data_format": "channels_last",
                }
            )
            convolution.build(self.new[before].shape)
            kernel = keras.ops.convert_to_numpy(layer.kernel)
            weights = [kernel.reshape(convolution.kernel.shape)]
            if layer.use_bias:
                weights.append(keras.ops.convert_to_numpy(layer.bias))
            convolution.set_weights(weights)
            self._copies[key] = convolution
        self._call_on(step, self._copies[key], self.new[before], self.larger[before])
        self.windows[step.outputs[0]] = _WHOLE

    def _keeps_vector(self, step, window):
        """Whether a step only changes the shape of a vector, such as to (1, 1, C)."""
        kinds = (*_FLATTENING, *_POOLINGS)
        names = {"Reshape", "Squeeze", "ExpandDims", *_POOLING_OPERATIONS}
        if not isinstance(step.operation, kinds) and not _is_operation(
            step.operation, names
        ):
            return False
        (before,), (after,) = step.inputs, step.outputs
        _, *kept = self.old[after].shape
        channels = self.old[before].shape[-1]
        return kept in ([channels], [1, 1, channels])

    def _is_elementwise(self, step):
        operation = step.operation
        if isinstance(operation, layers.Dropout) and operation.noise_shape is not None:
            raise self._refusal(operation, "must have no `noise_shape`")
        if isinstance(operation, layers.Activation) and not _is_elementwise_function(
            operation.activation
        ):
            return self.windows[step.inputs[0]] == _WHOLE
        if isinstance(operation, (*_ELEMENTWISE_LAYERS, *_MERGES)):
            return True
        if not _is_operation(operation, _ELEMENTWISE_OPERATIONS):
            return False
        # A constant with one number per feature fits a map if features are channels.
        args, kwargs = step.arguments(self.old)
        constants = [
            value
            for value in keras.tree.flatten((args, kwargs))
            if not isinstance(value, keras.KerasTensor) and getattr(value, "ndim", 0)
        ]
        return not constants or self.windows[step.inputs[0]] == _WHOLE

    def _check_channels(self, operation, window):
        if window != _WHOLE:
            raise self._refusal(
                operation,
                "has weights for the locations of the flattened map, or sums over "
                "them; only a dense layer, activations and dropout may directly follow "
                "the map",
            )
        axis = getattr(operation, "axis", -1)
        axes = axis if isinstance(axis, list | tuple) else [axis]
        if any(each not in (-1, 1) for each in axes):
            raise self._refusal(operation, "must be over the last axis")

    def _copy_on_last_axis(self, operation):
        """A copy in which axis 1 of a vector becomes the last axis of a map."""
        config = operation.get_config()
        if isinstance(config.get("axis"), list | tuple):
            config["axis"] = [-1]
        elif "axis" in config:
            config["axis"] = -1
        return self._copy(operation, config)

    def _copy(self, operation, config=None):
        """A new layer of the same configuration, once for all of its calls."""
        key = id(operation)
        if key not in self._copies:
            config = operation.get_config() if config is None else config
            self._copies[key] = type(operation).from_config(config)
        return self._copies[key]

    def _pass_on(self, step):
        (before,), (after,) = step.inputs, step.outputs
        for tensors in (self.new, self.larger):
            tensors[after] = tensors[before]

    def _call(self, step, operation):
        """Calls a copy with the arguments of the original, and copies its weights."""
        original = step.operation
        try:
            args, kwargs = step.arguments(self.new)
            self._keep(self.new, step, operation(*args, **kwargs))
            if getattr(original, "weights", None):
                operation.set_weights(original.get_weights())
            args, kwargs = step.arguments(self.larger)
            larger = operation.compute_output_spec(*args, **kwargs)
        except (ValueError, TypeError) as error:
            raise self._refusal(
                original, f"does not fit a larger image: {error}"
            ) from error
        self._keep(self.larger, step, larger)

    def _call_on(self, step, layer, new, larger):
        (after,) = step.outputs
        self.new[after] = layer(new)
        self.larger[after] = layer.compute_output_spec(larger)

    def _refusal(self, operation, why):
        return ValueError(
            f"`model` cannot be made convolutional: its layer `{operation.name}` "
            f"({type(operation).__name__}) {why}. Received: model={self.model.name!r}"
        )


def _is_operation(operation, names):
    """Whether an operation is one of `keras.ops` with one of these names."""
    return not isinstance(operation, layers.Layer) and type(operation).__name__ in names


def _is_map(tensor):
    """Whether a tensor has rows and columns, with more than one location."""
    return len(tensor.shape) == 4 and tuple(tensor.shape[1:3]) != _WHOLE


def _is_elementwise_function(activation):
    name = getattr(activation, "__name__", "")
    return "softmax" not in name and "sparse" not in name
