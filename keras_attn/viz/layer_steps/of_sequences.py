"""The steps of attention layers for sequences, a function for each class.

Legend: N heads, G key/value heads, T queries, S keys, H and V sizes of a head, D width,
R rows and C columns of a map, L windows, A units.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_attn import layers
from keras_attn.layers.embeddings.relative_position_encoding import encode_distances
from keras_attn.ops.attention import MASKED
from keras_attn.viz.layer_steps.arrays import (
    array,
    merged,
    only_head,
    refuse,
    tensor,
)
from keras_attn.viz.layer_steps.steps import Derived, Panel, to_numpy
from keras_attn.viz.layer_steps.terms import (
    Term,
    activated,
    as_float64,
    number,
    product,
)

Arguments = Mapping[str, Any]


def multi_head(layer: layers.MultiHeadAttention, given: Arguments) -> Derived:
    """`E = q kᵀ / √H + bias`, with grouped heads, windows and a gate."""
    refuse(given, "cache", "cache_index")
    query, value = tensor(layer, given["query"]), given["value"]
    is_self = value is None
    value = query if is_self else tensor(layer, value)
    key = value if given["key"] is None else tensor(layer, given["key"])
    heads, groups = layer.num_heads, layer.num_key_value_heads
    if is_self:
        projected = layer.query_key_value.heads(query, (heads, groups, groups))
    else:
        projected = [
            layer.query.heads(query, (heads,))[0],
            layer.key.heads(key, (groups,))[0],
            layer.value.heads(value, (groups,))[0],
        ]
    queries, keys, values = (as_float64(to_numpy(x)[0]) for x in projected)
    # Consecutive query heads share a key/value head.
    keys, values = (np.repeat(x, heads // groups, axis=0) for x in (keys, values))
    size = queries.shape[-1]
    shape = (heads, queries.shape[1], keys.shape[1])
    terms = [product("q · k / √H", queries, keys, 1 / math.sqrt(size))]
    if given["attention_bias"] is not None:
        bias = np.maximum(array(given["attention_bias"])[0], MASKED)
        terms.append(number("bias", bias, shape))
    mask = merged(shape, given, "padding_mask", "value_mask", "key_mask")
    if is_self:
        mask = mask & merged(shape, given, "mask", "query_mask")
    distance = np.subtract.outer(np.arange(shape[1]), np.arange(shape[2]))
    if given["use_causal_mask"]:
        mask = mask & (distance >= 0)
    if layer.sliding_window is not None:
        mask = mask & (np.abs(distance) < layer.sliding_window)
    gate, more = 1.0, ()
    if layer.use_gate:
        gate = as_float64(to_numpy(layer.gate.heads(query, (heads,))[0])[0])
        more = (Panel("gate", "sigmoid(X W_G + b)", gate),)

    def finish(mixed):
        output = layer.output_projection.merge_heads(
            tensor(layer, (mixed * gate)[None])
        )
        return to_numpy(output)[0]

    source = "X" if is_self else "Z"
    meanings = {
        "Q": "X W_Q + b",
        "K": f"{source} W_K + b",
        "V": f"{source} W_V + b",
        "Y": "heads side by side, W_O + b",
    }
    return Derived(
        *(
            array(query)[0],
            array(value)[0],
            queries,
            keys,
            values,
            tuple(terms),
            finish,
        ),
        mask=mask,
        meanings=meanings,
        more=more,
        is_self_attention=is_self,
    )


def scored(layer: layers.ScoredAttention, given: Arguments) -> Derived:
    """Single-head attention by its kind of score; others have one term, `score`."""
    refuse(given, "projected_key")
    query, value = tensor(layer, given["query"]), tensor(layer, given["value"])
    key = value if given["key"] is None else tensor(layer, given["key"])
    q, k, v = (as_float64(to_numpy(x)) for x in (query, key, value))
    projected = layer.project_key(key)
    shape = (1, q.shape[1], k.shape[1])
    queries, keys = q, k
    meanings = {"Q": "X", "K": "Z", "V": "Z", "Y": "A V"}
    if isinstance(layer, layers.AdditiveAttention):
        queries = as_float64(to_numpy(layer.query.project(query)))
        keys = as_float64(to_numpy(projected))
        vector = as_float64(to_numpy(layer.score_vector)).T  # (1, A)
        name = "v · tanh(W q + U k)"
        terms = [activated(name, "tanh", queries, keys, vector)]
        meanings |= {"Q": "X W", "K": "Z U"}
    elif isinstance(layer, layers.MLPDotAttention):
        queries = np.tanh(as_float64(to_numpy(layer.query_mlp.project(query))))
        keys = as_float64(to_numpy(projected))
        terms = [product("φ(q) · ψ(k)", queries, keys)]
        meanings |= {"Q": "φ = tanh(X W + b)", "K": "ψ = tanh(Z W + b)"}
    elif isinstance(layer, layers.DotProductAttention):
        terms, keys = _dot_products(layer, q, k, projected)
        if layer.score == "general":
            meanings["K"] = "Z Wᵀ"
    else:
        scores = to_numpy(layer.scores(query, projected))
        terms = [number("score", scores, shape)]
    mask = merged(shape, given, "padding_mask", "value_mask")
    return Derived(
        *(q[0], v[0], queries, keys, v, tuple(terms), only_head),
        mask=mask,
        meanings=meanings,
    )


def _dot_products(layer, q, k, projected) -> tuple[list[Term], np.ndarray]:
    """The terms of the four products, and the keys."""
    if layer.score == "dot":
        return [product("q · k", q, k)], k
    if layer.score == "scaled_dot":
        return [product("q · k / √D", q, k, 1 / math.sqrt(q.shape[-1]))], k
    if layer.score == "general":
        keys = as_float64(to_numpy(projected))
        return [product("q · W k", q, keys)], keys
    kernel = as_float64(to_numpy(layer.projection.value()))[:, 0]
    of_query, of_key = kernel[: q.shape[-1]], kernel[-k.shape[-1] :]
    pairs = np.zeros((q.shape[1], k.shape[1]), int)  # One row, for every pair.
    terms = [
        product("w_q · q", q, of_query[None, None], right_rows=pairs),
        product("w_k · k", of_key[None, None], k, left_rows=pairs),
    ]
    return terms, k


def relative(layer: layers.RelativeMultiHeadAttention, given: Arguments) -> Derived:
    """The terms of Transformer-XL and of XLNet, each by itself."""
    inputs, memory = tensor(layer, given["inputs"]), given["memory"]
    known, offset = inputs, 0
    if memory is not None:
        memory = tensor(layer, memory)
        known, offset = ops.concatenate([memory, inputs], axis=1), memory.shape[1]
    positions = given["positions"]
    if positions is None:
        positions = encode_distances(inputs, memory, dtype=layer.compute_dtype)
    queried, tokens = inputs, np.arange(inputs.shape[1])
    if given["targets"] is not None:
        queried = tensor(layer, given["targets"])
        # The token that a target stands for has its distances to the keys.
        tokens = array(given["target_mapping"])[0].argmax(-1)

    def heads(projection, rows):  # (N, rows, H)
        (projected,) = projection.heads(tensor(layer, rows), (layer.num_heads,))
        return as_float64(to_numpy(projected)[0])

    queries, keys = heads(layer.query, queried), heads(layer.key, known)
    values, distances = heads(layer.value, known), heads(layer.position, positions)
    shape = (layer.num_heads, len(tokens), keys.shape[1])
    scale = 1 / math.sqrt(queries.shape[-1])
    one = np.zeros(shape[1:], int)  # One row, for every pair.
    # Of the distances S, S-1, …, 1-T: that of query i and key j is in row S - (i - j).
    apart = (tokens + offset)[:, None] - np.arange(shape[2])
    of_distance = shape[2] - apart

    def row(vector):  # (N, H) -> (N, 1, H)
        return as_float64(to_numpy(vector))[:, None]

    content, position = row(layer.content_bias), row(layer.position_bias)
    right = {"right_rows": of_distance}
    terms = [
        product("q · k / √H", queries, keys, scale),
        product("u · k / √H", content, keys, scale, left_rows=one),
        product("q · r / √H", queries, distances, scale, **right),
        product("v · r / √H", position, distances, scale, left_rows=one, **right),
    ]
    if given["same_segment"] is not None:
        same = array(given["same_segment"])[0].astype(bool)[tokens]
        segments = as_float64(to_numpy(layer.segment_embedding)).transpose(1, 0, 2)
        right = {"right_rows": np.where(same, 0, 1)}
        bias = row(layer.segment_bias)
        terms += [
            product("q · s / √H", queries, segments, scale, **right),
            product("w · s / √H", bias, segments, scale, left_rows=one, **right),
        ]
    full = (layer.num_heads, inputs.shape[1], shape[2])
    mask = merged(full, given, "padding_mask")
    if memory is None:
        mask = mask & merged(full, given, "mask", "inputs_mask")

    def finish(mixed):
        output = layer.output_projection.merge_heads(tensor(layer, mixed[None]))
        return to_numpy(output)[0]

    is_self = memory is None and given["targets"] is None
    source = "X" if is_self else "Z"
    return Derived(
        *(array(queried)[0], array(known)[0], queries, keys, values),
        tuple(terms),
        finish,
        mask=mask[:, tokens],
        meanings={
            "Q": "X W_Q",
            "u · k / √H": "the same for all queries",
            "q · r / √H": "by distance t - s",
            "v · r / √H": "by distance, for all queries",
            "q · s / √H": "same segment, or not",
            "w · s / √H": "segment, for all queries",
            "K": f"{source} W_K",
            "V": f"{source} W_V",
            "Y": "heads side by side, W_O",
        },
        is_self_attention=is_self,
    )


def glimpse(layer: layers.GlimpseAttention, given: Arguments) -> Derived:
    """`E = vᵀ relu(W φ + W q + b)`, a head for each glimpse, of one query."""
    query, value = tensor(layer, given["query"]), tensor(layer, given["value"])
    glimpses = layer.num_glimpses

    def each(projected):  # (1, rows, A) -> (N, rows, A)
        return np.repeat(as_float64(to_numpy(projected)), glimpses, axis=0)

    queries = each(layer.query.project(query)[:, None])
    keys, values = each(layer.value.project(value)), each(value)
    factor = as_float64(to_numpy(layer.score.value())).T  # (N, A)
    return Derived(
        *(array(query), values[0], queries, keys, values),
        (activated("v · relu(W φ + W q + b)", "relu", queries, keys, factor),),
        lambda mixed: mixed[:, 0],
        meanings={"Q": "X W + b", "K": "Z W", "V": "Z", "Y": "A V, a row per glimpse"},
        heads=[f"glimpse {number}" for number in range(glimpses)],
    )


def word_guided(layer: layers.WordGuidedAttention, given: Arguments) -> Derived:
    """`E_s = max_t q_t · k_s`: one row of scores, of the word that fits best."""
    words, value, key = (array(given[name])[0] for name in ("query", "value", "key"))
    real = np.ones(len(words), bool)
    for name in ("padding_mask", "query_mask"):
        if given[name] is not None:
            real = real & array(given[name])[0].astype(bool)
    correlations = as_float64(words) @ as_float64(key).T  # (T, S)
    best = np.where(real[:, None], correlations, -np.inf).argmax(0)[None]  # (1, S)
    term = product("max_t q · k", words[None], key[None], left_rows=best)
    return Derived(
        *(words, value, as_float64(words)[None], as_float64(key)[None]),
        as_float64(value)[None],
        (term,),
        lambda mixed: mixed[0],
        mask=np.broadcast_to(real.any(), (1, 1, len(key))),
        meanings={"Q": "X", "K": "the keys", "V": "Z", "Y": "A V"},
    )


def probe_pooling(layer: layers.ProbePooling, given: Arguments) -> Derived:
    """A learned query attends to all positions; a feed-forward network follows."""
    inputs = array(given["inputs"])
    found = multi_head(layer.attention, call_of_two(array(layer.probe)[None], inputs))

    def finish(mixed):
        pooled = tensor(layer, found.finish(mixed)[None])
        return to_numpy(pooled + layer.feed_forward(layer.norm(pooled)))[0]

    meanings = {**found.meanings, "X": "the learned query", "Y": "y + FFN(norm(y))"}
    return found._replace(finish=finish, meanings=meanings)


def call_of_two(query, value) -> dict[str, Any]:
    """A call of `MultiHeadAttention` with nothing but two inputs."""
    names = "key query_mask value_mask key_mask attention_mask padding_mask mask"
    nothing = dict.fromkeys([*names.split(), "attention_bias", "cache", "cache_index"])
    return {**nothing, "query": query, "value": value, "use_causal_mask": False}
