"""Attention of all heads as one HTML page to explore, without a network.

The page and what fills it are one file: neither can be read without the other.

Legend: N heads, T target tokens (rows), S source tokens (columns).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.drawing.html import Page, fill_page
from keras_attn.viz.drawing.labels import visible
from keras_attn.viz.heads import plot_attention_heads, select_layers

_UNIT = 10_000  # Of the weights in the page, which are whole numbers.


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

    It opens on all heads, a row for each layer. A click on one, or Enter, shows its
    matrix with the tokens, or lines between them; arrow keys go to other heads and
    layers, Escape back. A click on a token keeps its weights. The address is a link to
    what is shown: `attention.html#layer=2&head=8&view=lines`. It has a light and a dark
    style. Its styles, script and data are in the page itself: it is a single file that
    loads nothing. A notebook shows the page in a frame.

    The data is JSON, in the element `attention`: `title` and `models`, each with its
    `name` and `layers`, each with `index`, `path`, `heads` (numbers), `source_tokens`,
    `target_tokens` and `weights`, (N, T, S) in 1/10,000, rounded.

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
        page = attention_page(capture_attention(model, inputs), tokens, title=text)
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
        before = capture_attention(model, inputs)
        model.fit(dataset)
        after = capture_attention(model, inputs)
        page = attention_comparison_page(
            {"before": (before, tokens), "after": (after, tokens)}
        )
        ```
    """
    if not models:
        raise ValueError("`models` must have a model. Received: models={}")
    for name, parts in models.items():
        if not isinstance(parts, Sequence) or len(parts) not in (2, 3):
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
            "weights": np.rint(layer.scores * _UNIT).astype(int).tolist(),
        }
        for layer in select_layers(scores, source_tokens, target_tokens, layers, heads)
    ]


def _page(title: str, models: list[dict]) -> Page:
    data = {"title": title, "models": models}
    return fill_page("attention", title, data, _STYLE, _BODY, _SCRIPT)


_STYLE = """
  :root { --ink: 8 48 107; --paper: 255 255 255; --row: 24px; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: 125 190 255; --paper: 22 25 29; }
  }
  @media (pointer: coarse) { :root { --row: 34px; } #keys { display: none; } }
  h2 { font-size: 1em; font-weight: 600; margin: .3em 0; }
  p { margin: .3em 0; }
  #bar { display: flex; flex-wrap: wrap; gap: .4em 1em; align-items: center; }
  #bar button { min-width: 2.2em; }
  button, select { font: inherit; color: inherit; background: var(--back);
    border: 1px solid var(--line); border-radius: 4px; padding: 2px 6px; }
  button { cursor: pointer; }
  [hidden] { display: none !important; }
  #cell { min-height: 1.5em; }
  #models { display: grid; gap: 1.5em;
    grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
  section { min-width: 0; }
  .scroll { overflow: auto; max-height: 88vh; }
  .all { display: grid; gap: 2px; align-items: center; justify-content: start;
    padding: 3px; /* Room for the outline of the focus. */
    font-size: 9px; text-align: center; line-height: 1.2; }
  .all small { display: none; }
  .all button { padding: 0; border-radius: 0; }
  .all canvas { width: 100%; aspect-ratio: 1; }
  canvas { display: block; image-rendering: pixelated; }
  .bar { display: inline-block; width: 7em; height: .8em; border: 1px solid var(--line);
    margin: 0 .4em; background: linear-gradient(90deg, transparent, rgb(var(--ink))); }
  .matrix, .lines { display: grid; width: max-content; }
  .rows, .columns { display: flex; background: var(--back); }
  .rows, .lines .columns { flex-direction: column; }
  .rows { grid-area: rows; text-align: right; }
  .columns { grid-area: columns; }
  .rows button, .columns span { border: 0; padding: 0 4px; white-space: pre;
    overflow: hidden; text-overflow: ellipsis; flex: none; text-align: inherit; }
  .rows :focus-visible { outline-offset: -2px; }
  .rows .chosen { color: var(--mark); font-weight: 600; }
  .columns span { background: rgb(var(--ink) / calc(var(--share, 0) * .5)); }
  .picture { grid-area: picture; }
  .matrix { grid-template: ". columns" "rows picture";
    font-size: min(14px, var(--cell) - 2px); line-height: var(--cell); }
  .matrix .rows { position: sticky; left: 0; z-index: 1; max-width: 8.5em; }
  .matrix .rows button { height: var(--cell); font-size: inherit;
    line-height: inherit; }
  .matrix .columns { position: sticky; top: 0; z-index: 1; }
  .matrix .columns span { width: var(--cell); max-height: 8.5em; padding: 4px 0 6px;
    writing-mode: vertical-rl; transform: rotate(180deg); }
  .matrix small { display: none; }
  .matrix .picture { width: calc(var(--cell) * var(--count)); cursor: crosshair;
    height: 100%; outline: 1px solid var(--line); outline-offset: -1px; }
  .mark { grid-area: picture; pointer-events: none; height: var(--cell);
    margin-top: calc(var(--cell) * var(--chosen)); border: 2px solid var(--mark);
    box-sizing: border-box; }
  .lines { grid-template: "rows picture columns"; font-size: 14px; width: 100%;
    grid-template-columns: auto minmax(80px, 260px) auto; justify-content: start; }
  .lines .rows button, .lines .columns span { height: var(--row);
    line-height: var(--row); max-width: 27vw; font-size: inherit; }
  .lines .columns span { max-width: 45vw; }
  .lines .picture { width: 100%; }
  .lines small { margin-left: .6em; font-variant-numeric: tabular-nums; }
  @media (min-width: 760px) {
    .all { font-size: 12px; }
    .all small { display: inline; }
    .all .layer { text-align: right; }
  }
"""

_BODY = """
<div id="bar">
  <span id="moves">
    <button type="button" data-key="Escape">All heads</button>
    <button type="button" data-key="ArrowLeft" aria-label="Head before">←</button>
    <button type="button" data-key="ArrowRight" aria-label="Next head">→</button>
    <button type="button" data-key="ArrowUp" aria-label="Layer before">↑</button>
    <button type="button" data-key="ArrowDown" aria-label="Next layer">↓</button>
  </span>
  <label id="views">View <select id="view">
    <option value="matrix">matrix</option>
    <option value="lines">lines</option></select></label>
  <label>Color <select id="scale">
    <option value="own">0 to the head's largest weight</option>
    <option value="one">0 to 1</option></select></label>
</div>
<h2 id="place" tabindex="-1" aria-live="polite"></h2>
<p class="soft"><span id="hint"></span> <span id="keys"></span></p>
<p id="cell"></p>
<div id="models"></div>
"""

_SCRIPT = """
const [moves, views, view, scale, place, hint, keys, cell, models] = ["moves", "views",
  "view", "scale", "place", "hint", "keys", "cell", "models"].map(byId);
const UNIT = 10000;  // Of the weights.
const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
  ArrowDown: [1, 0]};  // Layers, heads.
const layers = data.models[0].layers;  // Other models show the same.
const isSingle = layers.length === 1 && layers[0].heads.length === 1;
const state = {all: !isSingle, layer: layers[0].index, head: headsOf(layers[0])[0],
  view: "matrix", scale: "own", token: null};
let marks = [];  // Functions that mark a token, or none, in each model.

function headsOf(layer) {
  return layer.heads.length > 1 ? ["mean", ...layer.heads] : layer.heads;
}
function nameOf(layer, head) {
  return `Layer ${layer.index}, ` +
    (head === "mean" ? "mean of its heads" : `head ${head}`);
}
function weightsOf(layer, head) {
  const chosen = head === "mean" ? layer.weights
    : [layer.weights[layer.heads.indexOf(head)]];
  return chosen[0].map((row, i) => row.map((_, j) =>
    chosen.reduce((sum, each) => sum + each[i][j], 0) / chosen.length / UNIT));
}
function largestOf(weights) {
  return Math.max(1 / UNIT, ...weights.map(row => Math.max(...row)));
}
// The weight that has the full color.
function fullOf(weights) {
  return state.scale === "one" ? 1 : largestOf(weights);
}
// A color of the style, [red, green, blue].
function colorOf(name) {
  return getComputedStyle(models).getPropertyValue(name).trim().split(" ").map(Number);
}

// The address: what is not as at the start.
function linkOf() {
  const link = new URLSearchParams();
  if (!state.all) {
    link.set("layer", state.layer);
    link.set("head", state.head);
    if (state.view !== "matrix") link.set("view", state.view);
    if (state.token !== null) link.set("token", state.token);
  }
  if (state.scale !== "own") link.set("scale", state.scale);
  return link.toString();
}
function readLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const layer = layers.find(each => String(each.index) === link.get("layer"));
  state.all = !layer && !isSingle;
  if (layer) {
    const heads = headsOf(layer);
    state.layer = layer.index;
    state.head = heads.find(head => String(head) === link.get("head")) ?? heads[0];
  }
  state.view = link.get("view") === "lines" ? "lines" : "matrix";
  state.scale = link.get("scale") === "one" ? "one" : "own";
  state.token = link.has("token") ? Number(link.get("token")) : null;
}
function go(change) {
  Object.assign(state, change);
  show();
  location.hash = linkOf();
}
function keep(token) {
  state.token = state.token === token ? null : token;
  marks.forEach(mark => mark(state.token));
  location.hash = linkOf();
}
// The layer and head of a step from those of now, or undefined at the edge.
function step([down, right]) {
  const now = layers.findIndex(each => each.index === state.layer);
  const layer = layers[now + down];
  if (!layer) return undefined;
  const heads = headsOf(layer), before = headsOf(layers[now]).indexOf(state.head);
  const head = heads[down ? Math.min(before, heads.length - 1) : before + right];
  return head === undefined ? undefined : {layer: layer.index, head};
}
function press(key) {
  if (key === "Escape" && !state.all && !isSingle) {
    go({all: true, token: null});
    focusHead();
  } else if (key in STEPS) {
    const next = step(STEPS[key]);
    if (next && state.all) {
      Object.assign(state, next);
      focusHead();
    } else if (next) go(next);
  } else return false;
  return true;
}
function focusHead() {
  for (const button of models.querySelectorAll(".all button")) {
    button.tabIndex = button.dataset.place === here() ? 0 : -1;
    if (!button.tabIndex) button.focus();
  }
}
// Where the keyboard is, in the picture of all heads of the first model.
function here() {
  return [0, state.layer, state.head].join();
}

function pictureOf(weights) {
  const canvas = make("canvas");
  canvas.width = weights[0].length;
  canvas.height = weights.length;
  const context = canvas.getContext("2d"), paper = colorOf("--paper");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const full = fullOf(weights), ink = colorOf("--ink");
  // Mixed here: the browser rounds the colors of pixels that are nearly transparent.
  weights.flat().forEach((weight, index) => {
    const color = ink.map((most, i) => paper[i] + (most - paper[i]) * weight / full);
    pixels.data.set([...color, 255], 4 * index);
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}
function scaleOf(full) {
  const line = make("p", undefined, "soft");
  line.append("weight (probability): 0", make("span", "", "bar"), full);
  return line;
}
function showAll(section, model, number) {
  const grid = make("div", undefined, "all"), scroll = make("div", undefined, "scroll");
  const heads = model.layers.map(headsOf).reduce((x, y) => x.length < y.length ? y : x);
  // All layers on one screen, if their heads are then large enough to be hit.
  const size = `max(40px, min(110px, (100vh - 13em) / ${model.layers.length}))`;
  grid.style.gridTemplateColumns =
    `auto repeat(${heads.length}, minmax(22px, ${size}))`;
  grid.append(make("span", ""), ...heads.map(head => make("span", head, "soft")));
  for (const layer of model.layers) {
    const label = make("span", layer.index, "soft layer");
    label.append(make("small", ` ${layer.path}`));
    label.style.gridColumn = 1;
    grid.append(label, ...headsOf(layer).map(head => {
      const button = make("button"), weights = weightsOf(layer, head);
      button.type = "button";
      button.dataset.place = [number, layer.index, head].join();
      button.title = `${nameOf(layer, head)}: ${layer.path}, largest weight ` +
        largestOf(weights).toFixed(3);
      button.setAttribute("aria-label", button.title);
      button.tabIndex = button.dataset.place === here() ? 0 : -1;
      button.append(pictureOf(weights));
      button.onclick = () => go({all: false, layer: layer.index, head});
      return button;
    }));
  }
  scroll.append(grid);
  section.append(scaleOf(state.scale === "one" ? "1" : "the largest of each head"),
    scroll);
}
// A column, or the heading, of a picture; `choose` makes its tokens buttons.
function tokensOf(tokens, className, choose) {
  const column = make("div", undefined, className);
  column.append(...tokens.map((text, index) => {
    const token = make(choose ? "button" : "span", text);
    token.title = text;
    if (!choose) {
      token.append(make("small", ""));
      return token;
    }
    token.type = "button";
    token.tabIndex = index ? -1 : 0;
    token.onclick = () => keep(index);
    token.onmouseenter = token.onfocus = () => choose(index);
    token.onmouseleave = token.onblur = () => choose(state.token);
    token.onkeydown = event => {
      const next = {
        ArrowUp: token.previousSibling, ArrowDown: token.nextSibling}[event.key];
      if (!next) return;
      event.preventDefault();
      event.stopPropagation();  // Elsewhere the key is for layers.
      token.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    };
    return token;
  }));
  return column;
}
function showHead(section, model) {
  const layer = model.layers.find(each => each.index === state.layer);
  if (!layer || !headsOf(layer).includes(state.head)) {
    section.append(make("p", "This model has no such layer or head."));
    return;
  }
  const weights = weightsOf(layer, state.head), isMatrix = state.view === "matrix";
  const full = fullOf(weights);
  const box = make("div", undefined, state.view), outline = make("div", "", "mark");
  const picture = isMatrix ? pictureOf(weights) : make("canvas");
  picture.className = "picture";
  const mark = token => {
    const row = token in weights ? token : null;
    [...rows.children].forEach((each, i) => each.classList.toggle("chosen", i === row));
    [...columns.children].forEach((each, j) => {
      const weight = row === null ? 0 : weights[row][j];
      each.style.setProperty("--share", weight / full);
      each.lastChild.textContent = row === null ? "" : weight.toFixed(3);
    });
    outline.hidden = row === null || !isMatrix;
    outline.style.setProperty("--chosen", row ?? 0);
    if (!isMatrix) drawLines(picture, weights, full, row);
  };
  const rows = tokensOf(layer.target_tokens, "rows", mark);
  const columns = tokensOf(layer.source_tokens, "columns");
  const scroll = make("div", undefined, isMatrix ? "scroll" : "");
  box.append(rows, columns, picture, outline);
  scroll.append(box);
  section.append(scaleOf(full.toFixed(full === 1 ? 0 : 3)), scroll);
  if (isMatrix) {
    const room = Math.floor(
      (section.clientWidth - rows.offsetWidth) / weights[0].length);
    box.style.setProperty("--cell", `${Math.max(12, Math.min(36, room))}px`);
    box.style.setProperty("--count", weights[0].length);
    picture.onpointermove = picture.onpointerdown = event => {
      const [row, column] = [event.offsetY * weights.length / picture.clientHeight,
        event.offsetX * weights[0].length / picture.clientWidth].map(Math.floor);
      if (weights[row]?.[column] === undefined) return;
      mark(row);
      cell.textContent = `${layer.target_tokens[row]} to ` +
        `${layer.source_tokens[column]}: ${weights[row][column].toFixed(4)}`;
      picture.onclick = () => keep(row);
    };
    picture.onpointerleave = () => mark(state.token);
  }
  marks.push(mark);
  mark(state.token);
}
function drawLines(canvas, weights, full, row) {
  const height = canvas.parentElement.clientHeight, width = canvas.clientWidth;
  const each = height / Math.max(weights.length, weights[0].length);
  // Browsers have a limit of about 16,000 pixels.
  const density = Math.min(devicePixelRatio, 16000 / height);
  canvas.width = width * density;
  canvas.height = height * density;
  const context = canvas.getContext("2d");
  context.scale(density, density);
  context.strokeStyle = `rgb(${colorOf("--ink")})`;
  context.lineWidth = 2;
  weights.forEach((line, i) => line.forEach((weight, j) => {
    if (row !== null && row !== i || weight < full / 50) return;
    context.globalAlpha = Math.min(1, weight / full);
    context.beginPath();
    context.moveTo(0, (i + .5) * each);
    context.lineTo(width, (j + .5) * each);
    context.stroke();
  }));
}
function show() {
  const layer = layers.find(each => each.index === state.layer);
  view.value = state.view;
  scale.value = state.scale;
  moves.hidden = state.all || isSingle;
  views.hidden = state.all;
  cell.hidden = state.all;
  cell.textContent = "Point at a cell or a token for its weights.";
  place.textContent = state.all ? "All heads"
    : `${nameOf(layer, state.head)} (${layer.path})`;
  hint.textContent = state.all ? "Rows are layers, columns heads. Choose one."
    : "Rows attend, columns are attended to. Choose a token to keep it.";
  keys.textContent = state.all ? "Keys: arrows and Enter."
    : isSingle ? "" : "Keys: arrows for other heads and layers, Escape for all heads.";
  marks = [];
  const sections = data.models.map(model => {
    const section = make("section");
    if (model.name) section.append(make("h2", model.name));
    return section;
  });
  models.replaceChildren(...sections);  // First: they have a width then.
  data.models.forEach((model, number) => (state.all ? showAll : showHead)(
    sections[number], model, number));
}
document.onkeydown = event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.tagName !== "SELECT" && press(event.key)) event.preventDefault();
};
for (const button of moves.querySelectorAll("button"))
  button.onclick = () => press(button.dataset.key);
view.onchange = () => go({view: view.value});
scale.onchange = () => go({scale: scale.value});
window.onhashchange = () => {
  if (location.hash.slice(1) === linkOf()) return;
  readLink();
  show();
};
window.onresize = show;
matchMedia("(prefers-color-scheme: dark)").onchange = show;
readLink();
show();
"""
