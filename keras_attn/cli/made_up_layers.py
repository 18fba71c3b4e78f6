"""Small attention layers with made-up weights, for `keras-attn explain`.

Words and weights are random with one decimal, so that each step can be followed by
hand. Equal words are equal vectors.

Legend: T queries, S keys, D width.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import keras
    import numpy as np

_SIDE = 4  # Rows and columns of a map.
_WINDOW = 2
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
        make: From the module of layers and the sizes.
        inputs: What its inputs are, in words.
        has_heads: Whether it has several heads.
        meaning: What it is, for the help.
    """

    make: Callable[[Any, Sizes], Any]
    inputs: str
    has_heads: bool
    meaning: str


def _multi_head(**options: Any):
    return lambda layers, sizes: layers.MultiHeadAttention(
        sizes.heads, sizes.head, **options
    )


def _grouped(layers, sizes: Sizes):
    return layers.MultiHeadAttention(sizes.heads, sizes.head, num_key_value_heads=1)


def _dot(score: str):
    return lambda layers, sizes: layers.DotProductAttention(score)


def _window(shifted: bool):
    return lambda layers, sizes: layers.WindowAttention(
        sizes.heads, _WINDOW, shifted=shifted
    )


KINDS = {
    "attention": Kind(_multi_head(), "one sequence", True, "multi-head self-attention"),
    "cross": Kind(_multi_head(), "two sequences", True, "multi-head cross-attention"),
    "grouped": Kind(_grouped, "one sequence", True, "heads that share keys and values"),
    "sliding": Kind(
        _multi_head(sliding_window=2),
        "one sequence",
        True,
        "each word and its neighbors",
    ),
    "gated": Kind(_multi_head(use_gate=True), "one sequence", True, "with a gate"),
    "additive": Kind(
        lambda layers, sizes: layers.AdditiveAttention(sizes.width),
        *("two sequences", False, "Bahdanau's"),
    ),
    "dot": Kind(_dot("dot"), "two sequences", False, "plain products"),
    "scaled-dot": Kind(_dot("scaled_dot"), "two sequences", False, "products / √D"),
    "general": Kind(_dot("general"), "two sequences", False, "Luong's, with a matrix"),
    "linear": Kind(_dot("linear"), "two sequences", False, "of [q; k]"),
    "mlp-dot": Kind(
        lambda layers, sizes: layers.MLPDotAttention(sizes.width),
        *("two sequences", False, "of listen, attend and spell"),
    ),
    "relative": Kind(
        lambda layers, sizes: layers.RelativeMultiHeadAttention(
            sizes.heads, sizes.head
        ),
        *("one sequence", True, "Transformer-XL's relative positions"),
    ),
    "window": Kind(_window(False), "a map", True, "Swin's windows"),
    "shifted-window": Kind(_window(True), "a map", True, "Swin's, shifted"),
    "map": Kind(
        lambda layers, sizes: layers.SelfAttention2D(sizes.head),
        *("a map", False, "SAGAN's, over a map"),
    ),
    "additive-map": Kind(
        lambda layers, sizes: layers.AdditiveAttention2D(sizes.width),
        *("a sequence and a map", False, "of show, attend and read"),
    ),
    "glimpses": Kind(
        lambda layers, sizes: layers.GlimpseAttention(sizes.width, sizes.heads),
        *("a query and a sequence", True, "of show, ask, attend and answer"),
    ),
    "word-guided": Kind(
        lambda layers, sizes: layers.WordGuidedAttention(),
        *("two sequences", False, "of ask, attend and answer"),
    ),
    "pooling": Kind(
        lambda layers, sizes: layers.AttentionPooling(sizes.heads),
        *("a map", True, "CLIP's pooling of a map"),
    ),
    "probe": Kind(
        lambda layers, sizes: layers.ProbePooling(sizes.heads, 2 * sizes.width),
        *("one sequence", True, "pooling by a learned query"),
    ),
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
    layer = found.make(layers, sizes)
    labels, value_labels = words, others
    inputs = {"query": vectors(words)}
    if form == "one sequence":
        value_labels = words if kind == "probe" else None
        labels = ["query"] if kind == "probe" else words
    elif form == "two sequences":
        inputs["value"] = vectors(others)
        if kind == "word-guided":
            inputs["key"] = inputs["value"]
    elif form == "a query and a sequence":
        inputs = {"query": vectors([" ".join(words)])[0], "value": vectors(others)}
        labels = ["query"]
    else:
        maps = vectors(places).reshape(_SIDE, _SIDE, sizes.width)
        if form == "a sequence and a map":
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
