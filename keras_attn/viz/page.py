"""Attention of all heads as one HTML page to explore, without a network.

Legend: N heads, T target tokens (rows), S source tokens (columns).
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.heads_page import BODY, SCRIPT, STYLE
from keras_attn.viz.drawing.html import Page, fill_page
from keras_attn.viz.drawing.labels import visible
from keras_attn.viz.heads import plot_attention_heads, select_layers

_UNIT = 65_535  # Of the weights in the page, which are numbers of 16 bits.


@described_as(plot_attention_heads)
def attention_page(
    scores: Mapping[str, np.ndarray],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str = "Attention",
) -> Page:
    """Makes an HTML page to explore the attention of every head in a browser.

    It opens on all heads, a row for each layer; where tokens are more than points of
    the picture, a point has the largest of its weights. A click on a head, or Enter,
    shows its matrix with the tokens, or lines between them, for the 2,000 largest
    weights; arrow keys go to other heads and layers, Escape back. A click on a token
    keeps its weights. The address is a link to what is shown:
    `attention.html#layer=2&head=8&view=lines`. It has a light and a dark style. Its
    styles, script and data are in the page itself: it is a single file that loads
    nothing. A notebook shows the page in a frame.

    The data is JSON, in the element `attention`: `title` and `models`, each with its
    `name` and `layers`, each with `index`, `path`, `heads` (numbers), `source_tokens`,
    `target_tokens` and `weights`: (N, T, S) in 1/65,535, rounded, little-endian numbers
    of 16 bits in base64.

    Args:
        source_tokens: Labels of the source tokens.
        target_tokens: Labels of the target tokens of an encoder-decoder, or None.
        layers: Numbers of the layers to include. None = all.
        heads: Numbers of the heads to include. None = all.
        title: Title of the page, such as the text.

    Returns:
        The HTML, a `str`, to be written as UTF-8.

    Raises:
        ValueError: As for `plot_attention_heads`.

    Example:
        ```python
        from pathlib import Path
        import numpy as np
        from keras_attn import models, viz

        gpt = models.build_gpt(num_layers=2, hidden_dim=32, num_heads=2)
        inputs = {"token_ids": np.array([[5, 6, 7]]), "padding_mask": np.ones((1, 3))}
        scores = viz.capture_attention(gpt, inputs)
        page = viz.attention_page(scores, ["A", "dog", "runs"])
        Path("attention.html").write_text(page, encoding="utf-8")
        ```
    """
    chosen = _layers(scores, source_tokens, target_tokens, layers, heads)
    return _page(title, [{"name": "", "layers": chosen}])


@described_as(attention_page)
def attention_comparison_page(
    models: Mapping[str, Sequence[Any]],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str = "Attention",
) -> Page:
    """Makes the page of `attention_page` for several models, side by side.

    All show the same head and, if their tokens are the same, the same token, such as
    before and after a fit, or two models of a family.

    Args:
        models: The name of each model, and its `scores`, `source_tokens` and, for an
            encoder-decoder, `target_tokens`, as for `attention_page`.

    Returns:
        The HTML, a `str`, to be written as UTF-8.

    Raises:
        ValueError: If there is no model; or as for `plot_attention_heads`.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        words = ["A", "dog", "runs"]
        inputs = {"token_ids": np.array([[5, 6, 7]]), "padding_mask": np.ones((1, 3))}
        gpts = [models.build_gpt(num_layers=n, hidden_dim=24) for n in (1, 2)]
        scores = [viz.capture_attention(gpt, inputs) for gpt in gpts]
        both = {"small": (scores[0], words), "large": (scores[1], words)}
        page = viz.attention_comparison_page(both)  # HTML, both side by side.
        ```
    """
    if not isinstance(models, Mapping) or not models:
        raise ValueError(
            "`models` must be a dictionary of at least one model. Received: "
            f"models={models!r}"
        )
    for name, parts in models.items():
        if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
            raise ValueError(
                "`models` must be the scores, the source tokens and, perhaps, the "
                f"target tokens of each model. Received: {type(parts).__name__} of "
                f"{name!r}"
            )
    return _page(
        title,
        [
            {
                "name": name,
                "layers": _layers(
                    parts[0],
                    parts[1],
                    parts[2] if len(parts) == 3 else None,
                    layers,
                    heads,
                ),
            }
            for name, parts in models.items()
        ],
    )


def _layers(scores, source_tokens, target_tokens, layers, heads) -> list[dict]:
    """The data of the chosen layers of a model."""
    return [
        {
            "index": layer.index,
            "path": layer.path,
            "heads": layer.heads,
            "source_tokens": list(map(visible, layer.source_tokens)),
            "target_tokens": list(map(visible, layer.target_tokens)),
            "weights": _encoded(layer.scores),
        }
        for layer in select_layers(scores, source_tokens, target_tokens, layers, heads)
    ]


def _encoded(scores: np.ndarray) -> str:
    """As numbers of 16 bits in base64, which a browser reads faster than digits."""
    weights = np.rint(np.clip(scores, 0, 1) * _UNIT).astype("<u2")
    return base64.b64encode(weights.tobytes()).decode()


def _page(title: str, models: list[dict]) -> Page:
    data = {"title": title, "models": models}
    return fill_page("attention", title, data, STYLE, BODY, SCRIPT)
