"""What an attention layer computes, step by step, from its weights.

    X (T, Dq), Z (S, Dv)   the inputs; Z is X in self-attention
    Q, K, V                `of_sequences.py`, `of_maps.py`: a function for each class
    E = Σ terms            (N, T, S), each term by its name: `terms.py`
    A = softmax(E + mask)  (N, T, S), 0 where masked
    A V, Y                 (N, T, V) and the output

The layer is called as well. Its own probabilities and outputs are the ones that are
returned; if the steps lead elsewhere, there is an error instead of a wrong picture.

Legend: N heads, T queries, S keys, H and V sizes of a head, D width.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import is_whole
from keras_attn.layers.recorder import record_attention_scores
from keras_attn.viz.layer_steps.terms import Term

# Of numbers up to 1; larger ones may differ by as many times that.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-6}
_HALF_TOLERANCE = 2e-2


class Panel(NamedTuple):
    """One array of the steps, as it is drawn.

    Attributes:
        name: A letter or a few, such as `Q`.
        meaning: Where it comes from, such as `X W_Q + b`.
        array: (rows, columns), or (N, rows, columns) of heads.
        rows: What a row is: a `query`, a `key`, or another `position`.
        columns: What a column is: a `key`, or a `unit` without a label.
        hidden: Which of the numbers are masked, as the array; None = none.
    """

    name: str
    meaning: str
    array: np.ndarray
    rows: str = "query"
    columns: str = "unit"
    hidden: np.ndarray | None = None


class Derived(NamedTuple):
    """The steps before the softmax and after the weighted sum, of one class of layers.

    Attributes:
        query: X, (T, Dq).
        value: Z, (S, Dv).
        queries: Q, (N, T, H); of additive scores what is inside the tanh.
        keys: K, (N, S, H).
        values: V, (N, S, V).
        terms: The terms of the scores.
        finish: From A V to the output.
        mask: Broadcastable to (N, T, S), True = attend. None = everywhere.
        meanings: Where Q, K, V and Y come from, as the formulas beside them; what a
            term is, by its name.
        heads: Names of the heads, such as `head 0`.
        more: Further arrays between A V and Y, such as the gate.
        is_self_attention: Whether Z is X.
    """

    query: np.ndarray
    value: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    terms: tuple[Term, ...]
    finish: Callable[[np.ndarray], np.ndarray]
    mask: np.ndarray | None = None
    meanings: Mapping[str, str] = {}
    heads: list[str] | None = None
    more: tuple[Panel, ...] = ()
    is_self_attention: bool = False


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """The steps of one call of an attention layer, for one example.

    Attributes:
        layer: Class of the layer.
        query: X, (T, Dq). Maps are sequences of positions, row after row.
        value: Z, (S, Dv), of which keys and values are made.
        queries: Q, (N, T, H).
        keys: K, (N, S, H); of grouped heads each query head has those of its group.
        values: V, (N, S, V).
        terms: Name of each term of the scores to its values, (N, T, S).
        scores: E, (N, T, S), the sum of the terms, without the mask.
        mask: (N, T, S), True = attend.
        weights: A, (N, T, S), the probabilities of the layer.
        mixed: A V, (N, T, V).
        output: Y, (T, D), of the layer; (N, D) of one with a vector for each head, (1,
            D) of one that pools.
        heads: Names of the heads; each window has its own.
        is_self_attention: Whether Z is X.
        meanings: Where the arrays come from, by letter, as the formulas beside them.
        sums: The terms, with the rows that they are made of.
        more: Further arrays between A V and Y, such as a gate.
    """

    layer: str
    query: np.ndarray
    value: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    terms: Mapping[str, np.ndarray]
    scores: np.ndarray
    mask: np.ndarray
    weights: np.ndarray
    mixed: np.ndarray
    output: np.ndarray
    heads: list[str]
    is_self_attention: bool
    meanings: Mapping[str, str] = field(repr=False)
    sums: tuple[Term, ...] = field(repr=False)
    more: tuple[Panel, ...] = field(repr=False, default=())

    def details(self, head: int, query: int, key: int) -> list[tuple[str, float]]:
        """The numbers whose sum is one score, each with the name of its term.

        Args:
            head: Number of the head, from 0.
            query: t, from 0.
            key: s, from 0.

        Returns:
            Pairs of a name, such as `q · k / √H [2]` for the product of the third
            coordinates, and a number.

        Raises:
            ValueError: If there is no such head, query or key.
        """
        given = {"head": head, "query": query, "key": key}
        for (name, index), size in zip(given.items(), self.scores.shape, strict=True):
            if not 0 <= index < size:
                raise ValueError(
                    f"`{name}` must be from 0 to {size - 1}. Received: {name}={index}"
                )
        named = []
        for term in self.sums:
            parts = term.parts(head, query, key)
            is_one = term.function == "number"
            named += [
                (term.name if is_one else f"{term.name} [{unit}]", float(part))
                for unit, part in enumerate(parts)
            ]
        return named

    def of_heads(self, heads: Sequence[int]) -> "AttentionSteps":
        """The steps of some of the heads, with the same output.

        Args:
            heads: Their numbers, from 0.

        Raises:
            ValueError: If there is no such head, or none is given.
        """
        count = len(self.heads)
        own = list(heads) if np.ndim(heads) == 1 else []
        if not own or not all(is_whole(head) and 0 <= head < count for head in own):
            raise ValueError(
                f"`heads` must be numbers from 0 to {count - 1}, at least one. "
                f"Received: heads={heads!r}"
            )
        names = ("queries", "keys", "values", "scores", "mask", "weights", "mixed")
        arrays: dict[str, Any] = {name: getattr(self, name)[own] for name in names}
        sums = tuple(term.of_heads(own) for term in self.sums)
        return dataclasses.replace(
            self,
            **arrays,
            terms={term.name: term.values for term in sums},
            heads=[self.heads[head] for head in own],
            sums=sums,
            more=tuple(each._replace(array=each.array[own]) for each in self.more),
        )

    def panels(self) -> list[Panel]:
        """The arrays in the order in which they are computed, as they are drawn."""
        meanings = self.meanings
        panels = [Panel("X", meanings.get("X", "the input"), self.query)]
        if not self.is_self_attention:
            meaning = meanings.get("Z", "what is attended to")
            panels.append(Panel("Z", meaning, self.value, "key"))
        panels.append(Panel("Q", meanings["Q"], self.queries))
        panels.append(Panel("K", meanings["K"], self.keys, "key"))
        if len(self.terms) > 1:
            panels += [
                Panel(name, meanings.get(name, "a term of E"), values, columns="key")
                for name, values in self.terms.items()
            ]
        meaning = next(iter(self.terms)) if len(self.terms) == 1 else "sum of the terms"
        if any("√H" in name for name in self.terms):
            meaning += f", H = {self.queries.shape[-1]}"
        pairs: dict[str, Any] = {"columns": "key", "hidden": ~self.mask}
        panels.append(Panel("E", meaning, self.scores, **pairs))
        panels.append(Panel("A", "softmax(E)", self.weights, **pairs))
        panels.append(Panel("V", meanings["V"], self.values, "key"))
        if meanings["Y"] != "A V":
            panels.append(Panel("A V", "weighted sums", self.mixed))
        panels += self.more
        rows = "query" if len(self.output) == len(self.query) else "position"
        panels.append(Panel("Y", meanings["Y"], self.output, rows))
        return panels


def steps_of_call(
    layer: keras.layers.Layer,
    arguments: Mapping[str, Any],
    derive: Callable[[Any, Mapping[str, Any]], Derived],
) -> AttentionSteps:
    """The steps of a call, compared with what the layer returns.

    Args:
        layer: The layer; a call builds it, if it is not built.
        arguments: Arguments of its call by name, tensors with a batch of one.
        derive: The function for its class.

    Raises:
        ValueError: If the steps lead to other probabilities or another output.
    """
    with record_attention_scores() as recorded:
        outputs = layer(**arguments)
    weights = to_numpy(next(iter(recorded.values())))[0]
    output = to_numpy(keras.tree.flatten(outputs)[0])[0]
    steps = derive(layer, with_defaults(layer, arguments))
    scores = np.sum([term.values for term in steps.terms], axis=0)
    mask = True if steps.mask is None else steps.mask
    mask = np.broadcast_to(mask, scores.shape)
    own_weights = _softmax(scores, mask)
    mixed = own_weights @ steps.values
    own_output = steps.finish(mixed)
    output = output.reshape(own_output.shape)
    rate = _TOLERANCES.get(layer.compute_dtype, _HALF_TOLERANCE)
    # Rounding of a score is rounding of the numbers that it is a sum of.
    largest = max(np.abs(term.values).max(initial=0) for term in steps.terms)
    _check_equal("probabilities", layer, own_weights, weights, rate * max(1, largest))
    largest = max(np.abs(x).max(initial=0) for x in (mixed, output, steps.query))
    tolerance = rate * max(1, largest) * max(1, np.abs(scores).max(initial=0))
    _check_equal("outputs", layer, own_output, output, tolerance)
    return AttentionSteps(
        type(layer).__name__,
        steps.query,
        steps.value,
        steps.queries,
        steps.keys,
        steps.values,
        {term.name: term.values for term in steps.terms},
        scores,
        mask,
        weights,
        mixed,
        output,
        steps.heads or [f"head {head}" for head in range(len(scores))],
        steps.is_self_attention,
        steps.meanings,
        steps.terms,
        steps.more,
    )


def with_defaults(layer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a layer, with the defaults of those not given.

    Args:
        layer: The layer.
        arguments: Those that are given, by name.
    """
    defaults = {}
    for parent in reversed(type(layer).__mro__):  # A subclass may take `*arguments`.
        if "call" in vars(parent):
            parameters = inspect.signature(parent.call).parameters
            defaults |= {x: y.default for x, y in parameters.items() if x != "self"}
    return {**defaults, **arguments}


def to_numpy(tensor) -> np.ndarray:
    """A tensor as an array, float32 if it has fewer digits."""
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
        tensor = ops.cast(tensor, "float32")
    return np.asarray(ops.convert_to_numpy(tensor))


def _softmax(scores, mask):
    """Probabilities over the keys, 0 where masked, also in rows without a key."""
    visible = np.where(mask, scores, -np.inf)
    highest = visible.max(axis=-1, keepdims=True)
    powers = np.exp(visible - np.where(np.isfinite(highest), highest, 0))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)


def _check_equal(what, layer, steps, returned, tolerance) -> None:
    difference = np.abs(steps - returned).max(initial=0)
    # Not `>`: a difference that is no number is not within the tolerance.
    if not difference <= tolerance:
        raise ValueError(
            f"`layer` must compute what a {type(layer).__name__} computes: its own "
            f"{what} differ from its steps by {difference:.2g}, more than rounding. "
            f"Received: layer={layer.name!r}"
        )
