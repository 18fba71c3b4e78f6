"""Inputs, masks and a permutation, as the arguments of a call of an attention layer.

Legend: T queries, S keys, N heads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.layers import MultiHeadAttention, RelativeMultiHeadAttention
from keras_attn.viz.layer_steps.arrays import array
from keras_attn.viz.layer_steps.kinds import KINDS, Kind

# Of the axes without the batch.
_AXES = {1: "(width,)", 2: "(length, width)", 3: "(rows, columns, width)"}


def kind_of(layer: keras.layers.Layer) -> Kind:
    """How the layers of a class are called.

    Args:
        layer: An attention layer.

    Raises:
        ValueError: If it is none whose steps can be shown.
    """
    parent = known_class(layer)
    if parent is not None:
        return KINDS[parent]
    hint = ""
    if isinstance(layer, keras.layers.MultiHeadAttention):
        hint = " `layers.MultiHeadAttention.from_keras` makes one of Keras' layer."
    elif inside := attention_inside(layer):
        paths = ", ".join(each.path for each in inside)
        hint = f" Pass one of the attention layers inside it: {paths}."
    raise ValueError(
        "`layer` must be an attention layer of `keras_attn.layers`: "
        f"{', '.join(each.__name__ for each in KINDS)}.{hint} "
        f"Received: layer={getattr(layer, 'name', layer)!r} of type "
        f"{type(layer).__name__}"
    )


def known_class(layer) -> type | None:
    """The class in `KINDS` that a layer is of, or None."""
    return next((each for each in type(layer).__mro__ if each in KINDS), None)


def attention_inside(layer) -> list[keras.layers.Layer]:
    """The attention layers inside a layer or a model."""
    found = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []
    return [each for each in found if isinstance(each, tuple(KINDS))]


def call_arguments(
    layer, query, value=None, key=None, mask=None, options: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """The arguments of a call of a layer, with a batch of one.

    Args:
        layer: The layer.
        query: The first input, without or with a batch of one.
        value: The second, or None.
        key: The third, or None.
        mask: `"causal"`, (S,) of keys, (T, S), (N, T, S), or several in a tuple.
        options: Further arguments of the call.

    Raises:
        ValueError: If an input or a mask does not fit.
    """
    kind = kind_of(layer)
    given = {"query": query, "value": value, "key": key}
    if "inputs" in kind.inputs:
        given = {"inputs": query, "value": value, "key": key}
    arguments: dict[str, Any] = {}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name not in kind.inputs:
            raise ValueError(
                f"`{name}` must be None: a {type(layer).__name__} has the inputs "
                f"{', '.join(kind.inputs)}. Received: {name}={np.shape(tensor)}"
            )
        shown = "query" if name == "inputs" else name
        arguments[name] = _one_example(shown, tensor, kind.inputs[name])
    arguments |= options
    masks = {} if mask is None else _masks(layer, kind, arguments, mask)
    for name in masks:
        if arguments.get(name) is not None:
            raise ValueError(
                f"`{name}` must be None if `mask` is one: pass both in `mask`, as a "
                f"tuple. Received: {name} of shape {np.shape(arguments[name])}"
            )
    return {**arguments, **masks}


def permute(layer, arguments: Mapping[str, Any], permutation) -> dict[str, Any]:
    """The arguments of a call, with the positions of one input in another order.

    Padding follows its positions; a causal mask, an `attention_mask` and relative
    positions do not: they are of places, not of what is at them.

    Args:
        layer: The layer.
        arguments: Of the call.
        permutation: Row `permutation[i]` becomes row i.

    Raises:
        ValueError: If it is no permutation of the rows.
    """
    kind = kind_of(layer)
    if arguments.get("targets") is not None:
        raise ValueError(
            "`permutation` must be None for a call with `targets`, which stand for "
            f"tokens. Received: permutation={permutation!r}"
        )
    inputs = array(arguments[kind.permuted])
    axes = inputs.shape[1:-1]
    order = check_permutation(permutation, int(np.prod(axes)))
    width = inputs.shape[-1]
    moved = inputs.reshape(1, -1, width)[:, order].reshape(1, *axes, width)
    permuted = {**arguments, kind.permuted: moved}
    is_self = arguments.get("value") is None or kind.padding == kind.permuted
    for name in ("padding_mask", "mask", "query_mask", "inputs_mask"):
        if is_self and permuted.get(name) is not None:
            own = array(permuted[name]).copy()
            own[:, -len(order) :] = own[:, -len(order) :][:, order]
            permuted[name] = own
    if permuted.get("same_segment") is not None:
        same = array(permuted["same_segment"])[:, order].copy()
        same[..., -len(order) :] = same[..., -len(order) :][..., order]
        permuted["same_segment"] = same
    return permuted


def check_permutation(permutation, length: int) -> np.ndarray:
    """A permutation of 0 … length - 1 as an array.

    Args:
        permutation: The numbers.
        length: How many there must be.

    Raises:
        ValueError: If it is none.
    """
    order = np.asarray(permutation)
    whole = order.ndim == 1 and np.issubdtype(order.dtype, np.integer)
    if not whole or sorted(order.tolist()) != list(range(length)):
        raise ValueError(
            f"`permutation` must have each number from 0 to {length - 1} once, the "
            f"places of the {length} rows. Received: permutation={permutation!r}"
        )
    return order


def _one_example(name: str, tensor, rank: int) -> np.ndarray:
    """An input with a batch of one."""
    values = array(tensor)
    if values.ndim == rank:
        values = values[None]
    if values.ndim != rank + 1 or len(values) != 1 or 0 in values.shape:
        raise ValueError(
            f"`{name}` must be one example, {_AXES[rank]}, or a batch of one. "
            f"Received: {name} of shape {np.shape(tensor)}"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"`{name}` must be finite numbers. Received: {name} with "
            f"{np.count_nonzero(~np.isfinite(values))} that are not"
        )
    return values


def _masks(layer, kind: Kind, arguments, mask) -> dict[str, Any]:
    """The arguments of a call for one mask, or a tuple of several."""
    parts = mask if isinstance(mask, tuple) else (mask,)
    if not kind.masks and kind.padding is None:
        raise ValueError(
            f"`mask` must be None: a {type(layer).__name__} takes none. "
            f"Received: mask={_shown(parts[0])}"
        )
    first = arguments.get("query", arguments.get("inputs"))
    own = first if arguments.get(kind.padding) is None else arguments[kind.padding]
    queries, earlier = first.shape[1], 0
    if isinstance(layer, RelativeMultiHeadAttention):
        memory = arguments.get("memory")
        earlier = 0 if memory is None else memory.shape[1]
    places = own.shape[1:-1]
    keys = int(np.prod(places)) + earlier
    found: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, str):
            if part != "causal" or not kind.masks:
                raise ValueError(_wrong_mask(layer, kind, places, part))
            pairs = np.arange(keys)[None] <= np.arange(queries)[:, None] + earlier
            name, values = "attention_mask", pairs[None]
        else:
            values = np.asarray(part)
            if not np.isin(values, (0, 1)).all():
                raise ValueError(
                    "`mask` must be True or 1 where to attend, and False or 0 "
                    f"elsewhere. Received: mask={values!r}"
                )
            name = "padding_mask"
            expected = (keys,) if earlier else places
            if values.shape != expected:
                name, expected = "attention_mask", (queries, keys)
                per_head = isinstance(layer, MultiHeadAttention) and values.ndim == 3
                shape = values.shape[1:] if per_head else values.shape
                if shape != expected or not kind.masks:
                    raise ValueError(_wrong_mask(layer, kind, (keys,), part))
            values = values.astype(bool)[None]
        if name in found:
            values = _both(found[name], values)
        found[name] = values
    return found


def _both(first, second):
    """Two masks as one; (1, T, S) is that of all heads in (1, N, T, S)."""
    if first.ndim < second.ndim:
        first, second = second, first
    return first & (second[:, None] if second.ndim < first.ndim else second)


def _wrong_mask(layer, kind: Kind, places: Sequence[int], mask) -> str:
    sizes = " × ".join(map(str, places))
    each = "word of `query`" if kind.padding == "query" else "key"
    what = f"{sizes} values, one for each {each}"
    if kind.masks:
        what = f'"causal", {what}, or a value for each query and key'
    return (
        f"`mask` must be {what}, for a {type(layer).__name__}. "
        f"Received: mask={_shown(mask)}"
    )


def _shown(mask) -> str:
    if isinstance(mask, str):
        return repr(mask)
    return f"a mask of shape {np.shape(mask)}"
