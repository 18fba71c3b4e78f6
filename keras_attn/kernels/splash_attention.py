"""Attention by JAX' Splash kernel, on TPUs.

Keras' own call of it computes something else: it takes no mask for a causal one, and
leaves out the scale (Keras 3.15.1).
"""

import functools
from typing import Any

from keras import ops

from keras_attn.kernels.devices import on_each_device

# A side of the kernel's blocks is a multiple of the lanes of a TPU's registers.
_LANES = 128
_LARGEST_BLOCK = 512


def splash_attention(
    query, key, value, *, scale, padding_mask=None, is_causal=False, interpret=False
) -> Any:
    """`softmax(scale · q kᵀ) v` for each head, in memory that grows with the lengths.

    On several devices each computes its examples, and its heads if weights are divided
    by heads.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        scale: Factor of the scores.
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only.
        interpret: Whether to compute what the kernel computes without a TPU, for tests.

    Returns:
        (B, N, T, V), in the dtype of `value`. A query whose keys are all masked gets
        zeros.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if padding_mask is None:
        is_real = ops.ones((batch, keys), "bool")
    else:
        is_real = ops.cast(padding_mask, "bool")
    attend = functools.partial(_attend, is_causal=is_causal, interpret=interpret)
    query = query * ops.cast(scale, query.dtype)
    # XLA cannot divide the kernel among devices.
    outputs = on_each_device(attend, query, key, value, is_real, has_heads=True)
    if padding_mask is None:
        return outputs
    # To a query without keys the kernel gives the mean of all values.
    if is_causal:
        seen = ops.cumsum(ops.cast(is_real, "int32"), axis=1)[:, :queries]
        has_keys = ops.greater(seen, 0)
        if queries > keys:
            last = ops.repeat(has_keys[:, -1:], queries - keys, axis=1)
            has_keys = ops.concatenate([has_keys, last], axis=1)
    else:
        has_keys = ops.any(is_real, axis=1, keepdims=True)
    return ops.where(has_keys[:, None, :, None], outputs, ops.zeros_like(outputs))


def _attend(query, key, value, is_real, is_causal, interpret):
    """The kernel over a batch, with lengths padded to whole blocks."""
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    queries, keys = query.shape[2], key.shape[2]
    rows, columns = _block_size(queries), _block_size(keys)
    query = _pad(query, rows)
    key, value = _pad(key, columns), _pad(value, columns)
    shape = (query.shape[2], key.shape[2])
    mask = masks.CausalMask(shape) if is_causal else masks.FullMask(shape)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * query.shape[1]),
        block_sizes=kernels.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_q_dq=rows,
            block_kv_dq=columns,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # A query attends to the keys of its own segment: the real ones.
    real_keys = ops.pad(ops.cast(is_real, "int32"), ((0, 0), (0, shape[1] - keys)))
    segments = kernels.SegmentIds(
        ops.ones((query.shape[0], shape[0]), "int32"), real_keys
    )
    outputs: Any = jax.vmap(kernel)(query, key, value, segments)
    return ops.cast(outputs[:, :, :queries], value.dtype)


def _block_size(length):
    """The smallest size with as few blocks as possible."""
    blocks = -(-length // _LARGEST_BLOCK)
    return -(-length // (blocks * _LANES)) * _LANES


def _pad(tensor, block):
    """(…, T, H) to whole blocks of positions."""
    missing = -tensor.shape[2] % block
    return ops.pad(tensor, ((0, 0), (0, 0), (0, missing), (0, 0)))
