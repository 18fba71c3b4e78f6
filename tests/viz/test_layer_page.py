"""The HTML page of an attention layer: its data, and what its script computes."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from layer_contract import built_on, normal

from keras_attn import layers
from keras_attn.viz import attention_layer_page, attention_steps

X, Z = normal(3, 8), normal(5, 6, seed=1)
LABELS = ["</script>", "a b\n", "{{data}}"]
# A document with only what the script of the page uses; then a click and two keys.
NODE = r"""
const html = require("fs").readFileSync(0, "utf8");
const [data, script] = [...html.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)];
let focused = null;
const element = tag => ({
  tag, children: [], dataset: {}, style: {}, classList: {toggle() {}},
  setAttribute(name, value) { this[name] = value; }, focus() { focused = this; },
  append(...children) { this.children.push(...children); },
  replaceChildren(...children) { this.children = children; },
  getContext: () => ({fillRect() {}}),
});
const all = {steps: {textContent: data[1]}};
const inside = node => typeof node === "string" ? []
  : [node, ...node.children.flatMap(inside)];
const textOf = node => typeof node === "string" ? node
  : node.children.map(textOf).join(node.tag === "tr" ? "|" : "");
const cells = () => inside(all.orders).filter(node => node.dataset.place);
const at = place => cells().find(node => node.dataset.place === place);
global.document = {
  getElementById: id => all[id] ??= element("div"), createElement: element,
  querySelectorAll: cells,
  querySelector: selector => at(selector.match(/place="(.*)"/)[1]),
};
(0, eval)(script[1]);
const shown = () => [textOf(all.pair)].concat(inside(all.numbers).map(node =>
  ["tr", "p", "b"].includes(node.tag) ? textOf(node) : null).filter(Boolean));
const press = (key, cell) => cell.onkeydown(
  {key, currentTarget: cell, preventDefault() {}});
const heads = all.heads.children.map(label => label.children[0]);
heads[Math.min(1, heads.length - 1)].onchange();
at("0,A,2,1").onclick();
const clicked = shown();
press("ArrowLeft", at("0,E,2,1"));
press("Enter", focused);
console.log(JSON.stringify({clicked, pressed: shown(), heads: all.heads.children.map(
  label => textOf(label).trim()), cells: cells().length,
  roles: inside(all.orders).filter(node => node.role).map(node => node.role),
  selected: cells().filter(cell => cell["aria-selected"]).map(
    cell => cell.dataset.place)}));
"""


def data_of(page):
    (data,) = re.findall(r'<script type="application/json" id="steps">(.*)</', page)
    return json.loads(data)


def run(page, row=2):
    script = NODE.replace(",2,1", f",{row},1")
    done = subprocess.run(
        ["node", "-e", script], input=page, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def attention():
    return built_on(layers.MultiHeadAttention(2, 4), X[None])


def test_its_data_are_the_steps(attention):
    options = {"mask": "causal", "permutation": [2, 0, 1], "labels": LABELS}
    page = attention_layer_page(attention, X, title="one <b> & two", **options)
    data = data_of(page)
    assert data["title"] == "one <b> & two" and data["heads"] == ["head 0", "head 1"]
    assert "because places count here" in data["effect"]
    rows = [X, X[[2, 0, 1]]]
    for order, inputs in zip(data["orders"], rows, strict=True):
        steps = attention_steps(attention, inputs, mask="causal")
        found = {panel["name"]: panel["values"] for panel in order["panels"]}
        assert list(found) == ["X", "Q", "K", "E", "A", "V", "A V", "Y"]
        np.testing.assert_allclose(found["A"], steps.weights, atol=1e-6)
        np.testing.assert_allclose(found["Y"], steps.output, rtol=1e-6)
        np.testing.assert_allclose(found["E"], steps.scores, rtol=1e-6)
        np.testing.assert_array_equal(order["mask"], steps.mask)
        assert order["terms"][0]["left"] == "Q" and order["terms"][0]["right"] == "K"
    assert data["orders"][0]["queries"] == ["</script>", "a␣b\\n", "{{data}}"]
    assert data["orders"][1]["keys"] == ["{{data}}", "</script>", "a␣b\\n"]


def test_it_is_one_file_that_loads_nothing(attention):
    page = attention_layer_page(attention, X, title="{{data}} <img src=x>")
    assert "<title>{{data}} &lt;img src=x&gt;</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"https?:|src=\"|href=|@import|fetch\(|url\(", page)
    assert len(page.encode()) < 30_000
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_heads_and_lengths(attention):
    (order,) = data_of(attention_layer_page(attention, X, heads=[1]))["orders"]
    steps = attention_steps(attention, X)
    (panel,) = (panel for panel in order["panels"] if panel["name"] == "Q")
    np.testing.assert_allclose(panel["values"], steps.queries[1:], rtol=1e-6)
    with pytest.raises(ValueError, match="`heads` must be numbers from 0 to 1"):
        attention_layer_page(attention, X, heads=[2])
    with pytest.raises(ValueError, match="`query` must have at most 32 positions"):
        attention_layer_page(attention, normal(33, 8))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_its_script_shows_what_a_score_is_made_of(attention):
    steps = attention_steps(attention, X, mask="causal")
    shown = run(attention_layer_page(attention, X, mask="causal"))
    assert shown["heads"] == ["head 0", "head 1"] and shown["cells"] == 18
    title, total, name, _, *parts = shown["clicked"]
    assert title.startswith("2 to 1, head 1: A = ") and name == "q · k / √H"
    assert float(title.split("= ")[1]) == pytest.approx(
        steps.weights[1, 2, 1], rel=1e-5
    )
    numbers = [number for _, number in steps.details(1, 2, 1)]
    found = [float(line.split("|")[-1]) for line in parts[: len(numbers)]]
    np.testing.assert_allclose(found, numbers, atol=1e-6)
    assert float(total.split("= ")[1]) == pytest.approx(steps.scores[1, 2, 1], abs=1e-6)
    last = parts[-1].split("|")
    assert last[0] == "sum" and float(last[-1]) == pytest.approx(1)
    assert shown["pressed"][0].startswith("2 to 0, head 1: A = ")
    assert shown["selected"] == ["0,E,2,0", "0,A,2,0"]
    assert shown["roles"] == ["grid", "grid"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("kind", ["additive", "glimpses", "relative", "window"])
def test_its_script_sums_other_terms(kind):
    value = Z if kind in ("additive", "glimpses") else None
    query = {"glimpses": X[0], "window": normal(2, 4, 8)}.get(kind, X)
    layer = {
        "additive": layers.AdditiveAttention(7),
        "glimpses": layers.GlimpseAttention(7, 3),
        "relative": layers.RelativeMultiHeadAttention(2, 4),
        "window": layers.WindowAttention(2, 2),
    }[kind]
    built_on(layer, query[None], *([] if value is None else [value[None]]))
    page = attention_layer_page(layer, query, value)
    head = min(1, len(data_of(page)["heads"]) - 1)
    steps = attention_steps(layer, query, value)
    row = {"glimpses": 0}.get(kind, 2)
    shown = run(page, row)["clicked"]
    assert [name for name in shown if name in steps.terms] == list(steps.terms)
    (score,) = (line for line in shown if line.startswith("E = "))
    expected = [values[head, row, 1] for values in steps.terms.values()]
    found = [float(each) for each in re.split(r" [=+] ", score.removeprefix("E = "))]
    if len(expected) > 1:
        expected.append(sum(expected))
    np.testing.assert_allclose(found, expected, atol=2e-6)
