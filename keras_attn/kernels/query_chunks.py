"""Attention a chunk of queries at a time, for any score function.

The scores of a chunk with all keys exist at one time, so memory grows with the number
of keys, not with the product of both lengths. The gradient computes them again (Chen et
al. 2016, arXiv:1604.06174). Where the scores are only products of queries and keys,
`blocked_attention` holds still fewer of them.

Legend: B batch, T queries, S keys, N heads, H key size, V value size, C queries of a
chunk.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_attn.kernels.blocked_attention import join_blocks, pad_axis, slice_axes
from keras_attn.kernels.custom_gradient import NO_SECOND_ORDER, with_gradient
from keras_attn.kernels.loop import sequential_scan
from keras_attn.kernels.precision import at_least_float32, at_least_float32_dtype
from keras_attn.kernels.runtime import has_fixed_shape, is_tensorflow
from keras_attn.kernels.xla import traced_once, xla_fused

# Queries of a chunk: enough for the products to be fast.
_CHUNK_SIZE = 128


def attend_in_chunks(
    function: Callable,
    query,
    shared: Sequence,
    pairs: Sequence = (),
    constants: Sequence = (),
    *,
    size: int | None = None,
) -> Any:
    """The outputs of a function of queries, for a chunk of them at a time.

    Args:
        function: `function(start, queries, shared, pairs, constants)`, where `start` is
            the index of the first query of the chunk, and `queries` are (B, N, C, H);
            returns outputs, (B, N, C, V). Pure, and the same object in every call with
            the same options, so that XLA compiles it once. It also gets rows of
            padding, whose outputs are cut off.
        query: (B, N, T, H).
        shared: Tensors that all queries share, such as keys and values. They and the
            queries have gradients.
        pairs: Tensors without a gradient, (B, N, T, S) or 1 along any axis, of which
            the function gets the rows of its queries.
        constants: Tensors without a gradient, which the function gets whole: seeds of
            its random numbers.
        size: C. None = the fastest, and no more padding than needed.

    Returns:
        (B, N, T, V), in the dtype of the queries.
    """
    length = query.shape[2]
    if size is None:
        size = _CHUNK_SIZE
        if length is not None:
            size = -(-length // max(1, -(-length // size)))
    # Copied: an eager mask becomes a tensor of this graph, which the gradient's knows.
    pairs, constants = (tuple(map(ops.copy, each)) for each in (pairs, constants))
    is_fused = all(has_fixed_shape(x) for x in (query, *pairs))
    forward, backward = _passes(function, size, len(shared), len(pairs), is_fused)

    def whole(query, *shared):
        if constants:
            raise ValueError(NO_SECOND_ORDER)
        return function(0, query, shared, pairs, constants)

    return with_gradient(
        lambda *inputs: (forward(*inputs, *pairs, *constants), ()),
        lambda _, __, *inputs: backward(*inputs, *pairs, *constants),
        whole,
        query,
        # Variables are copied: only arguments have gradients.
        *map(ops.copy, shared),
    )


@functools.cache
def _passes(function, size, num_shared, num_pairs, is_fused):
    """The functions of the forward and the backward pass."""

    def chunks_of(query, *tensors):
        shared, others = tensors[:num_shared], tensors[num_shared:]
        pairs = [
            x if x.shape[2] == 1 else pad_axis(x, 2, size) for x in others[:num_pairs]
        ]
        constants = others[num_pairs:]
        count = -(-ops.shape(query)[2] // size)
        query = pad_axis(query, 2, size)

        def call_of(i):
            """The function of the queries and the shared tensors for a chunk."""
            rows = [x if x.shape[2] == 1 else _chunk(x, i, size) for x in pairs]
            return lambda queries, *shared: function(
                i * size, queries, shared, rows, constants
            )

        return count, query, shared, call_of

    def forward(query, *tensors):
        length, dtype = ops.shape(query)[2], query.dtype
        count, query, shared, call_of = chunks_of(query, *tensors)

        def attend(i):
            return (), ops.cast(call_of(i)(_chunk(query, i, size), *shared), dtype)

        _, outputs = sequential_scan(attend, (), count, dtype)
        return join_blocks(outputs, length)

    def backward(upstream, query, *tensors):
        length, dtype = ops.shape(query)[2], query.dtype
        count, query, shared, call_of = chunks_of(query, *tensors)
        upstream = pad_axis(upstream, 2, size)

        def add_chunk(i, *totals):
            inputs = (_chunk(query, i, size), *shared)
            of_query, *found = _gradients(call_of(i), inputs, _chunk(upstream, i, size))
            pairs = zip(totals, found, strict=True)
            totals = tuple(total + at_least_float32(x) for total, x in pairs)
            return totals, ops.cast(of_query, dtype)

        zeros = (ops.zeros_like(x, at_least_float32_dtype(x.dtype)) for x in shared)
        totals, of_query = sequential_scan(add_chunk, tuple(zeros), count, dtype)
        pairs = zip(totals, shared, strict=True)
        of_shared = (ops.cast(total, x.dtype) for total, x in pairs)
        return (join_blocks(of_query, length), *of_shared)

    compiled = xla_fused if is_fused else traced_once
    return compiled(forward), compiled(backward)


def _chunk(inputs, i, size):
    return slice_axes(inputs, {2: (i, size)})


def _gradients(function, inputs, upstream):
    """The gradients of the inputs by the gradient of the outputs."""
    if not is_tensorflow():
        import jax

        outputs, pull = jax.vjp(function, *inputs)
        return pull(ops.cast(upstream, outputs.dtype))
    import tensorflow as tf

    # Copies: inside a loop tensors from outside it have other names.
    inputs = [tf.identity(x) for x in inputs]
    if tf.inside_function():  # Tapes do not record while `xla_fused` traces.
        outputs = function(*inputs)
        return tf.gradients(outputs, inputs, tf.cast(upstream, outputs.dtype))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return tape.gradient(outputs, inputs, tf.cast(upstream, outputs.dtype))
