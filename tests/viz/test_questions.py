"""Where captioners and answerers look: figures, and the same in TensorBoard."""

import base64
import io
import json
import re
import shutil
import subprocess
from typing import Any

import keras
import numpy as np
import pytest
from event_files import pictures_of
from matplotlib.colors import to_rgb
from model_cases import build, inputs_for, make_inputs, tiny
from PIL import Image
from viz.figures import panels, random_attention

from keras_attn.viz import (
    caption_page,
    capture_attention,
    plot_caption_attention,
    plot_glimpses,
    save_figure,
)
from keras_attn.viz.callbacks import CaptionAttentionMaps, GlimpseMaps

RNG = np.random.default_rng(0)
IMAGE = RNG.random((13, 17, 3))
PICTURES = RNG.random((2, 12, 28, 3)).astype("float32")
MAPS = random_attention(4, 15).reshape(4, 3, 5)
WORDS = ["a", "$red$", "Straße"]
ANSWERS = ["red", "blue", "two"]
CHANCES = [0.1, 0.7, 0.2]


def titles(figure):
    """Of all axes but the color bar."""
    return [ax.get_title() for ax in figure.axes if ax.get_label() != "<colorbar>"]


def test_each_word_has_its_map(tmp_path):
    figure = plot_caption_attention(IMAGE, WORDS, MAPS, title="a $ caption")
    assert titles(figure) == ["image", *WORDS]
    # The image in gray, and the map of the word over it; padding is not drawn.
    assert [len(ax.images) for ax in figure.axes] == [1, 2, 2, 2, 0]
    assert figure.axes[-1].get_ylabel() == "attention weight"
    for number, ax in enumerate(figure.axes[1:4]):
        np.testing.assert_array_equal(ax.images[1].get_array(), MAPS[number])
        assert ax.images[1].get_clim() == (0, MAPS[number].max())
    save_figure(figure, tmp_path / "caption.png")


def test_glimpses_have_their_maps_and_the_likeliest_answers(tmp_path):
    figure = plot_glimpses(
        IMAGE, "what is $it$ ?", MAPS[:2], ANSWERS, CHANCES, truth="two", max_answers=2
    )
    assert titles(figure) == ["image", "glimpse 0", "glimpse 1", ""]
    assert len(panels(figure)) == 3
    bars = figure.axes[-1]
    assert [text.get_text() for text in bars.get_yticklabels()] == ["blue", "two"]
    widths = [bar.get_width() for bar in bars.patches]
    np.testing.assert_allclose(widths, [0.7, 0.2])
    assert [text.get_text() for text in bars.texts] == ["70%", "20%"]
    one, true = (to_rgb(bar.get_facecolor()) for bar in bars.patches)
    assert true[1] > max(true[0], true[2]) and one != true
    assert figure.get_suptitle() == "what is $it$ ?"
    save_figure(figure, tmp_path / "glimpses.png")
    hops = plot_glimpses(
        IMAGE[..., :1], "?", MAPS[0], ANSWERS, CHANCES, labels=["only hop"]
    )
    assert titles(hops) == ["image", "only hop", ""]


def caption(**changes):
    arguments = {"image": IMAGE, "words": WORDS, "maps": MAPS, **changes}
    return plot_caption_attention(**arguments)


def page(**changes):
    arguments = {"image": IMAGE, "words": WORDS, "maps": MAPS, **changes}
    return caption_page(**arguments)


def test_a_page_of_a_caption_is_one_file_that_loads_nothing():
    words = ["</script>", "{{data}}", "Straße"]
    text = page(words=words, title="one <b> & {{image}}")
    (data,) = re.findall(r'"application/json" id="attention">(.*)</script>', text)
    data = json.loads(data)
    assert data["title"] == "one <b> & {{image}}" and data["words"] == words
    assert data["box"] == [0, 0, 1, 1] and page()._repr_html_().startswith("<iframe ")
    np.testing.assert_allclose(data["maps"], MAPS[:3], atol=5.1e-5)
    assert "<title>one &lt;b&gt; &amp; {{image}}</title>" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert not re.search(r"https?:|src=\"(?!data:)|href=|@import|fetch\(|url\(", text)
    (png,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
    low, high = IMAGE.min(), IMAGE.max()
    expected = (IMAGE - low) / (high - low) * 255
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=0.51)


# A document with only what the script of the page uses; then events.
NODE = r"""
const html = require("fs").readFileSync(0, "utf8");
const [data, script] = [...html.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)];
let cells = [];
const context = {fillRect(x, y) { cells.push([y, x, this.fillStyle]); }};
const element = () => ({
  children: [], attributes: {},
  style: {setProperty(name, value) { this[name] = value; }},
  getBoundingClientRect: () => ({left: 0, top: 0, width: 20, height: 30}),
  append(child) { this.textContent = child; },
  replaceChildren(...children) { this.children = children; },
  setAttribute(name, value) { this.attributes[name] = value; },
  getContext: () => { cells = []; return context; },
});
const all = {attention: {textContent: data[1]}};
global.document = {
  getElementById: id => all[id] ??= element(), createElement: element};
(0, eval)(script[1]);
const pressed = () => all.words.children.map(x => x.attributes["aria-pressed"]);
const before = [all.hint.textContent, ...pressed()];
all.words.children[0].onclick();
all.words.children[2].onmouseenter();
const kept = pressed();
all.words.children[0].onclick();
all.words.children[2].onfocus();
const hint = all.hint.textContent, after = pressed();
const at = (x, y) => all.figure.onpointermove({clientX: x, clientY: y});
at(1, 1);  // Not seen by the model.
const outside = all.hint.textContent === hint;
at(19, 12);
console.log(JSON.stringify({
  before, kept, after, cells, hint, outside, most: all.most.textContent,
  place: all.hint.textContent,
  shares: all.words.children.map(x => x.style["--share"]),
  labels: all.words.children.map(x => x.textContent)}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_a_word_of_the_page_shows_its_map():
    done = subprocess.run(
        ["node", "-e", NODE],
        input=page(box=(8.5, 0, 17, 13)),  # The right half.
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(done.stdout)
    assert shown["labels"] == WORDS
    assert "Choose a word" in shown["before"][0]
    assert shown["before"][1:] == ["false"] * 3
    assert shown["kept"] == ["true", "false", "false"]
    assert shown["after"] == ["false", "false", "true"]
    assert f"3 × 5 locations has {100 * MAPS[2].max():.1f} %" in shown["hint"]
    assert shown["most"] == f"{100 * MAPS[2].max():.1f} %" and shown["outside"]
    here = MAPS[:3, 1, 4]
    np.testing.assert_allclose(shown["shares"], here / here.max(), atol=2e-3)
    likeliest = WORDS[here.argmax()]
    assert f"this place has: {likeliest} {100 * here.max():.1f} %" in shown["place"]
    dark = np.zeros((3, 5))
    for row, column, color in shown["cells"]:
        (dark[row, column],) = map(float, re.findall(r"^rgba\(0,0,0,(.*)\)$", color))
    expected = 0.85 * (1 - MAPS[2] / MAPS[2].max())
    np.testing.assert_allclose(dark, expected, atol=1e-3)


def glimpses(**changes):
    arguments = {
        "image": IMAGE,
        "question": "?",
        "maps": MAPS,
        "answers": ANSWERS,
        "probabilities": CHANCES,
        **changes,
    }
    return plot_glimpses(**arguments)


@pytest.mark.parametrize(
    "plot, changes, message",
    [
        (caption, {"words": ["a"] * 5}, "`words` must be a list of 1 to 4 strings"),
        (page, {"words": []}, "`words` must be a list of 1 to 4 strings"),
        (page, {"image": IMAGE[None]}, "`image` must have the shape"),
        (page, {"box": (3, 0, 3, 9)}, "`box` must be left, top, right and bottom"),
        (caption, {"words": "a b"}, "`words` must be a list of 1 to 4 strings"),
        (caption, {"words": []}, "`words` must be a list of 1 to 4 strings"),
        (caption, {"maps": MAPS[None]}, "`maps` must be finite"),
        (caption, {"maps": MAPS * np.nan}, "`maps` must be finite"),
        (caption, {"image": IMAGE[None]}, "`image` must have the shape"),
        (glimpses, {"maps": MAPS * np.inf}, "`maps` must be finite"),
        (glimpses, {"labels": ["one"]}, "`labels` must be 4, one per map"),
        (glimpses, {"probabilities": [0.1, 2, 3]}, r"must be in \[0, 1\], after"),
        (glimpses, {"probabilities": [0.1, np.nan, 0.3]}, r"must be in \[0, 1\]"),
        (glimpses, {"probabilities": [CHANCES]}, "one number for each; pass one exa"),
        (glimpses, {"probabilities": [0.1]}, "`answers` and `probabilities` must have"),
        (glimpses, {"max_answers": 0}, "`max_answers` must be a positive integer"),
    ],
)
def test_other_values_are_refused(plot, changes, message):
    with pytest.raises(ValueError, match=message):
        plot(**changes)


def small_answerer():
    """Of images of 12 x 28 pixels, with a grid of 3 x 7 locations."""
    keras.utils.set_random_seed(3)
    images = keras.Input((12, 28, 3))
    grid = keras.layers.Conv2D(13, 4, strides=4, activation="relu")(images)
    model = build(
        "vqa_ask_attend_answer", backbone=keras.Model(images, grid), num_answers=3
    )
    inputs = inputs_for(tiny("vqa_ask_attend_answer"))
    inputs["images"] = PICTURES
    del inputs["features"]
    return model, inputs


def test_the_maps_and_chances_of_glimpses_are_those_of_the_model(tmp_path):
    model, inputs = small_answerer()
    logits = np.log(np.array([CHANCES, CHANCES[::-1]]))
    maps = GlimpseMaps(
        tmp_path,
        inputs,
        ["one ?", "two ?"],
        ANSWERS,
        truths=["red", "two"],
        predict=lambda _: {"logits": logits},
        layer="hop_1",
        grid_size=(3, 7),
        max_examples=1,
    )
    maps.set_model(model)
    ((tag, figure),) = maps._figures()
    assert tag == "glimpses/0"
    scores = capture_attention(model, inputs)
    (expected,) = (x for path, x in scores.items() if path.endswith("hop_1"))
    shown: Any = panels(figure)[1].images[1].get_array()
    np.testing.assert_allclose(shown, expected[0].reshape(3, 7), atol=1e-6)
    texts = [text.get_text() for text in figure.axes[-1].texts]
    assert texts == ["70%", "20%", "10%"]


def test_captions_in_tensorboard(tmp_path):
    """Any decoder that attends to locations: here RNNsearch, with 6 of them."""
    model, inputs = tiny("rnnsearch_50"), make_inputs(source=6, padded=False)
    maps = CaptionAttentionMaps(
        tmp_path,
        inputs,
        [["a", "cat"], ["dogs"]],
        images=RNG.random((2, 8, 12, 3)),
        grid_size=(2, 3),
    )
    maps.set_model(model)
    maps.on_train_begin()
    maps.on_epoch_end(0)
    maps.on_train_end()
    assert len(pictures_of(tmp_path)) == 2
    (path, scores), *_ = capture_attention(model, inputs).items()
    (tag, figure), (_, other) = maps._figures()
    assert tag == f"attention/{path}/0"
    assert titles(figure) == ["image", "a", "cat"] and titles(other)[1:] == ["dogs"]
    shown: Any = figure.axes[2].images[1].get_array()
    np.testing.assert_allclose(shown, scores[0, :, 1].mean(0).reshape(2, 3), atol=1e-6)
    maps.grid_size = None
    with pytest.raises(ValueError, match="`grid_size` must be the rows and columns of"):
        maps.on_train_begin()


def test_examples_must_match(tmp_path):
    inputs = {"images": np.ones((2, 4, 4, 3)), "token_ids": np.ones((2, 3), "int32")}
    with pytest.raises(ValueError, match="must be for the same examples. .*'words': 1"):
        CaptionAttentionMaps(tmp_path, inputs, [["a"]])
    with pytest.raises(TypeError, match="`inputs` must be a dictionary"):
        GlimpseMaps(tmp_path, [inputs["images"]], ["a", "b"], ANSWERS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'questions': 2, 'truths': 1"):
        GlimpseMaps(tmp_path, inputs, ["a", "b"], ANSWERS, truths=["red"])
    features = {"features": inputs["images"], "token_ids": inputs["token_ids"]}
    with pytest.raises(ValueError, match="`images` must be given if `inputs` have non"):
        GlimpseMaps(tmp_path, features, ["a", "b"], ANSWERS)
    with pytest.raises(ValueError, match="`grid_size` must be a positive integer"):
        GlimpseMaps(tmp_path, inputs, ["a", "b"], ANSWERS, grid_size=0)
