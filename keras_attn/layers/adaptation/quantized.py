"""A quantized kernel.

Legend: D width of the inputs, E width of the outputs, G rows of a block.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_choice, check_positive

MODES = ("int8", "int4")
_LARGEST = {"int8": 127, "int4": 7}


class QuantizedKernel(keras.layers.Layer):
    """`W ≈ scale · codes`, where codes are integers of 8 or 4 bits.

    int8 has a scale for each column of W, int4 for each block of rows of each column.
    Codes are rounded by the largest absolute value: no number is cut off. Products are
    computed with the numbers that the codes stand for, in the dtype of the layer, so
    that activations keep their precision; no gradient reaches the codes.

    Args:
        shape: Shape of W, (…, D, E).
        mode: "int8" or "int4".
        block_size: G, an even number of rows with one scale, for int4. None = one scale
            for each column.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Attributes:
        codes: int8, of all rows but the last axis: (rows, E), or in int4, with the last
            block filled up with zeros, (rows / 2, E): the rows 2i and 2i + 1 in the
            low and the high bits of row i.
        scale: float32, (blocks, E).
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
        if block_size is not None:
            if mode != "int4":
                raise ValueError(
                    "`block_size` is for int4; int8 has one scale for each column. "
                    f"Received: block_size={block_size!r}, mode={mode!r}"
                )
            if check_positive("block_size", block_size) % 2:
                raise ValueError(
                    "`block_size` must be even, because two codes of 4 bits are one "
                    f"byte. Received: block_size={block_size}"
                )
        self.shape, self.mode, self.block_size = tuple(shape), mode, block_size
        self.num_rows, self.num_blocks, stored = _sizes(shape, mode, block_size)
        columns, fixed = self.shape[-1], {"trainable": False, "autocast": False}
        codes, scales = (stored, columns), (self.num_blocks, columns)
        self.codes = self.add_weight(codes, "zeros", "int8", name="codes", **fixed)
        self.scale = self.add_weight(scales, "ones", "float32", name="scale", **fixed)
        self.built = True

    def assign(self, value) -> None:
        """Quantizes W and keeps the codes and their scales."""
        columns = self.shape[-1]
        rows = np.asarray(value, "float32").reshape(-1, columns)
        is_int4 = self.mode == "int4"
        if is_int4:
            missing = 2 * self.codes.shape[0] - len(rows)
            rows = np.pad(rows, ((0, missing), (0, 0)))
        blocks = rows.reshape(self.num_blocks, -1, columns)
        largest = _LARGEST[self.mode]
        scale = np.abs(blocks).max(1) / largest
        # A block of zeros has any scale but 0.
        scale = np.where(scale > 0, scale, 1).astype("float32")
        codes = np.clip(np.rint(blocks / scale[:, None]), -largest, largest)
        codes = codes.reshape(-1, columns).astype("int8")
        if is_int4:
            codes = (codes[1::2] << 4) | (codes[0::2] & 15)
        self.codes.assign(codes)
        self.scale.assign(scale)

    def product(self, rows):
        """`x W`: (..., D) -> (..., E)."""
        if len(self.shape) != 2:
            return ops.matmul(rows, self.value_as_tensor())
        if self.mode == "int8":
            # One scale a column, so it can follow the product.
            outputs = ops.matmul(rows, ops.cast(self.codes, self.compute_dtype))
            return ops.multiply(outputs, self._cast_scale())
        # The even and the odd rows of W apart: interleaving them takes longer.
        missing = 2 * self.codes.shape[0] - self.num_rows
        if missing:
            rows = ops.pad(rows, [(0, 0)] * (len(rows.shape) - 1) + [(0, missing)])
        even, odd = self._int4_rows()
        return ops.add(
            ops.matmul(rows[..., 0::2], even), ops.matmul(rows[..., 1::2], odd)
        )

    def transposed_product(self, rows):
        """`x Wᵀ`: (..., E) -> (..., D)."""
        if self.mode == "int8":
            rows = ops.multiply(rows, self._cast_scale()[0])
            codes = ops.cast(self.codes, self.compute_dtype)
            return ops.matmul(rows, ops.transpose(codes))
        parts = [ops.matmul(rows, ops.transpose(x)) for x in self._int4_rows()]
        outputs = ops.stack(parts, axis=-1)
        outputs = ops.reshape(outputs, (*ops.shape(rows)[:-1], -1))
        return outputs[..., : self.num_rows]

    def kernel_rows(self, indices):
        """Rows of W: integers (...) -> (..., E)."""
        scale = self._cast_scale()
        if self.mode == "int8":
            codes = ops.take(self.codes, indices, axis=0)
            return ops.multiply(ops.cast(codes, self.compute_dtype), scale[0])
        low, high = _unpacked(
            ops.take(self.codes, ops.floor_divide(indices, 2), axis=0)
        )
        is_high = ops.expand_dims(ops.equal(ops.mod(indices, 2), 1), -1)
        codes = ops.cast(ops.where(is_high, high, low), self.compute_dtype)
        if self.num_blocks == 1:
            return ops.multiply(codes, scale[0])
        blocks = ops.take(scale, ops.floor_divide(indices, self.block_size), axis=0)
        return ops.multiply(codes, blocks)

    def convolution(self, function, inputs):
        """The convolution with W."""
        return function(inputs, self.value_as_tensor())

    def value_as_tensor(self):
        """W, (…, D, E), in the dtype of the layer."""
        if self.mode == "int8":
            rows = ops.cast(self.codes, self.compute_dtype)
            rows = ops.multiply(rows, self._cast_scale())
        else:
            rows = ops.stack(self._int4_rows(), axis=1)
            rows = ops.reshape(rows, (-1, self.shape[-1]))[: self.num_rows]
        return ops.reshape(rows, self.shape)

    def _cast_scale(self):
        return ops.cast(self.scale, self.compute_dtype)

    def _int4_rows(self):
        """The even and the odd rows of W, each (stored, E)."""
        stored, columns = self.codes.shape
        blocks = (self.num_blocks, stored // self.num_blocks, columns)
        scale, rows = ops.expand_dims(self._cast_scale(), 1), []
        for codes in _unpacked(self.codes):
            codes = ops.reshape(ops.cast(codes, self.compute_dtype), blocks)
            rows.append(ops.reshape(ops.multiply(codes, scale), (stored, columns)))
        return rows


def count_bytes(
    shape: tuple[int, ...], mode: str, block_size: int | None = None
) -> int:
    """Bytes of the codes and scales of a `QuantizedKernel`."""
    _, blocks, stored = _sizes(shape, mode, block_size)
    return shape[-1] * (stored + 4 * blocks)


def _sizes(shape, mode, block_size):
    """Rows of W, blocks of rows, and rows of the codes."""
    rows = math.prod(shape[:-1])
    if mode == "int8":
        return rows, 1, rows
    size = min(block_size or rows, rows)
    size += size % 2
    blocks = -(-rows // size)
    return rows, blocks, blocks * size // 2


def _unpacked(pairs):
    """The codes of the low and of the high bits; a shift repeats the sign."""
    return ops.right_shift(ops.left_shift(pairs, 4), 4), ops.right_shift(pairs, 4)
