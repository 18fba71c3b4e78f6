"""The steps of every attention layer, computed from its weights outside of its call.

`terms.py` has the terms of a score, `of_sequences.py` and `of_maps.py` a function for
each class of layers, `kinds.py` the classes, `steps.py` the comparison with what the
layer returns, `arguments.py` inputs and masks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attn.viz.layer_steps.arguments import (
    attention_inside,
    call_arguments,
    kind_of,
    permute,
)
from keras_attn.viz.layer_steps.kinds import Kind
from keras_attn.viz.layer_steps.steps import AttentionSteps, Panel, steps_of_call

__all__ = [
    "AttentionSteps",
    "Explained",
    "Panel",
    "attention_inside",
    "attention_steps",
    "call_arguments",
    "explain_call",
    "explain_orders",
    "kind_of",
]


Labels = tuple[list[str], list[str]]


class Explained(NamedTuple):
    """The steps of a call and, perhaps, of the same call in another order.

    Attributes:
        steps: As given.
        labels: Of the queries, and of the keys.
        permuted: In another order, or None.
        permuted_labels: As `labels`, in that order.
        effect: What the order does to the output, with its largest difference.
    """

    steps: AttentionSteps
    labels: Labels
    permuted: AttentionSteps | None = None
    permuted_labels: Labels = ([], [])
    effect: str = ""

    def orders(
        self, heads: Sequence[int] | None = None
    ) -> list[tuple[AttentionSteps, Labels]]:
        """The steps with their labels, as given and perhaps in another order.

        Args:
            heads: Numbers of the heads to keep, from 0. None = all.

        Raises:
            ValueError: If a head does not exist.
        """
        given = [(self.steps, self.labels), (self.permuted, self.permuted_labels)]
        return [
            (steps if heads is None else steps.of_heads(heads), labels)
            for steps, labels in given
            if steps is not None
        ]


def attention_steps(
    layer: keras.layers.Layer, query, value=None, key=None, mask=None, **call: Any
) -> AttentionSteps:
    """What an attention layer computes for one example, step by step.

    Queries, keys, values and scores are computed from the weights, outside of the
    layer, each term of a score by itself. The layer is called, too: if it returns other
    probabilities or another output, there is an error.

    Args:
        layer: An attention layer of `keras_attn.layers`, or of a subclass: multi-head,
            additive, dot-product, relative, of windows, of maps, of glimpses, pooling,
            word-guided. One that is not built is built, with random weights. A
            `CoAttentionBlock` and other blocks have attention layers inside: pass one.
        query: The first input of the layer, one example without or with a batch of one:
            (T, Dq), of `GlimpseAttention` (Dq,), of layers for maps (rows, columns, D).
        value: The second input, (S, Dv), of `AdditiveAttention2D` (rows, columns, Dv).
            None = the layer has one, as in self-attention.
        key: The third input, (S, Dk), or None.
        mask: True or 1 = attend: `"causal"`; a value for each key, (S,), which is of
            padding (of `AdditiveAttention2D` (rows, columns), of `WordGuidedAttention`
            (T,), a value for each word); or (T, S), of `MultiHeadAttention` also (N, T,
            S). Several in a tuple: a query attends where all are True.
        **call: Further arguments of the layer's call, with a batch of one, such as
            `attention_bias`, `memory` or `same_segment`.

    Returns:
        The steps. `steps.details(head, t, s)` has the numbers whose sum is a score.

    Raises:
        ValueError: If `layer` is no attention layer of this library, an input or a mask
            does not fit, or the steps lead to other numbers than those of the layer:
            1e-6 in float32, times the largest number where it is above 1.

    Example:
        ```python
        import numpy as np
        from keras_attn import layers, viz

        layer = layers.MultiHeadAttention(num_heads=2, key_dim=4)
        steps = viz.attention_steps(layer, np.random.normal(size=(3, 8)), mask="causal")
        print(steps.scores.shape, steps.details(head=0, query=2, key=1))  # (2, 3, 3), …
        ```
    """
    return explain_call(layer, call_arguments(layer, query, value, key, mask, call))


def explain_call(layer: keras.layers.Layer, arguments) -> AttentionSteps:
    """The steps of a call of an attention layer, by the arguments of the call.

    Args:
        layer: The layer.
        arguments: Arguments of its call by name, with a batch of one.

    Raises:
        ValueError: As for `attention_steps`.
    """
    return steps_of_call(layer, arguments, kind_of(layer).derive)


def explain_orders(
    layer: keras.layers.Layer,
    arguments,
    permutation: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    value_labels: Sequence[str] | None = None,
) -> Explained:
    """The steps of a call, and of its inputs in another order.

    Args:
        layer: The layer.
        arguments: Arguments of its call by name, with a batch of one.
        permutation: Row `permutation[i]` of the input becomes row i; None = no other
            order.
        labels: A text for each query. None = numbers.
        value_labels: A text for each key. None = those of the queries in
            self-attention, else numbers.

    Raises:
        ValueError: As for `attention_steps`, or if `permutation` is none, or there are
            too many labels or too few.
    """
    kind = kind_of(layer)
    moved = None
    if permutation is not None:  # Checked before anything is computed.
        moved = permute(layer, arguments, permutation)
    steps = explain_call(layer, arguments)
    queries = _labels("labels", labels, len(steps.query))
    keys = queries
    if value_labels is not None or not steps.is_self_attention:
        keys = _labels("value_labels", value_labels, len(steps.value))
    if moved is None or permutation is None:
        return Explained(steps, (queries, keys))
    permuted = explain_call(layer, moved)
    expected = steps.output
    if kind.ordered:
        expected = expected[np.asarray(permutation)]
    difference = np.abs(permuted.output - expected).max()
    # Sums in another order are rounded otherwise.
    is_equal = difference <= 1e-5 * max(1, np.abs(expected).max())
    if kind.ordered:
        effect = "Y is permuted alike" if is_equal else "Y is not only permuted"
    else:
        effect = "Y stays the same" if is_equal else "Y is another one"
    if not is_equal:
        effect += ", because places count here"
    return Explained(
        steps,
        (queries, keys),
        permuted,
        _permuted_labels(steps, kind, (queries, keys), permutation),
        f"{effect}: largest difference {difference:.2g}",
    )


def _permuted_labels(
    steps: AttentionSteps, kind: Kind, labels: Labels, permutation: Sequence[int]
) -> Labels:
    """The labels of the inputs in another order; those of a memory stay first."""
    queries, keys = labels
    count = len(permutation)
    if len(queries) == count:
        queries = [queries[place] for place in permutation]
    if steps.is_self_attention or kind.permuted != "query":
        moved = [keys[-count:][place] for place in permutation]
        keys = keys[:-count] + moved
    return queries, keys


def _labels(name: str, labels: Sequence[str] | None, count: int) -> list[str]:
    if labels is None:
        return [str(number) for number in range(count)]
    is_list = np.ndim(labels) == 1 and all(isinstance(each, str) for each in labels)
    if not is_list or len(labels) != count:
        raise ValueError(
            f"`{name}` must be {count} texts, one for each row. "
            f"Received: {name}={labels!r}"
        )
    return list(labels)
