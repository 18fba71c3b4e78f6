"""Small attention layers with made-up weights, for `keras-attn explain`.

Words and weights are random with one decimal, so that each step can be followed by
hand. Equal words are equal vectors.

Legend: T queries, S keys, D width.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import keras
    import numpy as np

_SIDE = 4  # Rows and columns of a map.
WORDS, OTHER_WORDS = "[START] Big cat", "Le gros chat noir"


class Sizes(NamedTuple):
    """The sizes of a layer.

    Attributes:
        heads: Heads, or glimpses.
        width: D, of the inputs.
    """

    heads: int
    width: int

    @property
    def head(self) -> int:
        """The size of each head."""
        return max(1, self.width // self.heads)


class Kind(NamedTuple):
    """One kind of layer.

    Attributes:
        meaning: What it is, for the help.
        inputs: What its inputs are, in words.
        layer: Name of the class.
        sizes: Its first arguments: names of attributes of `Sizes`.
        options: Its other arguments.
    """

    meaning: str
    inputs: str
    layer: str
    sizes: str = ""
    options: Mapping[str, Any] = {}

    @property
    def has_heads(self) -> bool:
        """Whether it may have several heads."""
        return "heads" in self.sizes.split()


_SELF, _TWO, _MAP = "one sequence", "two sequences", "a map"
_QUERY, _MAP_AND_WORDS = "a query and a sequence", "a sequence and a map"
WITH_MEMORY = (_TWO, _QUERY)
_HEADS = ("MultiHeadAttention", "heads head")
_DOT, _WINDOW = "DotProductAttention", "WindowAttention"
KINDS = {
    "attention": Kind("multi-head self-attention", _SELF, *_HEADS),
    "cross": Kind("multi-head cross-attention", _TWO, *_HEADS),
    "grouped": Kind(
        "heads that share keys and values", _SELF, *_HEADS, {"num_key_value_heads": 1}
    ),
    "sliding": Kind(
        "each word and its neighbors", _SELF, *_HEADS, {"sliding_window": 2}
    ),
    "gated": Kind("with a gate", _SELF, *_HEADS, {"use_gate": True}),
    "additive": Kind("Bahdanau's", _TWO, "AdditiveAttention", "width"),
    "dot": Kind("plain products", _TWO, _DOT, "", {"score": "dot"}),
    "scaled-dot": Kind("products / √D", _TWO, _DOT, "", {"score": "scaled_dot"}),
    "general": Kind("Luong's, with a matrix", _TWO, _DOT, "", {"score": "general"}),
    "linear": Kind("of q and k side by side", _TWO, _DOT, "", {"score": "linear"}),
    "mlp-dot": Kind("of listen, attend and spell", _TWO, "MLPDotAttention", "width"),
    "relative": Kind(
        "Transformer-XL's relative positions",
        _SELF,
        "RelativeMultiHeadAttention",
        "heads head",
    ),
    "window": Kind("Swin's windows", _MAP, _WINDOW, "heads", {"window_size": 2}),
    "shifted-window": Kind(
        "Swin's, shifted", _MAP, _WINDOW, "heads", {"window_size": 2, "shifted": True}
    ),
    "map": Kind("SAGAN's, over a map", _MAP, "SelfAttention2D", "head"),
    "additive-map": Kind(
        "of show, attend and read", _MAP_AND_WORDS, "AdditiveAttention2D", "width"
    ),
    "glimpses": Kind(
        "of show, ask, attend and answer", _QUERY, "GlimpseAttention", "width heads"
    ),
    "word-guided": Kind("of ask, attend and answer", _TWO, "WordGuidedAttention"),
    "pooling": Kind("CLIP's pooling of a map", _MAP, "AttentionPooling", "heads"),
    "probe": Kind("pooling by a learned query", _SELF, "ProbePooling", "heads width"),
}


class MadeUp(NamedTuple):
    """A layer, inputs for it, and their labels.

    Attributes:
        layer: The layer, with made-up weights.
        inputs: Arguments of `viz.attention_steps`.
        labels: A text for each query.
        value_labels: A text for each key; None = those of the queries.
    """

    layer: "keras.layers.Layer"
    inputs: "dict[str, np.ndarray]"
    labels: list[str]
    value_labels: list[str] | None


def make_layer(
    kind: str, words: list[str], others: list[str], sizes: Sizes, seed: int
) -> MadeUp:
    """Makes a layer of a kind, its weights and its inputs.

    Args:
        kind: A name in `KINDS`.
        words: The T queries.
        others: The S keys, if the layer has two sequences.
        sizes: Its sizes.
        seed: Seed of all numbers.
    """
    import numpy as np

    from keras_attn import layers

    rng = np.random.default_rng(seed)
    known: dict[str, np.ndarray] = {}

    def vectors(texts):
        for text in texts:
            if text not in known:
                known[text] = _rounded(rng.normal(size=sizes.width))
        return np.stack([known[text] for text in texts])

    places = [f"{row},{column}" for row, column in np.ndindex(_SIDE, _SIDE)]
    found, form = KINDS[kind], KINDS[kind].inputs
    first = (getattr(sizes, name) for name in found.sizes.split())
    layer = getattr(layers, found.layer)(*first, **found.options)
    labels, value_labels = words, others
    inputs = {"query": vectors(words)}
    if form == _SELF:
        value_labels = words if kind == "probe" else None
        labels = ["query"] if kind == "probe" else words
    elif form == _TWO:
        inputs["value"] = vectors(others)
        if kind == "word-guided":
            inputs["key"] = inputs["value"]
    elif form == _QUERY:
        inputs = {"query": vectors([" ".join(words)])[0], "value": vectors(others)}
        labels = ["query"]
    else:
        maps = vectors(places).reshape(_SIDE, _SIDE, sizes.width)
        if form == _MAP_AND_WORDS:
            inputs["value"], value_labels = maps, places
        elif kind == "pooling":
            inputs = {"query": maps}
            labels, value_labels = ["mean"], ["mean", *places]
        else:
            inputs, labels, value_labels = {"query": maps}, places, None
    layer(*(array[None] for array in inputs.values()))  # Builds it.
    for weight in layer.trainable_variables:
        weight.assign(_made_up(weight, rng))
    return MadeUp(layer, inputs, labels, value_labels)


def _made_up(weight, rng) -> Any:
    """Numbers for a weight: scores neither all alike nor all of one key."""
    import numpy as np

    name, shape = weight.name, tuple(weight.shape)
    if name in ("bias", "beta"):
        return np.zeros(shape)
    if name == "gamma":  # Of SelfAttention2D, whose own is 0; of a norm.
        return np.full(shape, 1.0 if shape else 0.5)
    fan_in = shape[0] if name == "kernel" else 1
    return _rounded(rng.normal(size=shape) * 1.5 / np.sqrt(fan_in))


def _rounded(values):
    return values.round(1).astype("float32")
