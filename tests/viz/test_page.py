"""The HTML page of attention: its data, and that it is complete in itself."""

import html
import json
import re
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from model_cases import tiny
from viz.pages import data_of

from keras_attn.viz import (
    attention_comparison_page,
    attention_page,
    capture_attention,
)

TOKENS = ["</script>", "a b\n", "漢", "{{data}}", "&amp;"]
SHOWN = ["</script>", "a␣b\\n", "漢", "{{data}}", "&amp;"]
# A document with only what the script of the page uses; then events.
NODE = r"""
const html = require("fs").readFileSync(0, "utf8");
const [data, script] = [...html.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)];
const parts = node => typeof node === "object"
  ? [node, ...node.children.flatMap(parts)] : [];
let focused = null, width = 100;
const element = tag => ({
  tag, children: [], dataset: {}, className: "", clientWidth: width, offsetWidth: 10,
  offsetHeight: 20,
  style: {setProperty(name, value) { this[name] = value; }},
  classList: {toggle(name, isOn) { this[name] = isOn; }}, setAttribute() {},
  append(...children) {
    this.children.push(...children);
    children.forEach(child => child.parentElement = this);
  },
  replaceChildren(...children) { this.children = children; },
  get lastChild() { return this.children.at(-1); },
  get nextSibling() { return this.parentElement.children[
    this.parentElement.children.indexOf(this) + 1]; },
  querySelectorAll() { return parts(this).filter(node => node.tag === "button"); },
  focus() { (focused = this).onfocus?.(); },
  getContext: () => ({scale() {}, beginPath() {}, moveTo(x, y) { starts.push(y); },
    putImageData() {}, lineTo() {}, stroke() { lines.push(this.globalAlpha); },
    createImageData: (width, height) => (pixels = {width, height, data: []})}),
});
let lines = [], starts = [], pixels;
const all = {attention: {textContent: data[1]}};
global.window = {};
global.location = {hash: ""};
global.devicePixelRatio = 1;
global.innerWidth = 1000;
global.matchMedia = () => ({});
// Colors: the more weight, the less red; 255 is none.
global.getComputedStyle = () => ({
  getPropertyValue: name => name === "--ink" ? "0 0 0" : "255 255 255"});
global.document = {getElementById: id => all[id] ??= element("div"),
  createElement: element, documentElement: element("html")};
(0, eval)(script[1]);
const found = {};
const buttons = () => all.models.querySelectorAll();
const column = (name, model = 0) => parts(all.models).filter(
  node => node.className === name)[model].children;
const press = key => document.onkeydown(
  {key, target: focused ?? element("body"), preventDefault() {}});
const shown = model => column("columns", model).map(
  token => Number(token.lastChild.textContent));
EVENTS
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def scores():
    inputs = {
        "token_ids": np.array([[1, 2, 3, 4, 5]]),
        "padding_mask": np.ones((1, 5), bool),
        "segment_ids": np.zeros((1, 5), "int32"),
    }
    return capture_attention(tiny("bert_base"), inputs)


def run(page, events):
    script = NODE.replace("EVENTS", events)
    done = subprocess.run(
        ["node", "-e", script], input=page, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_its_data_is_what_was_captured(scores):
    data = data_of(attention_page(scores, TOKENS, title="one <b> & two"))
    assert data["title"] == "one <b> & two"
    (model,) = data["models"]
    assert [layer["path"] for layer in model["layers"]] == list(scores)
    for layer, captured in zip(model["layers"], scores.values(), strict=True):
        np.testing.assert_allclose(layer["weights"], captured[0], atol=8e-6)
        assert layer["weights"].std() > 0
        assert layer["heads"] == [0, 1, 2]
        assert layer["source_tokens"] == layer["target_tokens"] == SHOWN


def test_layers_and_heads_are_filtered(scores):
    page = attention_page(scores, TOKENS[:3], layers=[1], heads=[2, 0])
    (layer,) = data_of(page)["models"][0]["layers"]
    assert layer["path"] == "block_1/attention" and layer["index"] == 1
    assert layer["heads"] == [0, 2]
    expected = scores["block_1/attention"][0][[0, 2], :3, :3]
    np.testing.assert_allclose(layer["weights"], expected, atol=8e-6)
    with pytest.raises(ValueError, match="`layers` must be numbers from 0 to 1"):
        attention_page(scores, TOKENS, layers=[2])


def test_it_is_one_file_that_loads_nothing(scores):
    page = attention_page(scores, TOKENS, title="{{data}} <img src=x>")
    assert "<title>{{data}} &lt;img src=x&gt;</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"https?:|src=\"|href=|@import|fetch\(|url\(", page)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_a_notebook_shows_it_in_a_frame(scores):
    page = attention_page(scores, TOKENS)
    (inside,) = re.findall(r'^<iframe srcdoc="([^"]*)" ', page._repr_html_())
    assert html.unescape(inside) == page


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_its_script_opens_on_all_heads_and_shows_one(scores):
    page = attention_page(scores, TOKENS)
    found = run(
        page,
        """
        found.heads = buttons().map(button => button.dataset.place);
        // Of the last head drawn.
        found.pixels = pixels.data.filter((_, at) => at % 4 === 0);
        press("ArrowDown");
        press("ArrowRight");
        found.focused = focused.dataset.place;
        focused.onclick();
        focused = null;
        column("rows")[3].onmouseenter();
        found.head = shown();
        press("ArrowRight");
        column("rows")[3].onclick();
        found.next = shown();
        found.reading = parts(all.models).find(node => node.className === "reading")
          .children.map(node => node.children?.[0] ?? node).join("");
        found.link = location.hash;
        press("ArrowLeft");
        press("ArrowLeft");
        found.mean = shown();  // The token is kept.
        press("Escape");
        found.back = [location.hash, focused.dataset.place];
        """,
    )
    places = [f"{i},{head}" for i in (0, 1) for head in ("mean", 0, 1, 2)]
    assert found["heads"] == places
    last = scores["block_1/attention"][0]
    red = 255 * (1 - last[2] / last[2].max())
    np.testing.assert_allclose(found["pixels"], red.ravel(), atol=0.1)
    assert found["focused"] == "1,0" and found["link"] == "layer=1&head=1&token=3"
    np.testing.assert_allclose(found["head"], last[0][3], atol=6e-4)
    np.testing.assert_allclose(found["next"], last[1][3], atol=6e-4)
    largest = last[1][3].argmax()
    start = f"{SHOWN[3]} attends most to {SHOWN[largest]}\u00a0"
    assert found["reading"].startswith(start)
    np.testing.assert_allclose(found["mean"], last.mean(axis=0)[3], atol=6e-4)
    assert found["back"] == ["", "1,mean"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_link_to_lines_of_two_models(scores):
    other = {path: each[:, ::-1] for path, each in scores.items()}
    models = {"one": (scores, TOKENS), "two": (other, TOKENS, TOKENS)}
    page = attention_comparison_page(models, title="both")
    assert [model["name"] for model in data_of(page)["models"]] == ["one", "two"]
    found = run(
        page,
        """
        [lines, starts] = [[], []];
        location.hash = "#layer=0&head=2&view=lines&token=4";
        window.onhashchange();
        found.lines = [...lines];
        found.starts = [...starts];
        found.shown = [shown(0), shown(1)];
        found.place = all.place.textContent;
        found.paths = parts(all.models).filter(
          node => node.className === "soft" && node.tag === "p"
        ).map(node => node.children[0]).filter(text => text.includes("/"));
        column("rows", 1)[4].onclick();  // No token is kept.
        found.link = location.hash;
        location.hash = "#layer=7&token=x";
        window.onhashchange();
        found.wrong = all.place.textContent;
        """,
    )
    first = scores["block_0/attention"][0]
    np.testing.assert_allclose(found["shown"], [first[2][4], first[0][4]], atol=6e-4)
    rows = [head[4] / head.max() for head in (first[2], first[0])]
    drawn = [share for row in rows for share in row if share >= 0.02]
    np.testing.assert_allclose(found["lines"], drawn, atol=1e-3)
    assert {*found["starts"]} == {90}  # The middle of the fifth row.
    assert found["place"] == "Layer 0, head 2"
    assert found["paths"] == ["block_0/attention"] * 2
    assert found["link"] == "layer=0&head=2&view=lines"
    assert found["wrong"] == "All heads"
    not_models: list[Any] = [{}, [(scores, TOKENS)]]
    for wrong in not_models:
        with pytest.raises(ValueError, match="`models` must be a dictionary of at"):
            attention_comparison_page(wrong)
    for wrong in (scores, "ab", (scores,)):
        with pytest.raises(ValueError, match="`models` must be the scores, the source"):
            attention_comparison_page({"one": wrong})


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_second_model_may_be_larger(scores):
    small = {"one": scores["block_0/attention"][:, :1]}
    page = attention_comparison_page({"a": (small, TOKENS), "b": (scores, TOKENS)})
    found = run(
        page,
        """
        press("ArrowDown");
        press("ArrowRight");
        found.focused = focused.dataset.place;
        focused.onclick();
        found.place = all.place.textContent;
        found.text = parts(all.models).filter(node => node.tag === "p").map(
          node => node.children[0])[0];
        press("ArrowUp");
        press("ArrowRight");
        found.link = location.hash;
        """,
    )
    assert found["focused"] == "1,0" and found["place"] == "Layer 1, head 0"
    assert found["text"] == "This model has no such layer or head."
    assert found["link"] == "layer=0&head=1"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_many_tokens_have_the_largest_weights_of_a_point_and_the_largest_lines():
    tokens = [str(number) for number in range(53)]
    weights = np.random.default_rng(0).uniform(0.1, 1, (2, 53, 53))
    page = attention_page({"layer": weights}, tokens)
    found = run(
        page.replace('"use strict";', '"use strict"; width = 20;'),
        """
        found.red = pixels.data.filter((_, at) => at % 4 === 0);
        location.hash = "#layer=0&head=1&view=lines";
        window.onhashchange();
        found.lines = lines.slice(-2001);
        """,
    )
    blocks = np.pad(weights[1], (0, 1)).reshape(18, 3, 18, 3).max(axis=(1, 3))
    red = 255 * (1 - blocks / weights[1].max())
    np.testing.assert_allclose(found["red"], red.ravel(), atol=0.1)
    largest = np.sort(weights[1].ravel())[:-2001:-1] / weights[1].max()
    np.testing.assert_allclose(found["lines"], largest, atol=1e-4)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_page_of_one_head_leaves_the_keys_to_the_browser(scores):
    found = run(
        attention_page(scores, TOKENS, layers=[1], heads=[2]),
        """
        found.place = all.place.textContent;
        found.prevented = 0;
        for (const key of ["ArrowDown", "Escape"]) document.onkeydown(
          {key, target: element("body"), preventDefault() { found.prevented++; }});
        """,
    )
    assert found == {"place": "Layer 1, head 2 (block_1/attention)", "prevented": 0}
