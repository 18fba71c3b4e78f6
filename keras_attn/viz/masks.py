"""Attention masks as heat maps: which token attends to which.

Legend: T tokens, of rows (queries) and of columns (keys).
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_attn.layers.blocks.xlnet_block import permutation_mask
from keras_attn.ops import (
    banded_mask,
    causal_mask,
    document_mask,
    merge_masks,
    text_image_mask,
)
from keras_attn.ops.masks import sliding_window_mask
from keras_attn.ops.windows import shifted_window_mask
from keras_attn.viz.drawing.labels import drawable, readable
from keras_attn.viz.drawing.plots import (
    TEXT_COLOR,
    add_title,
    draw_panel,
    new_figure,
    panel_columns,
    text_style,
)

_PANEL_INCHES = 3.1
_MAX_TOKENS = 32  # Labels of more could not be read.
_INCHES_PER_TOKEN = 0.16
_LETTERS = 40  # Of a line of a heading.
_TOKENS = ["[START]", "the", "big", "cat", "sat", "[END]", "[PAD]", "[PAD]"]
_TEXT, _GRID = ["red", "cat"], (3, 4)
_WINDOW = 3
# The order in which XLNet predicts the tokens of a row, from 0.
_ORDER = [4, 0, 6, 2, 7, 1, 3, 5]


class MaskExample(NamedTuple):
    """A mask to draw.

    Attributes:
        mask: Booleans (T, T), True = the token of the row attends to that of the
            column.
        tokens: T labels.
        meaning: What it does, a line below the title.
    """

    mask: np.ndarray
    tokens: Sequence[str]
    meaning: str = ""


def example_masks() -> dict[str, MaskExample]:
    """The masks of this library on a few tokens, each by the function that layers use.

    Returns:
        By name: none, causal, padding, sliding window, causal band, prefix, documents,
        permutation, DALL·E's row, column and convolutional, which are of 2 tokens of
        text and a grid of 3 × 4 of an image, and Swin's, of 3 × 3 tokens in the window
        that the shift has joined from four corners of the map.

    Reference:
        Vaswani et al. 2017, section 3.2.3 (arXiv:1706.03762); Beltagy et al. 2020
        (arXiv:2004.05150); Raffel et al. 2020, figure 4 (arXiv:1910.10683); Yang et al.
        2019, figure 4 (arXiv:1906.08237); Ramesh et al. 2021, figure 11
        (arXiv:2102.12092); Liu et al. 2021, figure 4 (arXiv:2103.14030).
    """
    length = len(_TOKENS)
    positions = ops.arange(length, dtype="int32")[None]
    causal = causal_mask(length, length)
    real = np.array([[token != "[PAD]" for token in _TOKENS]])
    every = np.ones((length, length), bool)
    in_prefix = np.arange(length) < 3
    documents = np.array([[0, 0, 0, 1, 1, 1, 2, 2]])
    texts = ["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2"]
    words = [f"x{number}" for number in range(1, length + 1)]
    made: dict[str, tuple[Any, list[str], str]] = {
        "none": (every, words, "a token attends to all tokens"),
        "causal": (causal, words, "to itself and the tokens before it"),
        "padding": (
            merge_masks(attention_mask=every, padding_mask=real, per_head=False),
            _TOKENS,
            "to real tokens, never to padding",
        ),
        "sliding window": (
            sliding_window_mask(length, length, 3),
            words,
            "to itself and two tokens on each side",
        ),
        "causal band": (
            merge_masks(
                attention_mask=banded_mask(positions, positions, 3),
                causal=causal,
                per_head=False,
            ),
            words,
            "to itself and the two tokens before it",
        ),
        "prefix": (
            ops.logical_or(causal, in_prefix),
            words,
            "to the first three tokens; then causal",
        ),
        "documents": (
            merge_masks(
                attention_mask=document_mask(documents), causal=causal, per_head=False
            ),
            texts,
            "texts a, b, c in one row: causal in each",
        ),
        "permutation": (
            permutation_mask(np.array([_ORDER])),
            [f"x{n}:{order + 1}" for n, order in enumerate(_ORDER, 1)],
            "x1:5 is the fifth to be predicted; to those predicted before",
        ),
    }
    total = len(_TEXT) + math.prod(_GRID)
    cells = [f"{row},{column}" for row, column in np.ndindex(_GRID)]
    for kind, meaning in (
        ("row", "the code at row,column: to the text and a row of codes before it"),
        ("column", "to the text and the codes above it"),
        ("convolutional", "to the text and to neighbors before it, in 3 x 3 codes"),
    ):
        mask = text_image_mask(
            kind,
            ops.arange(total, dtype="int32"),
            ops.arange(total, dtype="int32"),
            text_length=len(_TEXT),
            num_columns=_GRID[1],
            window_size=3,
        )
        made[f"DALL·E, {kind}"] = (mask, [*_TEXT, *cells], meaning)
    made["Swin, shifted window"] = (
        shifted_window_mask((6, 6), _WINDOW, 1)[-1],  # Of the corner.
        [f"{row},{column}" for row, column in np.ndindex(_WINDOW, _WINDOW)],
        "the token at row,column of a window: to those that were adjacent",
    )
    return {
        name: MaskExample(_as_square(mask), tokens, meaning)
        for name, (mask, tokens, meaning) in made.items()
    }


def plot_masks(
    masks: Mapping[str, Any] | None = None,
    tokens: Sequence[str] | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws masks, a panel for each: blue where a query attends to a key.

    Rows are queries, columns keys. One figure of all kinds shows that a mask is any
    relation between tokens: causal masks and padding are two of many.

    Args:
        masks: By the name above the panel: booleans, or 0 and 1, (T, T), at most 32
            tokens, or a `MaskExample`. Axes of size 1 before them are dropped. Default:
            `example_masks()`, all kinds of this library.
        tokens: T labels of all masks that are no `MaskExample`. Default: the positions,
            from 0.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If there is no mask, one is not of this shape or has other values,
            or the number of tokens differs.

    Example:
        ```python
        from keras_attn import ops, viz

        masks = {"causal": ops.causal_mask(3, 3)}  # Default: twelve kinds.
        figure = viz.plot_masks(masks, ["[START]", "big", "cat"])
        viz.save_figure(figure, "masks.png")
        ```
    """
    examples = example_masks() if masks is None else masks
    named = isinstance(examples, Mapping) and examples
    if not named or not all(isinstance(name, str) for name in examples):
        raise ValueError(
            "`masks` must be a dictionary, at least one mask by its name, a string. "
            f"Received: masks={masks!r}"
        )
    drawn = {name: _check(name, mask, tokens) for name, mask in examples.items()}
    columns = panel_columns(len(drawn))
    rows = math.ceil(len(drawn) / columns)
    longest = max(len(example.tokens) for example in drawn.values())
    side = max(_PANEL_INCHES, _INCHES_PER_TOKEN * longest)
    figure = new_figure(
        columns * side,
        rows * (side + 0.45) + 0.4 + 0.3 * (title is not None),
        layout="constrained",
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(drawn) :]:
        axis.remove()
    for axis, (name, (mask, labels, meaning)) in zip(axes, drawn.items(), strict=False):
        draw_panel(axis, mask.astype("float32"), labels, labels, 0.7 * side / len(mask))
        heading = [
            line
            for text in (name, meaning)
            for line in textwrap.wrap(drawable(text), _LETTERS)
        ]
        axis.set_title("\n".join(heading), **text_style(9))
        axis.set_xlabel("key", fontsize=8, color=TEXT_COLOR)
        axis.set_ylabel("query", fontsize=8, color=TEXT_COLOR)
    legend = "blue: the query of the row attends to the key of the column; white: not"
    lines = textwrap.wrap(legend, int(_LETTERS * columns * side / _PANEL_INCHES))
    figure.supxlabel("\n".join(lines), fontsize=9, color=TEXT_COLOR)
    add_title(figure, title, fontsize=12)
    return figure


def _check(name: str, mask: Any, tokens: Sequence[str] | None) -> MaskExample:
    """A mask with its labels, after a check."""
    meaning = ""
    if isinstance(mask, MaskExample):
        mask, tokens, meaning = mask
    square = _as_square(mask, name)
    count = len(square)
    tokens = list(map(str, range(count))) if tokens is None else tokens
    strings = not isinstance(tokens, str) and all(isinstance(x, str) for x in tokens)
    if not strings or len(tokens) != count:
        raise ValueError(
            f"`tokens` must be {count} strings, one for each row of the mask {name!r}. "
            f"Received: tokens={tokens!r}"
        )
    return MaskExample(square, list(map(readable, tokens)), meaning)


def _as_square(mask: Any, name: str = "") -> np.ndarray:
    """A mask as booleans (T, T), without axes of size 1 before them."""
    try:
        array = np.asarray(ops.convert_to_numpy(mask))
    except ValueError as error:  # Rows of several lengths.
        raise ValueError(
            f"`masks` must be arrays. Received: {name!r}: {mask!r}"
        ) from error
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    shape = array.shape
    if array.ndim != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= _MAX_TOKENS:
        raise ValueError(
            f"`masks` must have the shape (T, T), T from 1 to {_MAX_TOKENS}. "
            f"Received: {name!r} of shape {shape}"
        )
    if not np.isin(array, (0, 1)).all():
        raise ValueError(
            "`masks` must be booleans, or 0 and 1, 1 = attend. "
            f"Received: {name!r} from {array.min():.4g} to {array.max():.4g}"
        )
    return array.astype(bool)
