"""An attention layer step by step, as one HTML page that loads nothing.

The script of the page computes the parts of a score from the rows that its terms are
made of, as `layer_steps/terms.py` does. The page and what fills it are one file:
neither can be read without the other.

Legend: N heads, T queries, S keys.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.docstrings.descriptions import described_as
from keras_attn.viz.attention_layer import (
    MOST_LABELLED,
    NUMBERED,
    plot_attention_layer,
)
from keras_attn.viz.drawing.html import Page, fill_page
from keras_attn.viz.drawing.labels import visible
from keras_attn.viz.layer_steps import (
    AttentionSteps,
    Explained,
    call_arguments,
    explain_orders,
)


@described_as(plot_attention_layer)
def attention_layer_page(
    layer: keras.layers.Layer,
    query,
    value=None,
    mask=None,
    permutation: Sequence[int] | None = None,
    *,
    key=None,
    labels: Sequence[str] | None = None,
    value_labels: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    title: str = "An attention layer",
    **call: Any,
) -> Page:
    """Makes an HTML page of each step of an attention layer, to explore in a browser.

    It shows what `plot_attention_layer` draws. A click on a cell of E or A, or Enter,
    shows the numbers that the score is made of, and the softmax of its row; arrow keys
    move between cells. It has a dark and a light style, and loads nothing. A notebook
    shows it in a frame.

    The data is JSON, in the element `steps`: the heads, and for each order the labels,
    the arrays by name and the terms of the scores. Numbers have 9 digits, as many as
    float32 has.

    Args:
        title: Title of the page, any text.
        **call: Further arguments of the layer's call, with a batch of one.

    Returns:
        The HTML, a `str`, to be written as UTF-8.

    Raises:
        ValueError: As for `plot_attention_layer`; or if there are more than 32 queries
            or keys, which no page can show.

    Example:
        ```python
        from pathlib import Path
        import numpy as np
        from keras_attn import layers, viz

        layer = layers.MultiHeadAttention(num_heads=2, key_dim=4)
        vectors, tokens = np.random.normal(size=(3, 8)), ["a", "big", "cat"]
        page = viz.attention_layer_page(layer, vectors, mask="causal", labels=tokens)
        Path("layer.html").write_text(page, encoding="utf-8")
        ```
    """
    arguments = call_arguments(layer, query, value, key, mask, call)
    explained = explain_orders(layer, arguments, permutation, labels, value_labels)
    return steps_page(explained, heads, title)


def steps_page(
    explained: Explained,
    heads: Sequence[int] | None = None,
    title: str = "An attention layer",
) -> Page:
    """The page of `attention_layer_page`, from the steps.

    Args:
        explained: The steps.
        heads: Numbers of heads, or None.
        title: Title of the page.

    Raises:
        ValueError: If there are more than 32 queries or keys.
    """
    shape = explained.steps.scores.shape
    for name, count in zip(("query", "value"), shape[1:], strict=True):
        if count > MOST_LABELLED:
            raise ValueError(
                f"`{name}` must have at most {MOST_LABELLED} positions to be shown as "
                f"a page; `plot_attention_layer` draws more. Received: {count}"
            )
    orders = explained.orders(heads)
    first, _ = orders[0]
    data = {
        "title": title,
        "layer": first.layer,
        "effect": explained.effect,
        "numbered": NUMBERED,
        "heads": first.heads,
        "orders": [_order(each, queries, keys) for each, (queries, keys) in orders],
    }
    return fill_page("steps", title, data, _STYLE, _BODY, _SCRIPT)


def _order(steps: AttentionSteps, queries: list[str], keys: list[str]) -> dict:
    """The data of one order of the inputs."""
    return {
        "queries": list(map(visible, queries)),
        "keys": list(map(visible, keys)),
        "mask": steps.mask.astype(int).tolist(),
        "panels": [
            {
                "name": panel.name,
                "meaning": panel.meaning,
                "rows": panel.rows,
                "columns": panel.columns,
                "values": _numbers(panel.array),
            }
            for panel in steps.panels()
        ],
        "terms": [_term(steps, term) for term in steps.sums],
    }


def _term(steps: AttentionSteps, term) -> dict[str, Any]:
    """A term: its values, or the rows that they are made of, perhaps by a name."""
    if term.function == "number":
        return {
            "name": term.name,
            "function": "number",
            "values": _numbers(term.values),
        }
    rows = {}
    for name, array in (("left", term.left), ("right", term.right)):
        known = {"Q": steps.queries, "K": steps.keys}
        same = [x for x, other in known.items() if np.array_equal(array, other)]
        rows[name] = same[0] if same else _numbers(array)
    return {
        "name": term.name,
        "function": term.function,
        **rows,
        "factor": _numbers(term.factor),
        "leftRows": None if term.left_rows is None else term.left_rows.tolist(),
        "rightRows": None if term.right_rows is None else term.right_rows.tolist(),
    }


def _numbers(values: np.ndarray) -> list:
    rounded = [float(f"{value:.9g}") for value in values.ravel().tolist()]
    return np.array(rounded).reshape(values.shape).tolist()


_STYLE = """
  :root { --hidden: #dfe3e8; }
  @media (prefers-color-scheme: dark) { :root { --hidden: #343a42; } }
  html { scroll-padding-bottom: 48vh; } /* Not below the chosen score. */
  h2 { font-size: 1em; font-weight: 600; margin: 1em 0 .3em; }
  p { margin: .3em 0; }
  fieldset { border: 0; margin: .3em 0; padding: 0; display: flex; flex-wrap: wrap;
    gap: 0 1em; }
  fieldset[hidden] { display: none; }
  legend { float: left; margin-right: 1em; padding: .2em 0; }
  fieldset label { padding: .2em 0; }
  figcaption small { color: var(--soft); }
  .flow { display: flex; flex-wrap: wrap; gap: 1em 1.4em; align-items: flex-start; }
  figure { margin: 0; min-width: 0; max-width: 100%; }
  figcaption { line-height: 1.3; margin-bottom: .3em; }
  figcaption small { display: block; }
  .scroll { overflow-x: auto; max-width: 100%; }
  table { border-collapse: collapse; font-size: 12px; }
  th { font-weight: 400; text-align: right; padding: 1px 5px; white-space: nowrap; }
  thead th { text-align: center; }
  .tall thead th { writing-mode: vertical-rl; transform: rotate(180deg);
    text-align: left; padding: 4px 1px; }
  .map td { border: 1px solid var(--line); height: 1.7em; min-width: 2.8em;
    text-align: center; padding: 0 2px; }
  .tall td { min-width: 1.1em; height: 1.1em; padding: 0; }
  td.pair { cursor: pointer; }
  td.hidden { background: var(--hidden); color: var(--soft); }
  .chosen { outline: 2px solid var(--mark); outline-offset: -2px; }
  .picture { font-size: 10px; }
  .picture th, .picture td { padding: 0 5px 0 0; }
  canvas { display: block; outline: 1px solid var(--line); outline-offset: -1px;
    image-rendering: pixelated; }
  @media (pointer: coarse) {
    td.pair { height: 34px; min-width: 34px; }
    .tall td.pair { height: 26px; min-width: 26px; }
    fieldset label { padding: .6em 0; }
  }
  #details { position: sticky; bottom: 0; max-height: 46vh; overflow: auto;
    margin-top: 1em; padding: .5em 0; background: var(--back);
    border-top: 2px solid var(--line); }
  #details td, #details th { padding: 1px 8px; text-align: right; }
  #details .parts { display: flex; flex-wrap: wrap; gap: .3em 2em; }
  #details .parts > div { max-width: 100%; }
"""

_BODY = """
<p id="layer"></p>
<fieldset id="heads"><legend>Show</legend></fieldset>
<p class="soft">Red is positive, blue negative, each step on its own scale; A has shares
from 0 to 1, the bluer the larger; gray is masked. Click a cell of E or A, or move with
the arrow keys and press Enter, to see the numbers that it is made of.</p>
<div id="orders"></div>
<section id="details" tabindex="0" aria-labelledby="pair">
<h2 id="pair" aria-live="polite"></h2>
<div id="numbers"></div>
</section>
"""

_SCRIPT = """
const [headMenu, orders, pair, numbers, layerName] =
  ["heads", "orders", "pair", "numbers", "layer"].map(byId);
const chosen = {head: 0, order: 0, query: 0, key: 0};
// Of the rows of a query and of a key, as in layer_steps/terms.py.
const combine = {
  product: (left, right) => left * right,
  tanh: (left, right) => Math.tanh(left + right),
  relu: (left, right) => Math.max(left + right, 0),
};

function panelOf(order, name) {
  return order.panels.find(panel => panel.name === name);
}
function isOfHeads(panel) {
  return Array.isArray(panel.values[0][0]);
}
function valuesOf(panel, head) {
  return isOfHeads(panel) ? panel.values[head] : panel.values;
}
// The numbers whose sum is a term of one score, each with what it is made of.
function partsOf(order, term, head, query, key) {
  if (term.function === "number")
    return [{part: term.values[head][query][key]}];
  const rowsOf = rows =>
    (typeof rows === "string" ? panelOf(order, rows).values : rows)[head];
  const left = rowsOf(term.left)[term.leftRows ? term.leftRows[query][key] : query];
  const right = rowsOf(term.right)[term.rightRows ? term.rightRows[query][key] : key];
  return left.map((value, unit) => ({
    left: value, right: right[unit], factor: term.factor[head][unit],
    part: term.factor[head][unit] * combine[term.function](value, right[unit]),
  }));
}
function sum(numbers) {
  return numbers.reduce((total, value) => total + value, 0);
}
function short(value) {
  const text = Math.abs(value) < 10 ? value.toFixed(2) : value.toPrecision(3);
  return Number(text) === 0 ? "0.00" : text;
}
function long(value) {
  // Not the digits by which float32 misses a decimal.
  return Number(Math.abs(value) < 1e-4 ? value.toPrecision(3) : value.toFixed(6))
    .toString();
}
function paint(panel, value, largest, strength) {
  if (panel.name === "A") return `rgba(31,111,235,${strength * value})`;
  const share = strength * Math.min(1, Math.abs(value) / largest);
  return value < 0 ? `rgba(37,99,205,${share})` : `rgba(207,54,41,${share})`;
}
function largestOf(name) {
  let largest = 0;
  for (const order of data.orders)
    for (const value of panelOf(order, name).values.flat(2))
      largest = Math.max(largest, Math.abs(value));
  return largest || 1;
}
function labelsOf(order, kind, count) {
  const labels = {query: order.queries, key: order.keys}[kind] || [];
  return labels.length === count ? labels : [];
}
function drawPanel(order, number, panel, head) {
  const figure = make("figure"), values = valuesOf(panel, head);
  const rows = values.length, columns = values[0].length;
  const caption = make("figcaption");
  caption.append(make("b", panel.name), ` ${rows} × ${columns}`);
  caption.append(make("small", panel.meaning));
  const scroll = make("div", undefined, "scroll");
  const isPair = panel.name === "E" || panel.name === "A";
  const isNumbered = rows <= data.numbered && columns <= data.numbered;
  scroll.append(isPair || isNumbered
    ? drawTable(order, number, panel, values, head, isPair, isNumbered)
    : drawCanvas(order, panel, values));
  figure.append(caption, scroll);
  return figure;
}
// The picture beside the labels of its rows.
function drawCanvas(order, panel, values) {
  const canvas = make("canvas"), largest = largestOf(panel.name);
  const rows = values.length, columns = values[0].length;
  const height = Math.max(4, Math.min(18, Math.floor(320 / rows)));
  const width = Math.max(1, Math.min(18, Math.floor(320 / columns)));
  canvas.width = columns * width;
  canvas.height = rows * height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${panel.name}, ${rows} × ${columns}`);
  const context = canvas.getContext("2d");
  values.forEach((row, i) => row.forEach((value, j) => {
    context.fillStyle = paint(panel, value, largest, 0.9);
    context.fillRect(j * width, i * height, width, height);
  }));
  const labels = labelsOf(order, panel.rows, rows);
  if (!labels.length) return canvas;
  const table = make("table", undefined, "picture");
  table.append(...labels.map((label, i) => {
    const line = rowOf([label], "th");
    line.style.height = line.style.lineHeight = `${height}px`;
    if (i === 0) {
      const cell = make("td");
      cell.rowSpan = rows;
      cell.append(canvas);
      line.append(cell);
    }
    return line;
  }));
  return table;
}
function drawTable(order, number, panel, values, head, isPair, isNumbered) {
  const table = make("table", undefined, isNumbered ? "map" : "map tall");
  const largest = largestOf(panel.name);
  const columns = labelsOf(order, panel.columns, values[0].length);
  const rows = labelsOf(order, panel.rows, values.length);
  if (isPair) table.setAttribute("role", "grid");
  table.setAttribute("aria-label",
    `${panel.name}, ${values.length} × ${values[0].length}`);
  if (columns.length) {
    const line = make("tr");
    line.append(make("th", ""), ...columns.map(label => make("th", label)));
    const top = make("thead");
    top.append(line);
    table.append(top);
  }
  const body = make("tbody");
  values.forEach((row, i) => {
    const line = make("tr");
    if (columns.length || rows.length) line.append(make("th", rows[i] ?? ""));
    row.forEach((value, j) => {
      const cell = make("td", isNumbered ? short(value) : "");
      cell.style.background = paint(panel, value, largest, 0.5);
      if (isPair) {
        if (!order.mask[head][i][j]) {
          cell.className = "hidden pair";
          cell.style.background = "";
        } else cell.className = "pair";
        cell.dataset.place = [number, panel.name, i, j].join();
        cell.setAttribute("aria-label", `${panel.name} of ${nameOf(order, i, j)}: ` +
          (order.mask[head][i][j] ? long(value) : "masked"));
        cell.tabIndex = i || j ? -1 : 0;
        cell.onclick = () => choose(number, i, j);
        cell.onkeydown = event => press(event, number, panel.name, i, j);
      }
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);
  return table;
}
function nameOf(order, query, key) {
  const values = panelOf(order, "E").values[0];
  const queries = labelsOf(order, "query", values.length);
  const keys = labelsOf(order, "key", values[0].length);
  return `${queries[query] ?? query} to ${keys[key] ?? key}`;
}
function press(event, number, name, query, key) {
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
    ArrowRight: [0, 1]}[event.key];
  if (event.key === "Enter" || event.key === " ") choose(number, query, key);
  else if (steps) {
    const place = [number, name, query + steps[0], key + steps[1]].join();
    const next = document.querySelector(`td[data-place="${place}"]`);
    if (next) {
      event.currentTarget.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  } else return;
  event.preventDefault();
}
function showHead() {
  orders.replaceChildren(...data.orders.map((order, number) => {
    const section = make("section");
    if (data.orders.length > 1) section.append(make("h2", number
      ? `Inputs in another order. ${data.effect}` : "Inputs as given"));
    const flow = make("div", undefined, "flow");
    flow.append(...order.panels.map(
      panel => drawPanel(order, number, panel, chosen.head)));
    section.append(flow);
    return section;
  }));
  showDetails();
}
function choose(order, query, key) {
  Object.assign(chosen, {order, query, key});
  showDetails();
}
function rowOf(cells, tag = "td") {
  const line = make("tr");
  line.append(...cells.map(cell => make(tag, cell)));
  return line;
}
// The terms of the chosen score, with the numbers that they are sums of.
function explain() {
  const order = data.orders[chosen.order], {head} = chosen;
  const terms = order.terms.map(term => {
    const parts = partsOf(order, term, head, chosen.query, chosen.key);
    return {name: term.name, function: term.function, parts,
      total: sum(parts.map(each => each.part))};
  });
  return {terms, score: sum(terms.map(term => term.total))};
}
function showDetails() {
  const order = data.orders[chosen.order], {head} = chosen;
  const {query, key} = chosen, {terms, score} = explain();
  for (const cell of document.querySelectorAll("td.pair")) {
    const [number, , i, j] = cell.dataset.place.split(",");
    const isChosen = +number === chosen.order && +i === query && +j === key;
    cell.classList.toggle("chosen", isChosen);
    cell.setAttribute("aria-selected", isChosen);
  }
  const weights = panelOf(order, "A").values[head][query];
  pair.replaceChildren(
    `${nameOf(order, query, key)}, ${data.heads[head]}: A = ${long(weights[key])}`);
  const parts = make("div", undefined, "parts");
  for (const term of terms) {
    const block = make("div");
    block.append(make("b", term.name), ` = ${long(term.total)}`);
    if (term.function !== "number") {
      const table = make("table");
      const inside = {product: "query × key", tanh: "tanh(query + key)",
        relu: "max(query + key, 0)"}[term.function];
      table.append(rowOf(["unit", "of query", "of key", "factor", `factor × ${inside}`],
        "th"));
      term.parts.forEach((each, unit) => table.append(rowOf([String(unit),
        ...[each.left, each.right, each.factor, each.part].map(long)])));
      const scroll = make("div", undefined, "scroll");
      scroll.append(table);
      block.append(scroll);
    }
    parts.append(block);
  }
  const total = make("p");
  total.append("E = ", terms.length > 1
    ? `${terms.map(term => long(term.total)).join(" + ")} = ` : "", long(score));
  parts.append(softmaxOf(order, head, query, key));
  numbers.replaceChildren(total, parts);
}
function softmaxOf(order, head, query, key) {
  const scores = panelOf(order, "E").values[head][query];
  const weights = panelOf(order, "A").values[head][query];
  const seen = order.mask[head][query];
  const labels = labelsOf(order, "key", scores.length);
  const highest = Math.max(...scores.filter((_, s) => seen[s]));
  const powers = scores.map((value, s) => seen[s] ? Math.exp(value - highest) : 0);
  const table = make("table"), scroll = make("div", undefined, "scroll");
  table.append(rowOf(["key", "E", "exp(E − max)", "A: divided by the sum"], "th"));
  scores.forEach((value, s) => {
    const line = rowOf([labels[s] ?? String(s), seen[s] ? long(value) : "masked",
      long(powers[s]), long(weights[s])]);
    if (s === key) line.className = "chosen";
    table.append(line);
  });
  table.append(rowOf(["sum", "", long(sum(powers)), long(sum(weights))]));
  scroll.append(table);
  return scroll;
}
headMenu.hidden = data.heads.length < 2;
layerName.textContent = data.layer + (headMenu.hidden ? `, ${data.heads[0]}` : "");
headMenu.append(...data.heads.map((name, head) => {
  const label = make("label"), button = make("input");
  Object.assign(button, {type: "radio", name: "head", checked: !head});
  button.onchange = () => {
    chosen.head = head;
    showHead();
  };
  label.append(button, ` ${name}`);
  return label;
}));
showHead();
"""
