"""A kernel of integers.

Legend: D width of the inputs, E width of the outputs, G rows of a block.
"""

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_choice

MODES = ("int8", "int4")
_LARGEST = {"int8": 127, "int4": 7}


class QuantizedKernel(keras.layers.Layer):
    """`W ≈ scale · codes`, which are integers of 8 or 4 bits.

    int8 has a scale for each column of W, int4 for each block of rows of each column.
    Codes are rounded by the largest absolute value: no number is cut off. Products are
    computed with the numbers that the codes stand for, in the dtype of the layer, so
    that activations keep their precision; no gradient reaches the codes.

    Args:
        shape: Shape of W, (…, D, E).
        mode: "int8" or "int4".
        block_size: G, rows with one scale, for int4; the last block of a column may be
            smaller.
        **kwargs: `name`, `dtype`, … of a Keras layer.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        mode: str,
        block_size: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("mode", mode, MODES)
        self.shape, self.mode, self.block_size = tuple(shape), mode, block_size
        rows = int(np.prod(self.shape[:-1]))
        blocks = 1 if block_size is None else -(-rows // block_size)
        packed = rows if mode == "int8" else -(-rows // 2)
        self.codes = self.add_weight(
            name="codes",
            shape=(packed, self.shape[-1]),
            initializer="zeros",
            dtype="int8" if mode == "int8" else "uint8",
            trainable=False,
            autocast=False,
        )
        self.scale = self.add_weight(
            name="scale",
            shape=(blocks, self.shape[-1]),
            initializer="ones",
            dtype="float32",
            trainable=False,
            autocast=False,
        )
        self.built = True

    @property
    def all_weights(self):
        """The codes and their scales."""
        return self.weights

    def assign(self, value) -> None:
        """Quantizes W and keeps the codes and their scales."""
        rows = np.asarray(value, "float32").reshape(-1, self.shape[-1])
        size = self.block_size or len(rows)
        missing = -len(rows) % size
        blocks = np.pad(rows, ((0, missing), (0, 0))).reshape(-1, size, rows.shape[-1])
        largest = _LARGEST[self.mode]
        scale = np.abs(blocks).max(1) / largest
        # A block of zeros has any scale but 0.
        scale = np.where(scale > 0, scale, 1).astype("float32")
        codes = np.clip(np.rint(blocks / scale[:, None]), -largest, largest)
        codes = codes.reshape(-1, rows.shape[-1])[: len(rows)].astype("int8")
        self.codes.assign(codes if self.mode == "int8" else _packed(codes))
        self.scale.assign(scale)

    def product(self, rows):
        """`x W`: (..., D) -> (..., E)."""
        if self.mode == "int8" and len(self.shape) == 2:
            # One scale a column, so it can follow the product.
            outputs = ops.matmul(rows, ops.cast(self.codes, self.compute_dtype))
            return ops.multiply(outputs, ops.cast(self.scale, self.compute_dtype))
        return ops.matmul(rows, self.value_as_tensor())

    def transposed_product(self, rows):
        """`x Wᵀ`: (..., E) -> (..., D)."""
        return ops.matmul(rows, ops.transpose(self.value_as_tensor()))

    def kernel_rows(self, indices):
        """Rows of W: integers (...) -> (..., E)."""
        scale = ops.cast(self.scale, self.compute_dtype)
        if self.mode == "int8":
            codes = ops.take(self.codes, indices, axis=0)
            return ops.multiply(ops.cast(codes, self.compute_dtype), scale[0])
        pairs = ops.take(self.codes, ops.floor_divide(indices, 2), axis=0)
        low, high = _unpacked(pairs, self.compute_dtype)
        is_high = ops.expand_dims(ops.equal(ops.mod(indices, 2), 1), -1)
        codes = ops.where(is_high, high, low)
        size = self.block_size or self.shape[0]
        blocks = ops.take(scale, ops.floor_divide(indices, size), axis=0)
        return ops.multiply(codes, blocks)

    def convolution(self, function, inputs):
        """The convolution with W."""
        return function(inputs, self.value_as_tensor())

    def value_as_tensor(self):
        """W, (…, D, E), in the dtype of the layer."""
        dtype = self.compute_dtype
        count = int(np.prod(self.shape[:-1]))
        if self.mode == "int8":
            rows = ops.cast(self.codes, dtype)
        else:
            low, high = _unpacked(self.codes, dtype)
            rows = ops.reshape(ops.stack([low, high], axis=1), (-1, self.shape[-1]))
            rows = rows[:count]
        scale = ops.cast(self.scale, dtype)
        if scale.shape[0] > 1:
            scale = ops.repeat(scale, self.block_size, axis=0)[:count]
        return ops.reshape(ops.multiply(rows, scale), self.shape)


def _packed(codes):
    """Two codes of 4 bits a byte: the rows 2i and 2i + 1, the first in the low bits."""
    if len(codes) % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[:1])])
    unsigned = (codes.astype("int16") + 8).astype("uint8")
    return unsigned[0::2] | (unsigned[1::2] << 4)


def _unpacked(bytes_, dtype):
    """The codes of the low and of the high bits."""
    numbers = ops.cast(bytes_, "int32")
    high = ops.floor_divide(numbers, 16)
    low = numbers - 16 * high
    return ops.cast(low - 8, dtype), ops.cast(high - 8, dtype)
