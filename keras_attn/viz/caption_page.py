"""Where a captioner looks for each word, as one HTML page, without a network."""

import base64
import html
import io
import json
import re
from collections.abc import Sequence

import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.overlays import check_image
from keras_attn.viz.questions import check_words, plot_caption_attention

_DECIMALS = 4


@described_as(plot_caption_attention)
def caption_page(
    image, words: Sequence[str], maps, *, title: str = "Where a captioner looks"
) -> str:
    """Makes an HTML page with a caption; a word shows its attention over the image.

    Words are buttons, for the mouse, a finger or the keyboard. The brightest location
    of a word is opaque, one without attention black, so they compare locations, not
    words; a number says how much attention the brightest location has. Styles, script,
    image and data are in the page itself: it is a single file that loads nothing.

    The data is JSON, in the element `attention`: `title`, `words` and `maps`, (T, h, w)
    rounded to 4 decimals.

    Args:
        title: Title of the page.

    Returns:
        The HTML, to be written as UTF-8.

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
    image, (words, maps) = check_image(image), check_words(words, maps)
    data = {
        "title": title,
        "words": list(words),
        # From float64: a rounded float32 would be printed with all of its digits.
        "maps": np.round(maps.astype("float64"), _DECIMALS).tolist(),
    }
    # "<" would let a word end the element; JSON has an escape for it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    fields = {
        "title": html.escape(title),
        "image": _as_png(image),
        # Width to height: a tall image is as high as the window, with its words.
        "proportion": f"{image.shape[1] / image.shape[0]:.4f}",
        "caption": html.escape(" ".join(words)),
        "data": text.replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], _PAGE)


def _as_png(image: np.ndarray) -> str:
    """An image (H, W, 3) in [0, 1] as the text of a PNG file in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.round(image * 255).astype("uint8")).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44em; margin: 1.5em auto;
    padding: 0 1em; }
  h1 { font-size: 1.15em; font-weight: 600; overflow-wrap: anywhere; }
  #words { display: flex; flex-wrap: wrap; gap: 6px; }
  button { font: inherit; padding: 4px 10px; border: 1px solid #8a929c;
    border-radius: 6px; background: none; color: inherit; cursor: pointer;
    overflow-wrap: anywhere; }
  button[aria-pressed=true] { border-color: #d9480f; outline: 2px solid #d9480f; }
  figure { position: relative; margin: 0; line-height: 0;
    max-width: calc(75vh * {{proportion}}); }
  img, canvas { width: 100%; border-radius: 4px; }
  canvas { position: absolute; inset: 0; height: 100%; }
  #hint { min-height: 3em; margin: 0.75em 0; }
</style>
</head>
<body>
<h1>{{title}}</h1>
<div id="words"></div>
<p id="hint" aria-live="polite"></p>
<figure>
  <img id="image" alt="{{caption}}" src="data:image/png;base64,{{image}}">
  <canvas id="heat"></canvas>
</figure>
<script type="application/json" id="attention">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("attention").textContent);
const [words, heat, hint] = ["words", "heat", "hint"].map(
  id => document.getElementById(id));
let kept = null;

function show(index) {
  [...words.children].forEach((button, i) =>
    button.setAttribute("aria-pressed", String(i === index)));
  const map = index === null ? [] : data.maps[index];
  heat.height = map.length;
  heat.width = map.length ? map[0].length : 0;
  if (index === null) {
    hint.textContent =
      "Choose a word: the image stays bright where the model looked for it.";
    return;
  }
  const largest = Math.max(...map.flat(), 1e-12), context = heat.getContext("2d");
  map.forEach((row, i) => row.forEach((weight, j) => {
    // Dark where the model did not look; the image itself where it looked most.
    context.fillStyle = `rgba(0,0,0,${0.85 * (1 - weight / largest)})`;
    context.fillRect(j, i, 1, 1);
  }));
  hint.textContent =
    `${data.words[index]}: the brightest of ${map.length} × ${map[0].length} ` +
    `locations has ${(100 * largest).toFixed(1)} % of the attention`;
}
words.replaceChildren(...data.words.map((text, index) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(text);
  button.onmouseenter = () => { if (kept === null) show(index); };
  button.onmouseleave = () => { if (kept === null) show(null); };
  button.onfocus = () => { if (kept === null) show(index); };
  button.onclick = () => { kept = kept === index ? null : index; show(kept); };
  return button;
}));
show(null);
</script>
</body>
</html>
"""
