"""The steps of attention layers for maps, a function for each class.

Legend: N heads, G key/value heads, T queries, S keys, H and V sizes of a head, D width,
R rows and C columns of a map, L windows, A units.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_attn import layers
from keras_attn.ops.windows import (
    cyclic_shift,
    relative_position_rows,
    shifted_window_mask,
    window_merge,
    window_partition,
)
from keras_attn.viz.layer_steps.arrays import (
    array,
    flat,
    only_head,
    refuse,
    tensor,
)
from keras_attn.viz.layer_steps.of_sequences import call_of_two, multi_head
from keras_attn.viz.layer_steps.steps import Derived, to_numpy
from keras_attn.viz.layer_steps.terms import (
    activated,
    as_float64,
    number,
    product,
)

Arguments = Mapping[str, Any]


def additive_2d(layer: layers.AdditiveAttention2D, given: Arguments) -> Derived:
    """`E = wᵀ tanh(W q + Σ U v)`, the sum over a location and its neighbors."""
    refuse(given, "projected_key")
    query, value = tensor(layer, given["query"]), tensor(layer, given["value"])
    _, keys = layer(
        query, value, padding_mask=given["padding_mask"], return_projected_key=True
    )
    queries = as_float64(to_numpy(layer.query.project(query)))
    keys, values = flat(keys)[None], flat(value)[None]
    vector = as_float64(to_numpy(layer.score_vector)).T
    mask = given["padding_mask"]
    return Derived(
        *(array(query)[0], values[0], queries, keys, values),
        (activated("w · tanh(W q + U ∗ v)", "tanh", queries, keys, vector),),
        only_head,
        mask=None if mask is None else array(mask).reshape(1, 1, -1).astype(bool),
        meanings={"Q": "X W", "K": "U ∗ Z, with neighbors", "V": "Z", "Y": "A V"},
    )


def self_attention_2d(layer: layers.SelfAttention2D, given: Arguments) -> Derived:
    """`E = q kᵀ` over all positions of a map; `Y = X + γ v(A V)`."""
    inputs = tensor(layer, given["inputs"])
    positions = flat(inputs)

    def project(part, rows):
        rows = layer._project(part, tensor(layer, rows[None]), False)
        return as_float64(to_numpy(rows))

    parts = (layer.query, layer.key, layer.value)
    queries, keys, values = (project(part, positions) for part in parts)

    def finish(mixed):
        branch = project(layer.output_projection, mixed[0])[0]
        return positions + float(to_numpy(layer.gamma)) * branch

    return Derived(
        *(positions, positions, queries, keys, values),
        (product("q · k", queries, keys),),
        finish,
        meanings={
            "Q": "f(X)",
            "K": "g(X)",
            "V": "h(X)",
            "Y": "X + γ v(A V)",
        },
        is_self_attention=True,
    )


def window(layer: layers.WindowAttention, given: Arguments) -> Derived:
    """`E = q kᵀ / √H + position bias` in each window; a head of each window is one."""
    inputs = tensor(layer, given["inputs"])
    size = rows, columns = tuple(inputs.shape[1:3])
    side, padded, shift = layer.grid(size)
    below, right = padded[0] - rows, padded[1] - columns
    maps = ops.pad(inputs, ((0, 0), (0, below), (0, right), (0, 0)))
    windows = window_partition(cyclic_shift(maps, shift), side)  # (L, T, D)
    heads, count = layer.num_heads, windows.shape[0]
    projected = layer.query_key_value.heads(windows, (heads,) * 3)  # (L, N, T, H)
    queries, keys, values = (
        as_float64(to_numpy(x)).reshape(-1, *x.shape[2:]) for x in projected
    )
    shape = (count * heads, side**2, side**2)
    table = as_float64(to_numpy(layer.position_bias))
    bias = table[relative_position_rows(side, layer.window_size)].transpose(2, 0, 1)
    mask = None
    if shift:
        mask = np.repeat(shifted_window_mask(padded, side, shift), heads, axis=0)

    def finish(mixed):
        mixed = tensor(layer, mixed.reshape(count, heads, *mixed.shape[1:]))
        merged_map = window_merge(
            layer.output_projection.merge_heads(mixed), side, padded
        )
        return flat(cyclic_shift(merged_map, -shift)[:, :rows, :columns])

    places = np.ndindex(padded[0] // side, padded[1] // side)
    return Derived(
        *(flat(inputs), flat(inputs), queries, keys, values),
        (
            product("q · k / √H", queries, keys, 1 / math.sqrt(queries.shape[-1])),
            number("position bias", np.tile(bias, (count, 1, 1)), shape),
        ),
        finish,
        mask=mask,
        meanings={
            "position bias": "by row and column apart",
            "Q": "window of X, W_Q + b",
            "K": "window of X, W_K + b",
            "V": "window of X, W_V + b",
            "Y": "windows back on the map",
        },
        heads=[
            f"window {row}, {column}, head {head}"
            for row, column in places
            for head in range(heads)
        ],
        is_self_attention=True,
    )


def attention_pooling(layer: layers.AttentionPooling, given: Arguments) -> Derived:
    """The mean of a map, with positions, attends to itself and to all of the map."""
    places = flat(given["inputs"])
    hidden = np.concatenate([places.mean(0, keepdims=True), places])
    hidden = (hidden + as_float64(to_numpy(layer.embeddings)))[None]
    found = multi_head(layer.attention, call_of_two(hidden[:, :1], hidden))
    meanings = {**found.meanings, "X": "mean + position", "Z": "mean, map + positions"}
    return found._replace(meanings=meanings)
