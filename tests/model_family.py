"""What `families/*.py` are written with: sizes, `Graph`, and parts of their formulas.

Sizes are distinct primes, so that swapped axes are noticed: B=2 rows, T=3 target and
S=5 source tokens, U=7 units, E=11 embedding, M=13 maxout, A=17 alignment units, V=19
target and 23 source tokens. Models of blocks: 3 heads of 7, C=29 classes, 31 positions,
37 hidden units. Images: 14 by 21 pixels in patches of 7; for Swin and ConvNeXt 18 by 26
in patches of 2, so that neither windows of 4 nor stages divide the map.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

B, T, S, U, E, M, A, V, SOURCE_V = 2, 3, 5, 7, 11, 13, 17, 19, 23
HEADS, D, C, POSITIONS, MLP = 3, 21, 29, 31, 37

CLASSES = {"num_classes": C}
BLOCKS = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": D,
    "num_heads": HEADS,
    "mlp_dim": MLP,
}
POSITIONED = {**BLOCKS, "max_sequence_length": POSITIONS}
SEQ2SEQ = {
    "source_vocabulary_size": SOURCE_V,
    "target_vocabulary_size": V,
    "embedding_dim": E,
    "hidden_dim": U,
}
CAPTIONS = {
    "grid_size": (2, 3),
    "feature_dim": 5,
    "vocabulary_size": V,
    "embedding_dim": E,
}
GRID = {"grid_size": (3, 7), "feature_dim": M}
STAGES = {"image_size": (18, 26), "patch_size": 2, **CLASSES}
# The heads of a text encoder. The other families' heads are those of BERT on another
# encoder; parity tests cover them all.
ENCODER_HEADS = {
    "masked_lm": {},
    "next_sentence": {},
    "classifier": CLASSES,
    "token_classifier": CLASSES,
    "span_qa": {},
    "sentence_encoder": {},
}
OWN_HEADS = {name: ENCODER_HEADS[name] for name in ("masked_lm", "classifier")}


@dataclass(frozen=True)
class Graph:
    """A model under test, at a tiny size, and what is tested of it.

    A file in `families/` has a list of them, `GRAPHS`. Everything but the name, the
    sizes and the numbers of parameters may be left out; the suites read the rest, such
    as inputs and task, from the model and its card.

    Attributes:
        name: Its name in the registry.
        tiny: Arguments of the builder that make it tiny. An ordinary test of it should
            take less than a second.
        parameters: Exact number of parameters of each published size: of `name`, and of
            every other name of the registry whose graph is the same at the tiny size.
            From a formula of the paper's sizes, or counted by another implementation.
        options: Arguments to test, too, by a name for them: the case `name-option`.
        heads: Arguments of each head on this model: `bert_classifier` is
            `models.build_bert_classifier(model)`; what follows a "-" tells cases of one
            head apart.
        exported: Cases of options and heads that are exported, too, because their
            operators are new.
        pairs: Cases whose pair for decoding is exported. Default: this one, if it
            decodes; less where another model has a state of the same kind.
        layers: By name, the number of blocks, if all are equal and counting them all
            would take seconds.
        attends: Whether it has attention, whose scores are captured.
        tables: Parts of the paths of weights that start with computed values instead of
            random ones.
        smaller: Arguments that make it smaller still, for fits, whose time is
            compilation. Default: one layer instead of two.
        reference: The equations of the paper in NumPy, one row and one step at a time:
            from a model and its inputs to outputs by name. It may read the weights of
            the model, but call nothing of it. Default: another test compares the model
            with an independent implementation.
    """

    name: str
    tiny: dict[str, Any]
    parameters: dict[str, int]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    heads: dict[str, dict[str, Any]] = field(default_factory=dict)
    exported: tuple[str, ...] = ()
    pairs: tuple[str, ...] | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    attends: bool = True
    tables: tuple[str, ...] = ()
    smaller: dict[str, Any] | None = None
    reference: Callable[[keras.Model, dict[str, Any]], dict[str, Any]] | None = None


# Numbers of parameters from the equations of the papers, with biases. A gate of a
# recurrent unit has the weights of `W x + R h + b`.


def gate(inputs, units):
    return units * (inputs + units + 1)


def dense(inputs, outputs):
    return (inputs + 1) * outputs


def lstm(units, inputs):
    """Four gates, each of the input and the last output, with a bias."""
    return 4 * gate(inputs, units)
