"""Checks of the calls of `RelativeMultiHeadAttention`.

Legend: B batch, T tokens, M memory length, S = M + T keys, R = T + S distances,
P targets, N heads, D width.
"""

from typing import Any

from keras_attn.checks.arguments import check_matches, check_rank
from keras_attn.layers.attention.attention_checks import (
    check_attention_mask,
    check_padding_mask,
)


def check_call(
    layer,
    inputs,
    targets=None,
    *,
    target_mapping: Any = None,
    positions=None,
    memory=None,
    same_segment=None,
    padding_mask=None,
    attention_mask=None,
    **_,
) -> None:
    """Raises unless the inputs and the masks fit each other."""
    check_rank("inputs", inputs, 3, "(batch, length, width)")
    batch, length, width = inputs.shape
    _check_targets(targets, target_mapping, batch, length)
    if memory is not None:
        axes = "(batch, memory length, width)"
        check_rank("memory", memory, 3, axes)
        check_matches("memory", memory.shape, (batch, None, width), axes)
    if positions is not None:
        axes = "(1, distances, width)"
        check_rank("positions", positions, 3, axes)
        distances = sum_of_lengths(inputs, inputs, memory)
        check_matches("positions", positions.shape, (1, distances, width), axes)
    keys = sum_of_lengths(inputs, memory)
    check_attention_mask(
        "same_segment", same_segment, (batch, length, keys), ranks=(3,)
    )
    check_padding_mask("padding_mask", padding_mask, batch, keys)
    scores_shape = (batch, layer.num_heads, length, keys)
    check_attention_mask("attention_mask", attention_mask, scores_shape)


def _check_targets(targets, target_mapping, batch, length) -> None:
    if (targets is None) != (target_mapping is None):
        raise ValueError(
            "`targets` and `target_mapping` must be given together. Received: "
            f"targets={_shape_of(targets)}, target_mapping={_shape_of(target_mapping)}"
        )
    if targets is not None:
        check_rank("targets", targets, 3, "(batch, targets, width)")
        axes = "(batch, targets, length)"
        check_rank("target_mapping", target_mapping, 3, axes)
        expected = (batch, targets.shape[1], length)
        check_matches("target_mapping", target_mapping.shape, expected, axes)


def sum_of_lengths(*sequences) -> int | None:
    """Length of the sequences that are not None; None if one is unknown."""
    lengths = [tensor.shape[1] for tensor in sequences if tensor is not None]
    return None if None in lengths else sum(lengths)


def _shape_of(tensor):
    return None if tensor is None else tuple(tensor.shape)
