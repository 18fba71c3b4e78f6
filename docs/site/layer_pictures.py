"""Pictures of the pages of layers, drawn when the site is built.

A page asks for one by a comment, which shows nothing where the repository is read:

    <!-- steps: additive -->      each step of a layer of `keras-attn explain`
    <!-- masks: causal, prefix --> masks of `viz.example_masks`
    <!-- windows -->              Swin's windows
    <!-- positions -->            sinusoids

Below the steps stands a link to the page on which each number can be looked at.
"""

import re
from pathlib import Path

import links
from matplotlib.figure import Figure

from keras_attn import viz
from keras_attn.cli.made_up_layers import KINDS, OTHER_WORDS, WORDS, Sizes, make_layer

_COMMENT = re.compile(r"<!-- (steps|masks|windows|positions)(?:: ([^>]+?))? -->")
_SIZES = Sizes(heads=2, width=4)


def with_pictures(pages: dict[str, str]) -> dict[str, str]:
    """The pages that ask for pictures, with them.

    Args:
        pages: The text of each page by its path.
    """
    return {
        path: _COMMENT.sub(_shown, text)
        for path, text in pages.items()
        if path.startswith("layers/")
    }


def _shown(match: re.Match[str]) -> str:
    what, names = match.groups()
    name = _file_name(what, names)
    picture = f"../images/layers/{name}.png"
    if what == "steps":
        meaning = KINDS[names].meaning
        return (
            f"![Each step of a small layer, {meaning}, as heat maps]({picture})\n\n"
            f"*Each step for a small layer with made-up weights. "
            f'<a href="../../images/layers/{name}.html">Look at each number</a>, or '
            f"make it: `keras-attn explain {names}`.*"
        )
    words = {
        "masks": f"Masks: {names}; blue: the row attends to the column",
        "windows": "Windows before and after the shift, and their masks",
        "positions": "Sinusoids by position, and their distances",
    }
    return f"![{words[what]}]({picture})"


def _file_name(what: str, names: str | None) -> str:
    return re.sub(r"\W+", "_", f"{what}_{names}" if names else what).lower()


def draw(folder: Path) -> None:
    """Draws the pictures that the pages ask for.

    Args:
        folder: Where they are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = {
        match
        for source in (links.ROOT / "docs" / "layers").glob("*.md")
        for match in _COMMENT.findall(source.read_text("utf-8"))
    }
    for what, names in sorted(asked):
        path = folder / f"{_file_name(what, names)}.png"
        if what == "steps":
            made = make_layer(names, WORDS.split(), OTHER_WORDS.split(), _SIZES, seed=0)
            call = {**made.inputs}
            labels = {"labels": made.labels, "value_labels": made.value_labels}
            figure = viz.plot_attention_layer(made.layer, **call, **labels)
            page = viz.attention_layer_page(
                made.layer, **call, **labels, title=f"{names}: {KINDS[names].meaning}"
            )
            path.with_suffix(".html").write_text(page, "utf-8")
        else:
            figure = _figure(what, names)
        viz.save_figure(figure, path)


def _figure(what: str, names: str) -> Figure:
    if what == "windows":
        return viz.plot_windows((8, 8), 4)
    if what == "positions":
        from keras_attn.ops import sinusoids

        return viz.plot_positions(sinusoids(50, 128))
    examples = viz.example_masks()
    return viz.plot_masks({name: examples[name] for name in names.split(", ")})
