"""A dense projection whose columns may have named parts.

Legend: B batch, T length, D width of the inputs, E width of the outputs, N heads, H
size of each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.checks.argument_types import (
    Activation,
    Constraint,
    Initializer,
    Regularizer,
)
from keras_attn.checks.arguments import check_positive
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.adaptation.kernel_layer import KernelLayer
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy, independent_parts
from keras_attn.ops import merge_heads, project, split_heads
from keras_attn.ops.weight_products import kernel_value, transposed_product


@keras.saving.register_keras_serializable("keras_attn")
class Projection(KernelLayer, BaseLayer):
    """`f(x W + b)` over the last axis.

    One large product is faster than three small ones, so the columns of W may be those
    of several projections of the same inputs, such as queries, keys and values. Each
    part has initial values of its own, and is a target of LoRA by its name.

    A layer of attention calls the methods, which cost less than a call of the layer.

    Args:
        parts: Name of each part to its number of columns, or E of a single part.
        use_bias: Whether to add b.
        activation: Of the outputs, a name or a function. Default: none.
        kernel_initializer: For each part of W, as if it were a variable of its own.
        bias_initializer: For b.
        kernel_regularizer: For W.
        bias_regularizer: For b.
        kernel_constraint: For W.
        bias_constraint: For b.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (..., D).

    Returns:
        (..., E).

    Raises:
        ValueError: If a width is not a positive integer.
    """

    def __init__(
        self,
        parts: int | Mapping[str, int],
        *,
        use_bias: bool = True,
        activation: Activation | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.parts = dict(parts) if isinstance(parts, Mapping) else {"": parts}
        for name, width in self.parts.items():
            check_positive(f"parts[{name!r}]" if name else "parts", width)
        self.use_bias = use_bias
        self.activation = None if activation is None else get_activation(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property
    def width(self) -> int:
        """E."""
        return sum(self.parts.values())

    def kernel_parts(self):
        """Name to columns of each part."""
        ends = np.cumsum([*self.parts.values()]).tolist()
        return dict(zip(self.parts, zip([0, *ends], ends, strict=False), strict=True))

    def build(self, inputs_shape):
        if len(self.parts) == 1:
            initializer = independent_copy(self.kernel_initializer, self.name)
        else:
            initializer = independent_parts(self.kernel_initializer, self.parts)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(inputs_shape[-1], self.width),
            initializer=initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.width,),
                initializer=independent_copy(
                    self.bias_initializer, f"{self.name}_bias"
                ),
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs):
        outputs = project(inputs, self.kernel, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def project(self, inputs):
        """`f(x W + b)`, as a call of the layer.

        Args:
            inputs: (..., D).

        Returns:
            (..., E).
        """
        outputs = self.call(inputs)
        if self.activity_regularizer is not None:
            # As Keras does in a call of the layer.
            loss = self.activity_regularizer(outputs)
            batch = ops.cast(ops.shape(outputs)[0], loss.dtype)
            self.add_loss(ops.divide_no_nan(loss, batch))
        return outputs

    def project_back(self, outputs):
        """`y Wᵀ`.

        Args:
            outputs: (..., E).

        Returns:
            (..., D).
        """
        shape = ops.shape(outputs)
        # Flattened, as in `ops.project`.
        inputs = transposed_product(ops.reshape(outputs, (-1, shape[-1])), self.kernel)
        return ops.reshape(inputs, (*shape[:-1], self.kernel.shape[0]))

    def value(self):
        """W as one tensor, with its LoRA weights, (D, E)."""
        return kernel_value(self.kernel)

    def heads(self, inputs, counts: Sequence[int]) -> Sequence[Any]:
        """The parts of `x W + b`, each divided into heads.

        Args:
            inputs: (B, T, D).
            counts: Number of heads of each part.

        Returns:
            For each part (B, N, T, H).
        """
        if parts := [*self._parts_by_device()]:
            return [
                split_heads(project(inputs, *part), count)
                for part, count in zip(parts, counts, strict=True)
            ]
        outputs = self.project(inputs)
        if len(counts) == 1:
            return [split_heads(outputs, counts[0])]
        if len({*counts}) == len({*self.parts.values()}) == 1:
            batch, length, _ = ops.shape(outputs)
            size = self.width // len(counts) // counts[0]
            outputs = ops.reshape(
                outputs, (batch, length, len(counts), counts[0], size)
            )
            outputs = ops.transpose(outputs, (2, 0, 3, 1, 4))  # (parts, B, N, T, H)
            # Splitting along the first axis does not copy.
            return ops.unstack(outputs, len(counts), axis=0)
        ends = np.cumsum([*self.parts.values()])[:-1].tolist()
        parts = ops.split(outputs, ends, axis=-1)
        return [split_heads(x, n) for x, n in zip(parts, counts, strict=True)]

    def merge_heads(self, heads):
        """`x W + b` of heads side by side.

        Args:
            heads: (B, N, T, H), N·H = D.

        Returns:
            (B, T, E).
        """
        return self.project(merge_heads(heads))

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], self.width)

    def _parts_by_device(self) -> Iterator[tuple[Any, Any]]:
        """Kernel and bias of each part, with its heads divided among devices.

        W is (D, 3·N·H): all queries, then all keys, then all values. A device holds one
        contiguous piece of an array, and no piece of this one has the query, key and
        value of one head. So `models.layout_map` divides the stored kernel by rows, and
        here its parts are divided again, by columns, which are heads: devices exchange
        pieces of the kernel once per use, and no queries, keys or values.

        Yields:
            Nothing unless the current `keras.distribution` has a layout for each part,
            or if the kernel is not a variable (LoRA weights, integers).
        """
        distribution = keras.distribution.distribution()
        is_plain = isinstance(self.kernel, keras.Variable) and not (
            self.activation or self.activity_regularizer
        )
        if distribution is None or not is_plain:
            return
        distribute_tensor = keras.distribution.distribute_tensor
        path = self.kernel.path
        layouts = {x: distribution.get_tensor_layout(f"{path}/{x}") for x in self.parts}
        if None in layouts.values():
            return
        for name, (start, stop) in self.kernel_parts().items():
            part = ops.convert_to_tensor(self.kernel)[:, start:stop]
            # First as it is stored; otherwise XLA divides the whole kernel by columns,
            # and then moves what is on the wrong device for this part.
            stored = distribution.get_variable_layout(self.kernel)
            part = distribute_tensor(distribute_tensor(part, stored), layouts[name])
            bias = None
            if self.bias is not None:
                bias = distribute_tensor(
                    ops.convert_to_tensor(self.bias)[start:stop],
                    distribution.get_variable_layout(self.bias),
                )
            yield part, bias


# Options of a projection that the layer around it has, if it has them.
_SHARED = {
    "kernel_initializer": "kernel_initializer",
    "bias_initializer": "bias_initializer",
    "kernel_regularizer": "kernel_regularizer",
    "bias_regularizer": "bias_regularizer",
    "activity_regularizer": "_activity_regularizer",
    "kernel_constraint": "kernel_constraint",
    "bias_constraint": "bias_constraint",
}


def add_projection(
    layer, name: str, inputs_shape, parts, use_bias: bool = True, **options
) -> Projection:
    """A new projection inside a layer, which is being built.

    Initializers, regularizers and constraints are the layer's.

    Args:
        layer: The layer.
        name: Name of the projection.
        inputs_shape: Shape of its inputs.
        parts: As for `Projection`.
        use_bias: As for `Projection`.
        **options: As for `Projection`, in place of the layer's.
    """
    own = {x: getattr(layer, y) for x, y in _SHARED.items() if hasattr(layer, y)}
    projection = Projection(
        parts,
        use_bias=use_bias,
        dtype=layer.dtype_policy,
        name=name,
        **{**own, **options},
    )
    projection.build(inputs_shape)
    return projection
