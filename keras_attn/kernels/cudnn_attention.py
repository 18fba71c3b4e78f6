"""Attention by cuDNN's fused kernel, on JAX and NVIDIA GPUs."""

from typing import Any

from keras import ops

# The first GPUs that have the kernel: compute capability 8, Ampere.
_OLDEST = 8
# The largest size of a head, and what it is a multiple of.
_LARGEST_HEAD, _HEAD_MULTIPLE = 128, 8
# What `jax.nn.dot_product_attention` runs. Tests replace it by "xla", which computes
# the same on a CPU.
_IMPLEMENTATION = "cudnn"


def cudnn_attends_to(query, key, value, *, padding_mask, is_causal) -> bool:
    """Whether this GPU has cuDNN's kernel, and the kernel takes these tensors.

    Padding is given to it as the number of real keys, so the real keys are moved to
    the front; with a causal mask their places matter.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H).
        value: (B, G, S, V).
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only.
    """
    dtypes = {str(tensor.dtype) for tensor in (query, key, value)}
    size = query.shape[3]
    return (
        _has_kernel()
        and dtypes in ({"bfloat16"}, {"float16"})
        and size == value.shape[3]
        and size <= _LARGEST_HEAD
        and size % _HEAD_MULTIPLE == 0
        and not (is_causal and padding_mask is not None)
    )


def _has_kernel():
    """Whether this process' first device is an NVIDIA GPU that is new enough."""
    import jax

    # "9.0"; of an AMD GPU "gfx942".
    capability = getattr(jax.local_devices()[0], "compute_capability", "")
    major = str(capability).partition(".")[0]
    return major.isdecimal() and int(major) >= _OLDEST


def cudnn_attention(
    query, key, value, *, scale, padding_mask=None, is_causal=False
) -> Any:
    """`softmax(scale · q kᵀ) v` for each head, if `cudnn_attends_to` the tensors.

    Args:
        query: (B, N, T, H), bfloat16 or float16.
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, H).
        scale: Factor of the scores.
        padding_mask: Boolean, (B, S), True = a real key; or None.
        is_causal: Whether query t attends to the keys 0 … t only.

    Returns:
        (B, N, T, H), in the dtype of `value`. A query whose keys are all padding gets
        zeros.
    """
    import jax

    lengths = None
    if padding_mask is not None:
        is_real = ops.cast(padding_mask, "bool")
        # The order of the keys does not matter.
        order = jax.numpy.argsort(~is_real, axis=1, stable=True)[:, None, :, None]
        key, value = (
            ops.take_along_axis(tensor, order, axis=2) for tensor in (key, value)
        )
        lengths = ops.sum(ops.cast(is_real, "int32"), axis=1)
    outputs = jax.nn.dot_product_attention(
        *(ops.transpose(tensor, (0, 2, 1, 3)) for tensor in (query, key, value)),
        scale=scale,
        is_causal=is_causal,
        # Over no keys at all a softmax is not a number.
        key_value_seq_lengths=None if lengths is None else ops.maximum(lengths, 1),
        implementation=_IMPLEMENTATION,  # pyright: ignore[reportArgumentType]
    )
    outputs = ops.transpose(outputs, (0, 2, 1, 3))
    if lengths is None:
        return outputs
    has_keys = ops.greater(lengths, 0)[:, None, None, None]
    return ops.where(has_keys, outputs, ops.zeros_like(outputs))
