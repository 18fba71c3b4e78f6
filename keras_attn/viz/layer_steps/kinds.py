"""The classes of attention layers whose steps can be shown.

A function for each computes them from the weights of a layer, outside of its call. The
projections are those of the layer, which may have LoRA or quantized weights; what
follows them is written out in `of_sequences.py` and `of_maps.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras_attn import layers
from keras_attn.viz.layer_steps import of_maps, of_sequences
from keras_attn.viz.layer_steps.steps import Derived


class Kind(NamedTuple):
    """How layers of one class are called, and their steps.

    Attributes:
        derive: The steps, from a layer and the arguments of a call.
        inputs: Name of each input to its axes, without the batch.
        masks: Whether a call takes an `attention_mask`.
        padding: The input whose positions a `padding_mask` is of; None without one.
        permuted: The input whose order can be changed.
        ordered: Whether the output has a row for each position of that input.
    """

    derive: Callable[[Any, Mapping[str, Any]], Derived]
    inputs: Mapping[str, int]
    masks: bool = False
    padding: str | None = None
    permuted: str = "query"
    ordered: bool = True


_SEQUENCES = {"query": 2, "value": 2, "key": 2}
KINDS: dict[type, Kind] = {
    layers.MultiHeadAttention: Kind(of_sequences.multi_head, _SEQUENCES, True, "value"),
    layers.ScoredAttention: Kind(of_sequences.scored, _SEQUENCES, True, "value"),
    layers.AdditiveAttention2D: Kind(
        of_maps.additive_2d, {"query": 2, "value": 3}, padding="value"
    ),
    layers.RelativeMultiHeadAttention: Kind(
        of_sequences.relative, {"inputs": 2}, True, "inputs", "inputs"
    ),
    layers.WindowAttention: Kind(of_maps.window, {"inputs": 3}, permuted="inputs"),
    layers.SelfAttention2D: Kind(
        of_maps.self_attention_2d, {"inputs": 3}, permuted="inputs"
    ),
    layers.AttentionPooling: Kind(
        of_maps.attention_pooling, {"inputs": 3}, permuted="inputs", ordered=False
    ),
    layers.ProbePooling: Kind(
        of_sequences.probe_pooling, {"inputs": 2}, permuted="inputs", ordered=False
    ),
    layers.GlimpseAttention: Kind(
        of_sequences.glimpse, {"query": 1, "value": 2}, permuted="value", ordered=False
    ),
    layers.WordGuidedAttention: Kind(
        of_sequences.word_guided, _SEQUENCES, padding="query", ordered=False
    ),
}
