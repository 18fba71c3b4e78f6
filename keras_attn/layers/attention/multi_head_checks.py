"""Checks of the arguments and the calls of `MultiHeadAttention`.

Legend: B batch, T query length, S key length, N heads, G key/value heads.
"""

from collections.abc import Sequence
from typing import Any

import keras

from keras_attn.checks.arguments import check_positive, check_rank
from keras_attn.layers.attention.attention_checks import (
    check_attention_mask,
    check_cache,
    check_padding_mask,
)
from keras_attn.ops import both_masks


def check_heads(num_heads: int, groups: int | None) -> tuple[int, int]:
    """Returns N and G, by default N; raises unless N is a multiple of G."""
    num_heads = check_positive("num_heads", num_heads)
    groups = num_heads if groups is None else groups
    if num_heads % check_positive("num_key_value_heads", groups):
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
            f"num_heads={num_heads}, num_key_value_heads={groups}"
        )
    return num_heads, groups


def check_head_sizes(key_dim: int, value_dim: int | None) -> tuple[int, int]:
    """Returns H and V, by default H."""
    key_dim = check_positive("key_dim", key_dim)
    if value_dim is None:
        return key_dim, key_dim
    return key_dim, check_positive("value_dim", value_dim)


def check_output_shape(
    output_shape: int | Sequence[int] | None,
) -> tuple[int, ...] | None:
    """Returns the sizes of the last axes as a tuple, or None."""
    if output_shape is None:
        return None
    sizes = output_shape if isinstance(output_shape, Sequence) else (output_shape,)
    for size in sizes or (0,):
        check_positive("output_shape", size)
    return tuple(sizes)


def check_no_flash_attention(flash_attention: Any) -> Any:
    """Returns None or False; raises if flash attention, Keras' option, is given."""
    if flash_attention:
        raise ValueError(
            "`flash_attention` must be None: in calls without "
            "`return_attention_scores` this layer itself chooses attention that needs "
            "little memory, by the lengths and the device, also with dropout. "
            f"Received: flash_attention={flash_attention!r}"
        )
    return flash_attention


def check_only_mask(query, padding_mask, attention_bias, cache, return_cache) -> None:
    """Raises for arguments that attention over chosen axes does not have."""
    given = {
        "padding_mask": padding_mask is not None,
        "attention_bias": attention_bias is not None,
        "cache": cache is not None,
        "return_cache": return_cache,
    }
    names = [f"`{name}`" for name, is_given in given.items() if is_given]
    if names and len(query.shape) > 3:
        raise ValueError(
            "Inputs with more than 3 axes take no mask but an `attention_mask`, and no "
            f"bias or cache. Received: {', '.join(names)}"
        )


def check_call(layer, query, value, key, cache, cache_index) -> None:
    """Raises unless the inputs and a cache fit the layer and each other."""
    rank = len(query.shape)
    if rank > 3:
        _check_same_axes(query, value, key)
    else:
        check_rank("query", query, 3, "(batch, query length, width)")
        for name, tensor in (("value", value), ("key", key)):
            if tensor is not None:
                check_rank(name, tensor, 3, "(batch, key length, width)")
    axes = [axis + rank if axis < 0 else axis for axis in layer.attention_axes or ()]
    if len({*axes}) < len(axes) or not all(0 < axis < rank - 1 for axis in axes):
        raise ValueError(
            "`attention_axes` must be different axes between the first and the last. "
            f"Received: attention_axes={layer.attention_axes}, "
            f"query.shape={tuple(query.shape)}"
        )
    if key is not None and value is None:
        raise ValueError("`key` needs a `value`. Received: value=None")
    if cache_index is not None and cache is None:
        raise ValueError("`cache_index` needs a `cache`. Received: cache=None")
    is_cache_the_value = (
        not layer.is_self_attention and cache is not None and cache_index is None
    )
    if layer.is_self_attention == (value is not None or is_cache_the_value):
        kind, first_call = "cross-attention", "a `value`"
        if layer.is_self_attention:
            kind, first_call = "self-attention", "no `value`"
        raise ValueError(
            f"This layer was built for {kind}: its first call had {first_call}. "
            "Call it the same way again, or create a second layer. Received: "
            f"value={'None' if value is None else tuple(value.shape)}"
        )
    if is_cache_the_value and value is not None:
        raise ValueError(
            "A `cache` without a `cache_index` replaces `value`; pass one of them. "
            f"Received: value={tuple(value.shape)}"
        )
    if cache is not None:
        sizes = (layer.key_dim, layer.value_dim)
        check_cache(cache, query.shape[0], layer.num_key_value_heads, sizes)


def _check_same_axes(query, value, key) -> None:
    """Raises unless value and key have the axes of a query with more than 3."""
    for name, tensor in (("value", value), ("key", key)):
        if tensor is not None and len(tensor.shape) != len(query.shape):
            raise ValueError(
                f"`{name}` must have as many axes as `query`. Received: "
                f"{name}.shape={tuple(tensor.shape)}, query.shape={tuple(query.shape)}"
            )


def mask_of_keys(value, mask=None, query_mask=None, value_mask=None, key_mask=None):
    """Keras' mask of the keys, (B, S), or None.

    If a call has a single tensor, Keras names its mask `mask`; if it has several, Keras
    names each mask `<argument>_mask`. In self-attention (`value` is None) it is that of
    the query.
    """
    if value is None:
        return query_mask if mask is None else mask
    return both_masks(value_mask, key_mask)


def check_masks(
    layer, query, memory, padding_mask, attention_mask, attention_bias
) -> None:
    """Raises unless masks and bias have the shapes of the keys and the scores."""
    batch, query_length, _ = query.shape
    key_length = memory.static_length
    scores_shape = (batch, layer.num_heads, query_length, key_length)
    check_padding_mask("padding_mask", padding_mask, batch, key_length)
    check_attention_mask("attention_mask", attention_mask, scores_shape)
    check_attention_mask("attention_bias", attention_bias, scores_shape, ranks=(4,))


def check_keras_layer(layer, self_attention: bool) -> list[int]:
    """Returns the widths of query, key and value of a layer of Keras, which is built.

    Args:
        layer: The layer.
        self_attention: Whether the widths must be equal.

    Raises:
        ValueError: If it is not built, or the widths differ though they must not.
    """
    if not isinstance(layer, keras.layers.MultiHeadAttention):
        raise TypeError(
            "`layer` must be a `keras.layers.MultiHeadAttention`. Received: "
            f"layer={layer!r}"
        )
    if not layer.built:
        raise ValueError(
            "`layer` must be built: call it once. Received: a layer without weights"
        )
    parts = (layer.query_dense, layer.key_dense, layer.value_dense)
    modes = {part.quantization_mode for part in (*parts, layer.output_dense)} - {None}
    if modes:
        raise ValueError(
            "`layer` must have kernels of real numbers; quantize the new layer. "
            f"Received: kernels of {modes.pop()}"
        )
    widths = [part.kernel.shape[0] for part in parts]
    if self_attention and len({*widths}) > 1:
        raise ValueError(
            "`self_attention` needs one width of query, key and value. Received: "
            f"a layer with the widths {widths}"
        )
    return widths
