"""Exact attention in memory that grows with the length, not with its square.

The scores of a block of queries and a block of keys exist at one time. A running
maximum and sum of each query make their softmax exact, in any order (Milakov and
Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682). The gradient
computes the scores again from the outputs and the logarithm of that sum (Dao et al.
2022, arXiv:2205.14135).

Legend: B batch, T queries, S keys, N heads, G key/value heads, H key size, V value
size, C queries or keys of a block.
"""

import functools
from typing import Any

from keras import ops

from keras_attn.kernels.custom_gradient import NO_SECOND_ORDER, with_gradient
from keras_attn.kernels.dropout import dropout, fold_in
from keras_attn.kernels.loop import (
    add_to_block,
    sequential_loop,
    sequential_scan,
    stack_blocks,
    zero_blocks,
)
from keras_attn.kernels.precision import at_least_float32, at_least_float32_dtype
from keras_attn.kernels.runtime import (
    has_fixed_shape,
    is_compiled_by_xla,
    is_tensorflow_on_cpu,
    is_tracing,
)
from keras_attn.kernels.xla import traced_once, xla_fused

# Queries, and keys, of a block. XLA is fastest with the smaller ones; without it their
# operations are too small for two cores (TensorFlow 2.21).
_BLOCK_SIZE, _COMPILED_BLOCK_SIZE = 512, 256
# A masked score: finite, so that a difference of two is not NaN.
_MASKED = -1e30


def are_blocks_compiled() -> bool:
    """Whether XLA compiles the passes over the blocks, as in a graph on CPUs."""
    return is_compiled_by_xla() or (is_tensorflow_on_cpu() and is_tracing())


def blocked_attention(
    query,
    key,
    value,
    *,
    scale,
    bias=None,
    mask=None,
    padding_mask=None,
    is_causal=False,
    rate=0.0,
    seed=None,
    block_size=None,
) -> Any:
    """`dropout(softmax(scale · q kᵀ + bias)) v` for each head, block by block.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        scale: Factor of the scores.
        bias: Added to the scores, (B, N, T, S) or 1 along any axis; or None.
        mask: Boolean, (B, N, T, S) or 1 along any axis, True = attend; or None.
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only. Blocks of later keys
            are skipped.
        rate: Probability of dropping an attention probability.
        seed: Two integers for the dropout, if there is any.
        block_size: C, queries of a block and keys of a block. None = the fastest one,
            and no more padding than needed.

    The gradient has a gradient too, which holds all scores; see `with_gradient`.

    Returns:
        (B, N, T, V), in the dtype of `value`. A query whose keys are all masked gets
        zeros.
    """
    optional = {"bias": bias, "mask": mask, "padding": padding_mask, "seed": seed}
    given = {name: x for name, x in optional.items() if x is not None}
    tensors = (query, key, value)
    is_fused = all(has_fixed_shape(tensor) for tensor in tensors)
    is_compiled = is_fused and are_blocks_compiled()
    largest = _COMPILED_BLOCK_SIZE if is_compiled else _BLOCK_SIZE
    if block_size is None:
        sizes = [_block_size(x.shape[2], largest) for x in (query, key)]
    else:
        sizes = [block_size, block_size]
    forward, backward, whole = _passes(
        scale, is_causal, rate, *sizes, tuple(given), is_fused
    )
    # Copied: an eager mask becomes a tensor of this graph, which the gradient's knows.
    others = [ops.copy(x) for x in given.values()]
    # Of the optional tensors only the bias has a gradient.
    biases, others = (others[:1], others[1:]) if "bias" in given else ([], others)
    return with_gradient(
        lambda *inputs: forward(*inputs, *others),
        lambda *tensors: backward(*tensors, *others),
        lambda *inputs: whole(*inputs, *others),
        *tensors,
        *biases,
    )


@functools.cache
def _passes(scale, is_causal, rate, rows, columns, given, is_fused):
    """The functions of the forward and the backward pass.

    They are the same ones for the same options, so that XLA compiles each once.
    """

    def call_of(query, key, value, *tensors, rows=rows, columns=columns):
        optional = dict(zip(given, tensors, strict=True))
        return _Call(
            query, key, value, scale, is_causal, rate, rows, columns, **optional
        )

    def forward(*inputs):
        return call_of(*inputs).forward()

    def backward(outputs, log_sums, upstream, *inputs):
        return call_of(*inputs).backward(outputs, log_sums, upstream)

    def whole(query, key, value, *tensors):
        rows, columns = ops.shape(query)[2], ops.shape(key)[2]
        return call_of(query, key, value, *tensors, rows=rows, columns=columns).whole()

    compiled = xla_fused if is_fused else traced_once
    return compiled(forward), compiled(backward), whole


class _Call:
    """The tensors and sizes of one call, and the two passes over its blocks."""

    def __init__(
        self,
        query,
        key,
        value,
        scale,
        is_causal,
        rate,
        rows,
        columns,
        *,
        bias=None,
        mask=None,
        padding=None,
        seed=None,
    ):
        self.batch, self.heads, self.queries, self.key_dim = ops.shape(query)
        _, self.groups, self.keys, self.value_dim = ops.shape(value)
        if rows is None:
            rows = _unknown_block_size(self.queries)
        if columns is None:
            columns = _unknown_block_size(self.keys)
        self.scale, self.is_causal, self.rate = scale, is_causal, rate
        # Without slices, which XLA cannot differentiate twice.
        self.is_whole = False
        # Queries and keys of a block.
        self.rows, self.columns, self.seed = rows, columns, seed
        self.query_blocks = -(-self.queries // rows)
        self.key_blocks = -(-self.keys // columns)
        self.dtype = at_least_float32_dtype(value.dtype)
        # Whole blocks of each.
        self.query = pad_axis(query, 2, rows)
        self.key, self.value = (pad_axis(x, 2, columns) for x in (key, value))
        self.bias_shape: Any = None if bias is None else ops.shape(bias)
        self.bias: Any = None if bias is None else self._pad_pairs(bias)
        self.mask = None if mask is None else self._pad_pairs(ops.cast(mask, "bool"))
        self.real = self._real_keys(padding)

    def forward(self):
        """The outputs, (B, N, T, V), and the logarithms of the sums, (B, N, T', 1).

        T' is T rounded up to whole blocks.
        """
        row = (self.batch, self.heads, self.rows)

        def attend(i):
            queries = self._scaled(self._queries(self.query, i))

            def add_keys(j, maximum, total, mixed):
                keys, values = self._keys(self.key, j), self._keys(self.value, j)
                scores, visible = self._scores(queries, keys, i, j)
                higher = ops.maximum(maximum, ops.max(scores, -1, keepdims=True))
                weights = _visible(ops.exp(ops.subtract(scores, higher)), visible)
                shrinkage = ops.exp(ops.subtract(maximum, higher))
                total = total * shrinkage + ops.sum(weights, -1, keepdims=True)
                weights = ops.cast(self._drop(weights, i, j), self.value.dtype)
                mixture = at_least_float32(self._per_query(weights, values))
                return higher, total, mixed * shrinkage + mixture

            maximum, total, mixed = sequential_loop(
                add_keys,
                (
                    ops.full((*row, 1), _MASKED, self.dtype),
                    ops.zeros((*row, 1), self.dtype),
                    ops.zeros((*row, self.value_dim), self.dtype),
                ),
                self._visible_blocks(i),
            )
            # A row without visible keys has a sum of zero.
            total = ops.where(ops.equal(total, 0), ops.ones_like(total), total)
            outputs = ops.cast(ops.divide(mixed, total), self.value.dtype)
            return (), (outputs, ops.add(maximum, ops.log(total)))

        _, (outputs, log_sums) = sequential_scan(
            attend, (), self.query_blocks, (self.value.dtype, self.dtype)
        )
        return join_blocks(outputs, self.queries), join_blocks(log_sums)

    def backward(self, outputs, log_sums, upstream):
        """The gradients of query, key, value and bias, from the outputs' gradient."""
        query, key, value, bias = self.query, self.key, self.value, self.bias
        # Σ_s p_s ∂p_s = o · ∂o: what the softmax takes off each gradient.
        product = ops.multiply(at_least_float32(upstream), at_least_float32(outputs))
        share = pad_axis(ops.sum(product, -1, keepdims=True), 2, self.rows)
        upstream = pad_axis(upstream, 2, self.rows)
        row = (self.batch, self.heads, self.rows)
        of_keys = (self.batch, self.groups, self.columns)
        of_pair = None if bias is None else ops.shape(self._pair_block(bias, 0, 0))

        def of_queries(i, key_gradients, value_gradients):
            queries = self._scaled(self._queries(query, i))
            above = self._queries(upstream, i)
            log_sum, shares = self._queries(log_sums, i), self._queries(share, i)

            def add_keys(j, gradient, key_gradients, value_gradients, *biases):
                keys, values = self._keys(key, j), self._keys(value, j)
                scores, visible = self._scores(queries, keys, i, j)
                weights = _visible(ops.exp(ops.subtract(scores, log_sum)), visible)
                dropped = ops.cast(self._drop(weights, i, j), value.dtype)
                change = at_least_float32(
                    self._per_query(above, ops.swapaxes(values, -1, -2))
                )
                change = ops.multiply(
                    weights, ops.subtract(self._drop(change, i, j), shares)
                )
                if biases:
                    biases = (add_to_block(biases[0], j, self._like_bias(change)),)
                change = ops.cast(change, query.dtype)
                gradient = gradient + at_least_float32(self._per_query(change, keys))
                return (
                    gradient,
                    add_to_block(key_gradients, j, self._per_key(change, queries)),
                    add_to_block(value_gradients, j, self._per_key(dropped, above)),
                    *biases,
                )

            start = [ops.zeros((*row, self.key_dim), self.dtype)]
            start += [key_gradients, value_gradients]
            if bias is not None:
                start.append(zero_blocks(self.key_blocks, of_pair, self.dtype))
            gradient, of_key, of_value, *of_bias = sequential_loop(
                add_keys, tuple(start), self._visible_blocks(i)
            )
            gradient = ops.cast(gradient * self.scale, query.dtype)
            return (of_key, of_value), (gradient, *map(stack_blocks, of_bias))

        state, outputs = sequential_scan(
            of_queries,
            (
                zero_blocks(self.key_blocks, (*of_keys, self.key_dim), self.dtype),
                zero_blocks(self.key_blocks, (*of_keys, self.value_dim), self.dtype),
            ),
            self.query_blocks,
            (query.dtype,) if bias is None else (query.dtype, self.dtype),
        )
        of_key, of_value = (join_blocks(stack_blocks(x), self.keys) for x in state)
        gradients = (
            join_blocks(outputs[0], self.queries),
            ops.cast(of_key, key.dtype),
            ops.cast(of_value, value.dtype),
        )
        if bias is None:
            return gradients
        return (*gradients, self._joined_pairs(outputs[1]))

    def whole(self):
        """The outputs by all scores at once, in a single pair of blocks."""
        if self.seed is not None:
            raise ValueError(f"{NO_SECOND_ORDER} Received: dropout={self.rate}")
        self.is_whole = True
        scores, visible = self._scores(self._scaled(self.query), self.key, 0, 0)
        weights = ops.cast(_visible(ops.softmax(scores), visible), self.value.dtype)
        return self._per_query(weights, self.value)

    def _pad_pairs(self, inputs):
        """(B, N, T, S) of whole blocks along the axes T and S, unless they are 1."""
        for axis, size in ((2, self.rows), (3, self.columns)):
            if inputs.shape[axis] != 1:
                inputs = pad_axis(inputs, axis, size)
        return inputs

    def _real_keys(self, padding_mask):
        """(B, 1, 1, S') or (1, 1, 1, S'), False for padding; None without any."""
        real = None
        if not isinstance(self.keys, int) or self.keys % self.columns:
            end = self.key_blocks * self.columns
            real = ops.less(ops.arange(end, dtype="int32"), self.keys)[None]
        if padding_mask is not None:
            given = pad_axis(ops.cast(padding_mask, "bool"), 1, self.columns)
            real = given if real is None else ops.logical_and(given, real)
        return None if real is None else real[:, None, None, :]

    def _scaled(self, queries):
        return ops.multiply(queries, ops.cast(self.scale, queries.dtype))

    def _queries(self, inputs, i):
        """The rows of a block of queries in (B, N, T, ·)."""
        return slice_axes(inputs, {2: (i, self.rows)})

    def _keys(self, inputs, j):
        """The rows of a block of keys in (B, G, S, ·)."""
        return slice_axes(inputs, {2: (j, self.columns)})

    def _pair_block(self, inputs, i, j):
        """Rows and columns of one pair of blocks, unless there is only one."""
        if self.is_whole:
            return inputs
        blocks = {2: (i, self.rows), 3: (j, self.columns)}
        return slice_axes(
            inputs, {axis: x for axis, x in blocks.items() if inputs.shape[axis] != 1}
        )

    def _visible_blocks(self, i):
        """The number of blocks of keys that the queries of a block may attend to."""
        if not self.is_causal:
            return self.key_blocks
        last = (i + 1) * self.rows
        return ops.minimum(-(-last // self.columns), self.key_blocks)

    def _scores(self, queries, keys, i, j):
        """Scores of a pair of blocks, (B, N, C, C), and which are not masked."""
        scores = self._per_query(queries, ops.swapaxes(keys, -1, -2))
        scores = at_least_float32(scores)
        if self.bias is not None:
            added = ops.cast(self._pair_block(self.bias, i, j), scores.dtype)
            # On TensorFlow `ops.add` takes a bias (1, 1, C, 1) for one of the columns.
            scores = scores + ops.maximum(added, -1e9)
        masks = []
        if self.real is not None:
            masks.append(self._pair_block(self.real, i, j))
        if self.mask is not None:
            masks.append(self._pair_block(self.mask, i, j))
        if self.is_causal:
            rows = ops.arange(self.rows, dtype="int32")[:, None]
            columns = ops.arange(self.columns, dtype="int32")[None, :]
            distance = i * self.rows - j * self.columns
            masks.append(ops.less_equal(columns - rows, distance)[None, None])
        if not masks:
            return scores, None
        visible = functools.reduce(ops.logical_and, masks)
        return ops.where(visible, scores, ops.cast(_MASKED, scores.dtype)), visible

    def _drop(self, weights, i, j):
        """Dropout that is the same whenever it is applied to this pair of blocks."""
        if self.seed is None:
            return weights
        index = i * self.key_blocks + j
        return dropout(weights, self.rate, fold_in(self.seed, index))

    def _per_query(self, left, right):
        """(B, N, C, K) x (B, G, K, L) -> (B, N, C, L)."""
        if self.groups == self.heads:
            return ops.matmul(left, right)
        product = ops.matmul(self._grouped(left), right)
        shape = (self.batch, self.heads, self.rows, ops.shape(product)[-1])
        return ops.reshape(product, shape)

    def _per_key(self, left, right):
        """(B, N, T, S)ᵀ x (B, N, T, L) -> (B, G, S, L): summed over queries."""
        left, right = self._grouped(left), self._grouped(right)
        return ops.matmul(ops.swapaxes(left, -1, -2), right)

    def _grouped(self, inputs):
        """(B, N, C, K) -> (B, G, N/G·C, K)."""
        if self.groups == self.heads:
            return inputs
        width = ops.shape(inputs)[-1]
        return ops.reshape(inputs, (self.batch, self.groups, -1, width))

    def _like_bias(self, change):
        """(B, N, C, C), summed over the axes along which the bias is 1."""
        axes = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        return ops.sum(change, axes, keepdims=True) if axes else change

    def _joined_pairs(self, blocks):
        """(T/C, S/C, ·, ·, C, C) -> the shape of the bias."""
        for axis in (0, 1):
            if self.bias.shape[2 + axis] == 1:
                blocks = ops.sum(blocks, axis, keepdims=True)
        rows, columns, batch, heads, height, width = ops.shape(blocks)
        joined = ops.reshape(
            ops.transpose(blocks, (2, 3, 0, 4, 1, 5)),
            (batch, heads, rows * height, columns * width),
        )
        _, _, height, width = self.bias_shape
        return ops.cast(joined[:, :, :height, :width], self.bias.dtype)


def _visible(weights, visible):
    """Weights, and zero where masked."""
    return weights if visible is None else ops.where(visible, weights, 0.0)


def join_blocks(blocks, length=None):
    """(T/C, B, N, C, V) -> (B, N, T, V), cut off at a length."""
    count, batch, heads, size, width = ops.shape(blocks)
    joined = ops.reshape(
        ops.transpose(blocks, (1, 2, 0, 3, 4)), (batch, heads, count * size, width)
    )
    return joined if length is None else joined[:, :, :length]


def pad_axis(inputs, axis, size):
    """Zeros, or False, up to a multiple of a size."""
    length = ops.shape(inputs)[axis]
    missing = -length % size
    if isinstance(missing, int) and missing == 0:
        return inputs
    widths = [(0, 0)] * len(inputs.shape)
    widths[axis] = (0, missing)
    return ops.pad(inputs, widths)


def slice_axes(inputs, blocks):
    """Block number `index` of a size, for some axes: `blocks[axis] = (index, size)`."""
    shape, start = list(ops.shape(inputs)), [0] * len(inputs.shape)
    for axis, (index, size) in blocks.items():
        shape[axis], start[axis] = size, index * size
    return ops.slice(inputs, start, shape)


def _block_size(length, largest):
    """The size of equal blocks, at most the largest, a multiple of 8."""
    if length is None:
        return None
    if length <= largest:
        return -(-length // 8) * 8
    count = -(-length // largest)
    return min(largest, -(-length // (8 * count)) * 8)


def _unknown_block_size(length):
    """The size of blocks of a length that only the graph will know when it runs."""
    return ops.minimum(-(-length // 8) * 8, _BLOCK_SIZE)
