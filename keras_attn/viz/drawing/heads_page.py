"""Style, body and script of the page of `attention_page`, for `fill_page`.

The script finds the data that `attention_page` describes. They are one file, since the
style and the script need each other's names.
"""

STYLE = """
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
  .reading { height: 3em; overflow: auto; } /* Nothing moves below a finger. */
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
  .columns { grid-area: columns; text-align: left; }
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
  .lines .columns span { max-width: 45vw; display: flex; }
  .lines .columns bdi { overflow: hidden; text-overflow: ellipsis; }
  .lines .picture { width: 100%; }
  .lines small { margin-left: .6em; font-variant-numeric: tabular-nums; }
  @media (min-width: 760px) {
    .all { font-size: 12px; }
    .all small { display: inline; }
    .all .layer { text-align: right; }
  }
"""

BODY = """
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
<div id="models"></div>
"""

SCRIPT = """
const [moves, views, view, scale, place, hint, keys, models] = ["moves", "views",
  "view", "scale", "place", "hint", "keys", "models"].map(byId);
const UNIT = 65535;  // Of the weights.
const LINES = 2000;  // At most, the strongest: more are slow, and one cannot see them.
const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
  ArrowDown: [1, 0]};  // Layers, heads.
// All models show the same layer and head: of each number the layer with most heads.
const layers = [];
for (const layer of data.models.flatMap(model => model.layers)) {
  const same = layers.find(each => each.index === layer.index);
  if (!same) layers.push(layer);
  else if (same.heads.length < layer.heads.length) layers[layers.indexOf(same)] = layer;
}
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
function decoded(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Uint16Array(bytes.buffer);
}
// Rows of weights, of a head or of the mean of all.
function weightsOf(layer, head) {
  const all = layer.decoded ??= decoded(layer.weights);
  const width = layer.source_tokens.length;
  const chosen = layer.heads.filter(each => head === "mean" || each === head);
  return layer.target_tokens.map((_, i) => {
    const row = new Float32Array(width);
    for (const each of chosen) {
      const number = layer.heads.indexOf(each) * layer.target_tokens.length + i;
      for (let j = 0; j < width; j++)
        row[j] += all[number * width + j] / UNIT / chosen.length;
    }
    return row;
  });
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
  const token = parseInt(link.get("token"));
  state.token = Number.isNaN(token) ? null : token;
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
  if (isSingle) return false;
  if (key === "Escape" && !state.all) {
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
// In the picture of all heads, which has one button of each model for the Tab key.
function focusHead() {
  const buttons = [...models.querySelectorAll(".all button")];
  for (const button of buttons)
    button.tabIndex = button.dataset.place === here() ? 0 : -1;
  buttons.find(button => !button.tabIndex)?.focus();
}
function here() {
  return [state.layer, state.head].join();
}

function drawMatrix(canvas, weights) {
  canvas.width = weights[0].length;
  canvas.height = weights.length;
  const context = canvas.getContext("2d"), paper = colorOf("--paper");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const full = fullOf(weights), ink = colorOf("--ink");
  let at = 0;
  // Mixed here: the browser rounds the colors of pixels that are nearly transparent.
  for (const row of weights) for (const weight of row) {
    for (let i = 0; i < 3; i++)
      pixels.data[at++] = paper[i] + (ink[i] - paper[i]) * weight / full;
    pixels.data[at++] = 255;
  }
  context.putImageData(pixels, 0, 0);
}
// Weights for a picture of `size` pixels: of a block of cells the largest, since the
// browser would leave out rows and columns.
function smaller(weights, size) {
  const step = Math.ceil(Math.max(weights.length, weights[0].length) / size);
  if (step <= 1) return weights;
  const rows = [];
  weights.forEach((line, i) => {
    const row = rows[Math.floor(i / step)] ??=
      new Float32Array(Math.ceil(line.length / step));
    line.forEach((weight, j) => {
      const column = Math.floor(j / step);
      row[column] = Math.max(row[column], weight);
    });
  });
  return rows;
}
function scaleOf(full) {
  const line = make("p", undefined, "soft");
  line.append("weight (probability): 0", make("span", "", "bar"), full);
  return line;
}
function showAll(section, model) {
  const grid = make("div", undefined, "all"), scroll = make("div", undefined, "scroll");
  const heads = model.layers.map(headsOf).reduce((x, y) => x.length < y.length ? y : x);
  // All layers on one screen, if their heads are then large enough to be hit.
  const size = `max(40px, min(110px, (100vh - 13em) / ${model.layers.length}))`;
  grid.style.gridTemplateColumns =
    `auto repeat(${heads.length}, minmax(22px, ${size}))`;
  grid.append(make("span", ""), ...heads.map(head => make("span", head, "soft")));
  const pictures = [];
  for (const layer of model.layers) {
    const label = make("span", layer.index, "soft layer");
    label.append(make("small", ` ${layer.path}`));
    label.style.gridColumn = 1;
    grid.append(label, ...headsOf(layer).map(head => {
      const button = make("button"), weights = weightsOf(layer, head);
      button.type = "button";
      button.dataset.place = [layer.index, head].join();
      button.title = `${nameOf(layer, head)}: ${layer.path}, largest weight ` +
        largestOf(weights).toFixed(3);
      button.setAttribute("aria-label", button.title);
      button.tabIndex = button.dataset.place === here() ? 0 : -1;
      pictures.push([make("canvas"), weights]);
      button.append(pictures.at(-1)[0]);
      button.onclick = () => go({all: false, layer: layer.index, head});
      return button;
    }));
  }
  scroll.append(grid);
  section.append(scaleOf(state.scale === "one" ? "1" : "the largest of each head"),
    scroll);
  for (const [canvas, weights] of pictures)
    drawMatrix(canvas, smaller(weights, canvas.clientWidth * devicePixelRatio));
}
// A column, or the heading, of a picture; `choose` makes its tokens buttons.
function tokensOf(tokens, className, choose) {
  const column = make("div", undefined, className);
  column.append(...tokens.map((text, index) => {
    const token = make(choose ? "button" : "span");
    token.append(make("bdi", text));  // From right to left, where the text is.
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
  const picture = make("canvas", undefined, "picture");
  if (isMatrix) drawMatrix(picture, weights);
  const reading = make("p", undefined, "reading");
  reading.setAttribute("aria-live", "polite");
  const mark = token => {
    const row = token in weights ? token : null;
    reading.replaceChildren(...(row === null
      ? [`Point at ${isMatrix ? "a cell or " : ""}a token for its weights.`]
      : largestFor(layer, weights, row)));
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
  if (model.name) section.append(make("p", layer.path, "soft"));
  section.append(reading, scaleOf(full.toFixed(full === 1 ? 0 : 3)), scroll);
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
      reading.replaceChildren(make("bdi", layer.target_tokens[row]), " to ",
        make("bdi", layer.source_tokens[column]),
        `: ${weights[row][column].toFixed(4)}`);
      picture.onclick = () => keep(row);
    };
    picture.onpointerleave = () => mark(state.token);
  }
  marks.push(mark);
  mark(state.token);
}
// Text: to which tokens a token attends most.
function largestFor(layer, weights, row) {
  const line = weights[row];
  const most = [...line.keys()].filter(j => line[j] > 0)
    .sort((one, other) => line[other] - line[one]).slice(0, 4);
  return [make("bdi", layer.target_tokens[row]),
    most.length ? " attends most to " : " attends to nothing",
    ...most.flatMap((j, i) => [i ? ", " : "", make("bdi", layer.source_tokens[j]),
      `\u00a0${line[j].toFixed(3)}`])];
}
function drawLines(canvas, weights, full, row) {
  const width = canvas.clientWidth, [rows] = canvas.parentElement.children;
  const each = rows.children[0].offsetHeight;
  const height = each * Math.max(weights.length, weights[0].length);
  canvas.style.height = `${height}px`;
  // Browsers have a limit of about 16,000 pixels.
  const density = Math.min(devicePixelRatio, 16000 / height);
  canvas.width = width * density;
  canvas.height = height * density;
  const context = canvas.getContext("2d");
  context.scale(density, density);
  context.strokeStyle = `rgb(${colorOf("--ink")})`;
  context.lineWidth = 2;
  const lines = [];
  weights.forEach((line, i) => line.forEach((weight, j) => {
    if ((row === null || row === i) && weight >= full / 50) lines.push([weight, i, j]);
  }));
  lines.sort((one, other) => other[0] - one[0]);
  for (const [weight, i, j] of lines.slice(0, LINES)) {
    context.globalAlpha = Math.min(1, weight / full);
    context.beginPath();
    context.moveTo(0, (i + .5) * each);
    context.lineTo(width, (j + .5) * each);
    context.stroke();
  }
}
function show() {
  const layer = layers.find(each => each.index === state.layer);
  view.value = state.view;
  scale.value = state.scale;
  moves.hidden = state.all || isSingle;
  views.hidden = state.all;
  const isMatrix = state.view === "matrix";
  place.textContent = state.all ? "All heads"
    : nameOf(layer, state.head) + (data.models[0].name ? "" : ` (${layer.path})`);
  hint.textContent = state.all ? "Rows are layers, columns heads. Choose one."
    : (isMatrix ? "Rows attend, columns are attended to."
      : "The left attends, the right is attended to.") + " Choose a token to keep it.";
  keys.textContent = state.all ? "Keys: arrows and Enter."
    : isSingle ? "" : "Keys: arrows for other heads and layers, Escape for all heads.";
  marks = [];
  const sections = data.models.map(model => {
    const section = make("section");
    if (model.name) section.append(make("h2", model.name));
    return section;
  });
  models.replaceChildren(...sections);  // First: they have a width then.
  data.models.forEach((model, number) =>
    (state.all ? showAll : showHead)(sections[number], model));
}
document.onkeydown = event => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.tagName === "SELECT" && event.key !== "Escape") return;
  if (press(event.key)) event.preventDefault();
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
let lastWidth = innerWidth;
window.onresize = () => {
  // Phones change the height while the page moves.
  if (innerWidth !== lastWidth) show();
  lastWidth = innerWidth;
};
matchMedia("(prefers-color-scheme: dark)").onchange = show;
readLink();
show();
"""
