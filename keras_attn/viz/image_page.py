"""Maps over an image as one HTML page, without a network: of words, or of heads.

Legend: H and W pixels, N maps of R rows and S columns.
"""

import base64
import html
import io
from collections.abc import Sequence

import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.html import Page, fill_page
from keras_attn.viz.drawing.overlays import (
    check_box,
    check_image,
    check_maps,
    map_labels,
)
from keras_attn.viz.images import plot_image_attention
from keras_attn.viz.questions import check_words, plot_caption_attention

_DECIMALS = 4


@described_as(plot_caption_attention)
def caption_page(
    image,
    words: Sequence[str],
    maps,
    *,
    title: str = "Where a captioner looks",
    box: Sequence[float] | None = None,
) -> Page:
    """Makes an HTML page with a caption; a word shows its attention over the image.

    Words are buttons, for the mouse, a finger or the keyboard. The brightest location
    of a word is opaque, one without attention black, so they compare locations, not
    words; a bar says how much attention the brightest location has. A place of the
    image shows for which words the model looked there. Styles, script, image and data
    are in the page itself: it is a single file that loads nothing. A notebook shows the
    page in a frame.

    The data is JSON, in the element `attention`: `title`, `words`, `maps`, (N, R, S)
    rounded to 4 decimals, and `box`, in shares of the image.

    Args:
        title: Title of the page.

    Returns:
        The HTML, a `str`, to be written as UTF-8.

    Raises:
        ValueError: As for `plot_caption_attention`.

    Example:
        ```python
        from pathlib import Path
        import numpy as np
        from keras_attn import viz

        image, words = np.random.uniform(size=(64, 64, 3)), ["a", "red", "dog"]
        maps = np.random.uniform(size=(3, 7, 7))  # One for each word.
        page = viz.caption_page(image, words, maps)
        Path("caption.html").write_text(page, encoding="utf-8")
        ```
    """
    words, maps = check_words(words, maps)
    texts = {
        "choose": "Choose a word: the image stays bright where the model looked for "
        "it. Or a place of the image: the words for which it looked there.",
        "place": "Of the attention of each word, this place has: ",
    }
    return _page(image, words, maps, title, box, " ".join(words), texts)


@described_as(plot_image_attention)
def image_attention_page(
    image: np.ndarray,
    maps: np.ndarray,
    *,
    title: str = "Attention over an image",
    labels: Sequence[str] | None = None,
    box: Sequence[float] | None = None,
) -> Page:
    """Makes an HTML page with an image; a head shows its attention over the image.

    It is the page of `caption_page`, with the labels of the maps in place of the words
    of a caption, also in its data.

    Args:
        title: Title of the page.
        labels: Names of the N maps. Default: `head 0`, `head 1`, …, or `attention` if
            there is one map.

    Returns:
        The HTML, a `str`, to be written as UTF-8.

    Raises:
        ValueError: As for `plot_image_attention`.

    Example:
        ```python
        from pathlib import Path
        import numpy as np
        from keras_attn import models, viz

        vit = models.build_vit(num_layers=2, hidden_dim=64, num_heads=4, image_size=32)
        image = np.random.uniform(size=(32, 32, 3))
        maps = viz.image_attention(vit, image[None])["block_1/attention"]
        page = viz.image_attention_page(image, maps[0])  # Of four heads.
        Path("attention.html").write_text(page, encoding="utf-8")
        ```
    """
    maps = check_maps(maps)
    labels = map_labels(labels, len(maps), alone="attention")
    texts = {
        "choose": "Choose a map: the image stays bright where it attends. Or a place "
        "of the image: the maps that attend to it.",
        "place": "Of the attention of each map, this place has: ",
    }
    return _page(image, labels, maps, title, box, title, texts)


def _page(
    image,
    words: list[str],
    maps: np.ndarray,
    title: str,
    box: Sequence[float] | None,
    description: str,
    texts: dict[str, str],
) -> Page:
    """The page of maps (N, R, S), each with the text of its button."""
    image = check_image(image)
    height, width = image.shape[:2]
    corners = np.divide(check_box(box, width, height), (width, height, width, height))
    left, top, right, bottom = corners.tolist()
    data = {
        "title": title,
        "texts": texts,
        "words": words,
        # From float64: a rounded float32 would be printed with all of its digits.
        "maps": np.round(maps.astype("float64"), _DECIMALS).tolist(),
        "box": [left, top, right, bottom],
    }
    sides = {"left": left, "top": top, "width": right - left, "height": bottom - top}
    fields = {
        "image": _as_png(image),
        # Width to height: a tall image is as high as the window, with its words.
        "proportion": f"{width / height:.4f}",
        "place": " ".join(f"{side}: {x:.4%};" for side, x in sides.items()),
        "description": html.escape(description),
    }
    return fill_page("attention", title, data, _STYLE, _BODY, _SCRIPT, **fields)


def _as_png(image: np.ndarray) -> str:
    """An image (H, W, 3) in [0, 1] as the text of a PNG file in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.round(image * 255).astype("uint8")).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


_STYLE = """
  :root { --ink: 8 48 107; }
  @media (prefers-color-scheme: dark) { :root { --ink: 125 190 255; } }
  body { max-width: 44em; margin: 1em auto; padding: 0 1em; }
  #words { display: flex; flex-wrap: wrap; gap: 6px; }
  button { font: inherit; padding: 4px 10px; border: 1px solid var(--line);
    border-radius: 6px; color: inherit; cursor: pointer; overflow-wrap: anywhere;
    background: rgb(var(--ink) / calc(var(--share, 0) * .6)); }
  button[aria-pressed=true] { border-color: var(--mark);
    outline: 2px solid var(--mark); }
  figure { position: relative; margin: 0; line-height: 0; overflow: hidden;
    border-radius: 4px; max-width: calc(75vh * {{proportion}}); touch-action: pan-y; }
  img { width: 100%; }
  canvas { position: absolute; {{place}}
    box-shadow: 0 0 0 100vmax rgb(0 0 0 / .85); } /* What the model did not see. */
  canvas[hidden] { display: none; }
  #hint { min-height: 4.5em; margin: .75em 0 .25em; }
  #bar { display: inline-block; width: 8em; height: .8em; margin: 0 .4em;
    border: 1px solid var(--line); background: linear-gradient(90deg, #262626, #fff); }
"""

_BODY = """
<div id="words"></div>
<p id="hint" aria-live="polite"></p>
<p id="scale" class="soft">attention: 0<span id="bar"></span><span
id="most"></span></p>
<figure id="figure">
  <img id="image" alt="{{description}}" src="data:image/png;base64,{{image}}">
  <canvas id="heat"></canvas>
</figure>
"""

_SCRIPT = """
const [words, heat, hint, scale, most, figure] =
  ["words", "heat", "hint", "scale", "most", "figure"].map(byId);
let kept = null;

function percent(weight) {
  return `${(100 * weight).toFixed(1)} %`;
}
function show(index) {
  [...words.children].forEach((button, i) => {
    button.setAttribute("aria-pressed", String(i === index));
    button.style.setProperty("--share", 0);
  });
  heat.hidden = index === null;
  scale.style.visibility = index === null ? "hidden" : "visible";
  if (index === null) {
    hint.textContent = data.texts.choose;
    return;
  }
  const map = data.maps[index];
  heat.height = map.length;
  heat.width = map[0].length;
  const largest = Math.max(...map.flat(), 1e-12), context = heat.getContext("2d");
  map.forEach((row, i) => row.forEach((weight, j) => {
    // Dark where the model did not look; the image itself where it looked most.
    context.fillStyle = `rgba(0,0,0,${0.85 * (1 - weight / largest)})`;
    context.fillRect(j, i, 1, 1);
  }));
  most.textContent = percent(largest);
  hint.textContent =
    `${data.words[index]}: the brightest of ${map.length} × ${map[0].length} ` +
    `locations has ${percent(largest)} of the attention`;
}
// The words, or heads, that attend to a place, by shares of the image.
function showPlace(x, y) {
  const [left, top, right, bottom] = data.box;
  const [across, down] = [(x - left) / (right - left), (y - top) / (bottom - top)];
  const weights = data.maps.map(map =>
    map[Math.floor(down * map.length)]?.[Math.floor(across * map[0].length)]);
  if (weights.includes(undefined)) return;
  const largest = Math.max(...weights, 1e-12);
  [...words.children].forEach((button, i) =>
    button.style.setProperty("--share", weights[i] / largest));
  const order = weights.map((_, i) => i).sort((i, j) => weights[j] - weights[i]);
  hint.textContent = data.texts.place +
    order.slice(0, 4).map(i => `${data.words[i]} ${percent(weights[i])}`).join(", ");
}
words.replaceChildren(...data.words.map((text, index) => {
  const button = make("button", text);
  button.type = "button";
  button.onmouseenter = () => { if (kept === null) show(index); };
  button.onmouseleave = () => { if (kept === null) show(null); };
  button.onfocus = () => { if (kept === null) show(index); };
  button.onclick = () => { kept = kept === index ? null : index; show(kept); };
  return button;
}));
figure.onpointermove = figure.onpointerdown = event => {
  const {left, top, width, height} = figure.getBoundingClientRect();
  showPlace((event.clientX - left) / width, (event.clientY - top) / height);
};
figure.onpointerleave = event => {
  if (event.pointerType === "mouse") show(kept);
};
show(null);
"""
