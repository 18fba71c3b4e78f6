"""The HTML page of attention: its data, and that it is complete in itself."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from model_cases import tiny

from keras_attn.viz import attention_page, capture_attention

TOKENS = ["</script>", "a b\n", "漢", "{{data}}", "&amp;"]
# A document with only what the script of the page uses; then two events.
NODE = r"""
const html = require("fs").readFileSync(0, "utf8");
const [data, script] = [...html.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)];
const element = () => ({
  children: [], dataset: {}, style: {}, classList: {toggle() {}}, selectedIndex: 0,
  append(child) { this.children.push(child); },
  replaceChildren(...children) { this.children = children; },
  get lastChild() { return this.children.at(-1); },
  getContext: () => ({fillRect() {}, strokeRect() {}}),
});
const all = {attention: {textContent: data[1]}};
global.document = {
  getElementById: id => all[id] ??= element(), createElement: element};
global.Option = function(label) { this.label = label; };
(0, eval)(script[1]);
const shown = () =>
  all.sources.children.map(token => Number(token.lastChild.textContent));
const mean = shown();
all.layer.selectedIndex = 0;
all.layer.onchange();
all.head.selectedIndex = 2;
all.head.onchange();
all.targets.children[3].onmouseenter();
console.log(JSON.stringify({mean, head: shown(),
  heads: all.head.children.map(option => option.label)}));
"""


@pytest.fixture(scope="module")
def scores():
    inputs = {
        "token_ids": np.array([[1, 2, 3, 4, 5]]),
        "padding_mask": np.ones((1, 5), bool),
        "segment_ids": np.zeros((1, 5), "int32"),
    }
    return capture_attention(tiny("bert_base"), inputs)


def data_of(page):
    (data,) = re.findall(r'<script type="application/json" id="attention">(.*)</', page)
    return json.loads(data)


def test_its_data_is_what_was_captured(scores):
    data = data_of(attention_page(scores, TOKENS, title="one <b> & two"))
    assert data["title"] == "one <b> & two"
    assert [layer["path"] for layer in data["layers"]] == list(scores)
    for layer, captured in zip(data["layers"], scores.values(), strict=True):
        np.testing.assert_allclose(layer["scores"], captured[0], atol=5.1e-5)
        assert np.array(layer["scores"]).std() > 0
        assert layer["heads"] == [0, 1, 2]
        tokens = ["</script>", "a␣b\\n", "漢", "{{data}}", "&amp;"]
        assert layer["source_tokens"] == layer["target_tokens"] == tokens


def test_layers_and_heads_are_filtered(scores):
    page = attention_page(scores, TOKENS[:3], layers=[1], heads=[2, 0])
    (layer,) = data_of(page)["layers"]
    assert layer["path"] == "block_1/attention" and layer["heads"] == [0, 2]
    expected = scores["block_1/attention"][0][[0, 2], :3, :3]
    np.testing.assert_allclose(layer["scores"], expected, atol=5.1e-5)
    with pytest.raises(ValueError, match="`layers` must be numbers from 0 to 1"):
        attention_page(scores, TOKENS, layers=[2])


def test_it_is_one_file_that_loads_nothing(scores):
    page = attention_page(scores, TOKENS, title="{{data}} <img src=x>")
    assert "<title>{{data}} &lt;img src=x&gt;</title>" in page
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"https?:|src=\"|href=|@import|fetch\(|url\(", page)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_its_script_shows_the_weights_of_the_token_under_the_mouse(scores):
    page = attention_page(scores, TOKENS)
    done = subprocess.run(
        ["node", "-e", NODE], input=page, capture_output=True, text=True, check=True
    )
    shown = json.loads(done.stdout)
    assert shown["heads"] == ["mean of all", "0", "1", "2"]
    first, last = scores["block_0/attention"][0], scores["block_1/attention"][0]
    np.testing.assert_allclose(shown["mean"], last.mean(axis=0)[0], atol=6e-4)
    np.testing.assert_allclose(shown["head"], first[1][3], atol=6e-4)
