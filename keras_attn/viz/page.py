"""Attention as one HTML page to explore with the mouse, without a network."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.html import fill_page
from keras_attn.viz.drawing.labels import visible
from keras_attn.viz.heads import plot_attention_heads, select_layers

_DECIMALS = 4


@described_as(plot_attention_heads)
def attention_page(
    scores: Mapping[str, np.ndarray],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str] | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    title: str = "Attention",
) -> str:
    """Makes an HTML page to explore the attention of every head in a browser.

    The page lets its reader choose a layer and a head, or the mean of the heads, and
    shows the weights of the token under the mouse. Its styles, script and data are in
    the page itself: it is a single file that loads nothing.

    The data is JSON, in the element `attention`: `title` and `layers`, each with
    `path`, `heads` (numbers), `source_tokens`, `target_tokens` and `scores`, (N, T, S)
    rounded to 4 decimals.

    Args:
        source_tokens: Labels of the source tokens.
        target_tokens: Labels of the target tokens of an encoder-decoder, or None.
        layers: Numbers of the layers to include. None = all.
        heads: Numbers of the heads to include. None = all.
        title: Title of the page, such as the text.

    Returns:
        The HTML, to be written as UTF-8.

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
    data = {
        "title": title,
        "layers": [
            {
                "path": layer.path,
                "heads": layer.heads,
                "source_tokens": [visible(token) for token in layer.source_tokens],
                "target_tokens": [visible(token) for token in layer.target_tokens],
                "scores": _rounded(layer.scores),
            }
            for layer in select_layers(
                scores, source_tokens, target_tokens, layers, heads
            )
        ],
    }
    return fill_page(_PAGE, title, data)


def _rounded(scores: np.ndarray) -> list:
    # From float64: a rounded float32 would be printed with all of its digits.
    return np.round(scores.astype("float64"), _DECIMALS).tolist()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{title}}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #22262b; margin: 2em; }
  h1 { font-size: 1.15em; font-weight: 600; }
  label { margin-right: 1.5em; }
  select { font: inherit; }
  .tokens { display: flex; flex-wrap: wrap; gap: 4px; margin: .3em 0 1.2em; }
  .token { border: 1px solid #d5d9de; border-radius: 4px; padding: 1px 6px;
    text-align: center; white-space: pre; }
  .token small { display: block; font-size: .75em; min-width: 3em; }
  #targets .token { cursor: pointer; }
  .chosen { outline: 2px solid #d9480f; }
  canvas { border: 1px solid #d5d9de; cursor: crosshair; image-rendering: pixelated; }
  .hint { color: #6b7280; }
</style>
</head>
<body>
<h1>{{title}}</h1>
<p>
  <label>Layer <select id="layer"></select></label>
  <label>Head <select id="head"></select></label>
  <span class="hint">Move over a token to see its attention; click to keep it.</span>
</p>
<div>Attention of</div>
<div class="tokens" id="targets"></div>
<div>to (probability)</div>
<div class="tokens" id="sources"></div>
<div>The whole head: rows attend, columns are attended to.
  <span class="hint" id="cell">&nbsp;</span></div>
<canvas id="matrix"></canvas>
<script type="application/json" id="attention">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("attention").textContent);
const [layerMenu, headMenu, targets, sources, matrix, cell] =
  ["layer", "head", "targets", "sources", "matrix", "cell"].map(
    id => document.getElementById(id));
let chosen = 0, kept = null, scores = [];

function fill(menu, labels, selected) {
  menu.replaceChildren(...labels.map((label, index) => new Option(label, index)));
  menu.selectedIndex = Math.max(0, Math.min(selected, labels.length - 1));
}
function makeToken(text) {
  const token = document.createElement("span");
  token.className = "token";
  token.append(text);
  return token;
}
function meanOf(heads) {
  return heads[0].map((row, i) => row.map((_, j) =>
    heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length));
}
function paint(weight) {
  // White to dark blue: RGB mixed linearly.
  const [red, green, blue] = [8, 48, 107].map(
    c => Math.round(255 + (c - 255) * weight));
  return `rgb(${red},${green},${blue})`;
}
function showHead() {
  const layer = data.layers[layerMenu.selectedIndex];
  // The first entry is the mean, if there are several heads.
  const head = headMenu.selectedIndex - (layer.heads.length > 1 ? 1 : 0);
  scores = head < 0 ? meanOf(layer.scores) : layer.scores[head];
  targets.replaceChildren(...layer.target_tokens.map((text, index) => {
    const token = makeToken(text);
    token.onmouseenter = () => { if (kept === null) showToken(index); };
    token.onclick = () => { kept = kept === index ? null : index; showToken(index); };
    return token;
  }));
  sources.replaceChildren(...layer.source_tokens.map(text => {
    const token = makeToken(text);
    token.append(document.createElement("small"));
    return token;
  }));
  const size = Math.max(4, Math.min(24, Math.floor(900 / layer.source_tokens.length)));
  matrix.width = size * layer.source_tokens.length;
  matrix.height = size * layer.target_tokens.length;
  matrix.dataset.size = size;
  showToken(Math.min(chosen, layer.target_tokens.length - 1));
}
function showToken(index) {
  chosen = index;
  [...targets.children].forEach((token, i) =>
    token.classList.toggle("chosen", i === index));
  [...sources.children].forEach((token, i) => {
    const weight = scores[index][i];
    token.style.background = paint(weight);
    token.style.color = weight > 0.45 ? "white" : "";
    token.lastChild.textContent = weight.toFixed(3);
  });
  const size = Number(matrix.dataset.size), context = matrix.getContext("2d");
  scores.forEach((row, i) => row.forEach((weight, j) => {
    context.fillStyle = paint(weight);
    context.fillRect(j * size, i * size, size, size);
  }));
  context.strokeStyle = "#d9480f";
  context.lineWidth = 2;
  context.strokeRect(1, index * size + 1, matrix.width - 2, size - 2);
}
function showLayer() {
  const heads = data.layers[layerMenu.selectedIndex].heads.map(String);
  fill(headMenu, heads.length > 1 ? ["mean of all", ...heads] : heads,
    headMenu.selectedIndex);
  showHead();
}
matrix.onmousemove = event => {
  const layer = data.layers[layerMenu.selectedIndex], size = matrix.dataset.size;
  const [column, row] = [event.offsetX, event.offsetY].map(x => Math.floor(x / size));
  if (!(row in scores) || !(column in scores[row])) return;
  if (kept === null) showToken(row);
  cell.textContent = `${layer.target_tokens[row]} to ${layer.source_tokens[column]}: ` +
    scores[row][column].toFixed(4);
};
layerMenu.onchange = () => { kept = null; showLayer(); };
headMenu.onchange = showHead;
fill(layerMenu, data.layers.map(layer => layer.path), data.layers.length - 1);
showLayer();
</script>
</body>
</html>
"""
