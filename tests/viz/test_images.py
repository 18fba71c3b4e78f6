"""What an image model attends to: maps, the rollout, and plots of both."""

import json

import keras
import numpy as np
import pytest
from event_files import steps_of
from matplotlib.figure import Figure
from model_cases import tiny
from viz.figures import panels

from keras_attn import layers
from keras_attn.viz import (
    attention_rollout,
    capture_attention,
    image_attention,
    image_attention_page,
    image_rollout,
    plot_image_attention,
    plot_position_similarity,
    save_figure,
)
from keras_attn.viz.callbacks import ImageAttentionMaps

RNG = np.random.default_rng(0)


def sample_images(model, batch=2):
    return RNG.normal(size=(batch, *model.input.shape[1:])).astype("float32")


def test_the_map_of_a_vit_is_that_of_its_class_token():
    model = tiny("vit_base_patch16")
    images = sample_images(model)
    scores, maps = capture_attention(model, images), image_attention(model, images)
    assert set(maps) == set(scores) and len(maps) == 2
    for path, seen in maps.items():
        assert seen.shape == (2, 3, 2, 3)
        np.testing.assert_array_equal(seen.reshape(2, 3, 6), scores[path][:, :, 0, 1:])
    one = image_attention(model, images, query=(1, 2))
    path = next(iter(one))
    np.testing.assert_array_equal(one[path].reshape(2, 3, 6), scores[path][:, :, 6, 1:])


def test_the_map_without_a_class_token_is_the_mean():
    model = tiny("vit_base_patch16-mean")
    images = sample_images(model)
    for path, seen in image_attention(model, images).items():
        mean = capture_attention(model, images)[path].mean(2)
        np.testing.assert_allclose(seen.reshape(2, 3, 6), mean, atol=1e-6)


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_are_shifted_back(shifted):
    inputs = keras.Input((8, 12, 6))
    model = keras.Model(
        inputs, layers.WindowAttention(2, 4, shifted=shifted, name="windows")(inputs)
    )
    image = sample_images(model, 1)
    (whole,) = image_attention(model, image).values()
    assert whole.shape == (1, 2, 8, 12)
    # The weights of each window sum to one.
    windows = 2 * 3
    np.testing.assert_allclose(whole.sum((2, 3)), windows, rtol=1e-5)
    (one,) = image_attention(model, image, query=(1, 5)).values()
    np.testing.assert_allclose(one.sum((2, 3)), 1, rtol=1e-5)
    rows, columns = np.nonzero(one[0, 0])
    start = (0, 2) if shifted else (0, 4)
    assert (rows.min(), columns.min()) == start
    assert (rows.max(), columns.max()) == ((1, 5) if shifted else (3, 7))


def test_a_map_in_a_convolutional_network():
    model = tiny("cnn_self_attention")
    (seen,) = image_attention(model, sample_images(model)).values()
    assert seen.shape == (2, 1, 7, 9)
    np.testing.assert_allclose(seen.sum((2, 3)), 1, rtol=1e-5)


def test_layers_without_a_whole_map_are_left_out():
    model = tiny("mae_vit_base")
    inputs = {
        "images": RNG.normal(size=(2, 14, 21, 3)).astype("float32"),
        "noise": RNG.uniform(size=(2, 6)).astype("float32"),
    }
    assert list(image_attention(model, inputs)) == ["decoder_block_0/attention"]
    words = tiny("bert_base")
    tokens = np.ones((1, 5), "int32")
    inputs = dict.fromkeys(("token_ids", "padding_mask", "segment_ids"), tokens)
    with pytest.raises(ValueError, match="sees a whole image.*model='bert'"):
        image_attention(words, inputs)
    vit = tiny("vit_base_patch16")
    with pytest.raises(ValueError, match=r"`query` .*\(2, 3\).*query=\(2, 0\)"):
        image_attention(vit, sample_images(vit), query=(2, 0))


def test_the_rollout_includes_residual_connections():
    first, second = (RNG.dirichlet(np.ones(4), (2, 3, 4)) for _ in range(2))
    rolled = attention_rollout({"a": first, "b": second})
    half = [0.5 * (scores.mean(1) + np.eye(4)) for scores in (first, second)]
    np.testing.assert_allclose(rolled, half[1] @ half[0], rtol=1e-5)
    np.testing.assert_allclose(rolled.sum(-1), 1, rtol=1e-5)
    assert rolled.shape == (2, 4, 4)


def test_the_rollout_of_a_vit_is_mapped_onto_its_patches():
    model = tiny("vit_base_patch16")
    images = sample_images(model)
    rollout = attention_rollout(capture_attention(model, images))
    maps = image_rollout(model, images)
    assert maps.shape == (2, 2, 3)
    np.testing.assert_array_equal(maps.reshape(2, 6), rollout[:, 0, 1:])
    maps = image_rollout(model, images, query=(1, 2))
    np.testing.assert_array_equal(maps.reshape(2, 6), rollout[:, 6, 1:])


@pytest.mark.parametrize("name", ["swin_tiny", "cnn_self_attention"])
def test_a_rollout_needs_attention_over_all_patches_in_every_layer(name):
    model = tiny(name)
    with pytest.raises(ValueError, match="attend over all patches in every layer"):
        image_rollout(model, sample_images(model))


@pytest.mark.parametrize(
    "shapes", [[], [(2, 3, 4)], [(2, 3, 4, 5)], [(2, 3, 4, 4), (2, 3, 5, 5)]]
)
def test_a_rollout_needs_the_same_tokens(shapes):
    with pytest.raises(ValueError, match="over the same tokens.*Received: shapes"):
        attention_rollout([np.zeros(shape) for shape in shapes])


def test_maps_are_drawn_over_the_image(tmp_path):
    image = RNG.uniform(size=(14, 21, 3))
    maps = RNG.uniform(size=(3, 2, 3))
    figure = plot_image_attention(image, maps, title="block $0$")
    assert [ax.get_title() for ax in panels(figure)] == [
        "image",
        "head 0",
        "head 1",
        "head 2",
    ]
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "attention weight" and bar.get_ylim() == (0, 1)
    # The map is stretched over the whole image.
    below, heat = figure.axes[1].images
    assert tuple(below.get_extent()) == tuple(heat.get_extent())
    assert tuple(heat.get_extent()) == (-0.5, 20.5, 13.5, -0.5)
    save_figure(figure, tmp_path / "heads.png")
    some = plot_image_attention(image, RNG.uniform(size=(2, 2, 3)), labels=["a", "$b$"])
    assert [ax.get_title() for ax in panels(some)] == ["image", "a", "$b$"]
    with pytest.raises(ValueError, match="`labels` must be 2, one per map"):
        plot_image_attention(image, RNG.uniform(size=(2, 2, 3)), labels=["a"])
    gray = plot_image_attention(image[:, :, :1], RNG.uniform(size=(2, 3)))
    assert len(panels(gray)) == 2
    page = image_attention_page(image, maps, title="a <b>", box=(7, 0, 21, 14))
    data = json.loads(page.split('id="attention">')[1].split("</script>")[0])
    assert data["words"] == ["head 0", "head 1", "head 2"] and data["title"] == "a <b>"
    np.testing.assert_allclose(data["maps"], maps, atol=6e-5)
    np.testing.assert_allclose(data["box"], [1 / 3, 0, 1, 1])
    assert 'alt="a &lt;b&gt;"' in page and "Choose a map" in data["texts"]["choose"]
    assert '"words":["attention"]' in image_attention_page(image, maps[0])
    with pytest.raises(ValueError, match="`labels` must be 3, one per map"):
        image_attention_page(image, maps, labels=["a"])
    alone = plot_image_attention(image, RNG.uniform(size=(2, 3)), ax=figure.axes[0])
    assert alone is figure
    table = np.concatenate([[[9.0, 9.0]], np.eye(2)[[0, 1, 0, 1, 1, 0]]])
    figure = plot_position_similarity(table, (2, 3), title="positions")
    drawn = [ax.images[0].get_array() for ax in figure.axes[:6]]
    np.testing.assert_array_equal(drawn[1], [[0, 1, 0], [1, 1, 0]])
    save_figure(figure, tmp_path / "positions.png")


@pytest.mark.parametrize(
    "image, maps, message",
    [
        ((4, 4, 2), (2, 2), r"`image` must have .*\(4, 4, 2\)"),
        ((1, 4, 4, 3), (2, 2), r"`image` must have .*\(1, 4, 4, 3\)"),
        ((4, 4, 3), (2,), r"`maps` must be .*\(2,\)"),
        ((4, 4, 3), (2, 0), r"`maps` must be .*\(2, 0\)"),
    ],
)
def test_plots_that_are_refused(image, maps, message):
    with pytest.raises(ValueError, match=message):
        plot_image_attention(np.ones(image), np.ones(maps))
    with pytest.raises(ValueError, match="`image` must be finite"):
        plot_image_attention(np.full((2, 2, 3), np.nan), np.ones((2, 2)))
    with pytest.raises(ValueError, match="must be one if `ax` is given"):
        plot_image_attention(
            np.ones((2, 2, 3)), np.ones((2, 2, 2)), ax=Figure().subplots()
        )
    with pytest.raises(ValueError, match=r"`table` .*grid=\(2, 3\)"):
        plot_position_similarity(np.ones((5, 2)), (2, 3))


def test_tensorboard_shows_them_while_fitting(tmp_path):
    model = keras.models.clone_model(tiny("vit_base_patch16"))
    images, labels = sample_images(model, 4), np.arange(4)
    maps = ImageAttentionMaps(tmp_path, images, layer="block_1", max_examples=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    model.fit(images, labels, epochs=2, verbose=0, callbacks=[maps])
    steps = steps_of(tmp_path)
    tags = [tag for tag in steps if tag.startswith("attention/")]
    assert tags == [f"attention/block_1/attention/{index}" for index in (0, 1)]
    assert steps[tags[0]] == [0, 1]
    wrong = ImageAttentionMaps(tmp_path, images, layer="block_7")
    with pytest.raises(ValueError, match="`layer` must match .*layer='block_7'"):
        model.fit(images, labels, verbose=0, callbacks=[wrong])
