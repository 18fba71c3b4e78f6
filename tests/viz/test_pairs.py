"""What models of images and texts find similar: matrices, maps, and TensorBoard."""

from typing import Any

import keras
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from model_cases import create, inputs_for, randomize, tiny
from viz.figures import panels, tick_labels

from keras_attn.layers import ImagePreprocessing
from keras_attn.ops import attention
from keras_attn.viz import (
    attention_rollout,
    capture_attention,
    image_attention,
    image_relevance,
    image_rollout,
    image_text_similarity,
    plot_image_attention,
    plot_similarity,
    save_figure,
)
from keras_attn.viz.callbacks import RelevanceMaps, SimilarityMaps

CLIP, SIGLIP = "clip_vit_base_patch32", "siglip_base_patch16_224"
RESNET = "clip_rn50"
RNG = np.random.default_rng(0)
PHOTOS = RNG.integers(0, 256, (2, 13, 17, 3), "uint8")
TEXTS = ["a $red$ ring", "Straße", "a " + "very " * 60 + "long text"]
COSINES = np.array([[0.1, 0.2, 0.3], [-0.1, 0.4, 0.0]], "float32")
CHANCES = np.array([[0.1, 0.2, 0.7], [0.25, 0.25, 0.5]], "float32")


def sample(name):
    """A model, two images and three texts."""
    model = tiny(name)
    images = inputs_for(model)["images"]
    return model, images, RNG.integers(0, 10, (3, 5)).astype("int32")


def centers(ax):
    """The middle of each frame."""
    return [tuple(frame.get_center().round(6)) for frame in ax.patches]


@pytest.mark.parametrize("name", [CLIP, RESNET, SIGLIP])
def test_every_image_is_compared_with_every_text(name):
    model, images, token_ids = sample(name)
    matrices = image_text_similarity(model, images, token_ids)
    one = model.predict_on_batch({"images": images, "token_ids": token_ids[:2]})
    cosines = one["image_embeddings"] @ one["text_embeddings"].T
    np.testing.assert_allclose(matrices["cosine"][:, :2], cosines, atol=1e-5)
    assert all(matrix.shape == (2, 3) for matrix in matrices.values())
    logits = np.exp(float(model.similarity.logit_scale)) * matrices["cosine"]
    if name == SIGLIP:
        logits = logits + float(model.similarity.logit_bias)
        expected = {"match": 1 / (1 + np.exp(-logits))}
    else:
        powers = np.exp(logits)
        expected = {
            "text_given_image": powers / powers.sum(1, keepdims=True),
            "image_given_text": powers / powers.sum(0, keepdims=True),
        }
    assert set(matrices) == {"cosine", *expected}
    for kind, values in expected.items():
        np.testing.assert_allclose(matrices[kind], values, atol=1e-5)


def test_the_matrix_has_pictures_above_texts_beside_and_frames(tmp_path):
    matrices = {"cosine": COSINES, "text_given_image": CHANCES}
    figure = plot_similarity(
        PHOTOS, TEXTS, matrices, pairs=[(0, 2), (1, 0)], title="a $ title"
    )
    cosines, chances = figure.axes
    for ax, matrix in ((cosines, COSINES), (chances, CHANCES)):
        shown, *photos = ax.images
        np.testing.assert_array_equal(shown.get_array(), matrix.T)
        assert len(photos) == 2
        left, right, bottom, top = photos[1].get_extent()
        # Above the first row, and over its column.
        assert top < bottom < -0.5 and 0.5 < left < right < 1.5
        assert centers(ax) == [(0, 2), (1, 0)]
        red, green, blue = to_rgb(ax.patches[0].get_edgecolor())
        assert green > max(red, blue)
        written = [text.get_text() for text in ax.texts]
        assert written == [f"{value:.2f}" for value in matrix.T.ravel()]
    assert cosines.images[0].get_clim() == pytest.approx((-0.1, 0.4))
    assert "from -0.10 to 0.40" in cosines.get_title()
    assert chances.images[0].get_clim() == (0, 1)
    *known, cut = tick_labels(cosines.yaxis)
    lines = cut.split("\n")
    assert known == TEXTS[:2] and cut.endswith(" …") and len(lines) == 4
    assert max(map(len, lines)) <= 40
    assert cosines.get_xlabel().startswith("green frame")
    assert tick_labels(chances.yaxis) == ["", "", ""]
    save_figure(figure, tmp_path / "similarity.png")


def test_pairs_are_the_diagonal_if_there_are_as_many_texts():
    square = plot_similarity(PHOTOS, TEXTS[:2], {"match": CHANCES[:, :2]})
    assert centers(square.axes[0]) == [(0, 0), (1, 1)]
    (others,) = plot_similarity(PHOTOS, TEXTS, {"match": CHANCES}).axes
    assert not others.patches and not others.get_xlabel()
    many = RNG.random((40, 40))
    crowded = plot_similarity(
        np.repeat(PHOTOS[:1], 40, 0), ["text"] * 40, {"cosine": many, "match": many}
    )
    assert not crowded.axes[0].texts  # No room for numbers.
    width, height = crowded.get_size_inches()
    assert width < 18 and height < 10


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"images": PHOTOS[0]}, "`images` must have the shape"),
        ({"texts": "a text"}, "`texts` must be a list of strings, at least one"),
        ({"texts": []}, "`texts` must be a list of strings, at least one"),
        ({"matrices": {}}, "`matrices` must be a dictionary, at least one"),
        ({"matrices": COSINES}, "`matrices` must be a dictionary, at least one"),
        ({"matrices": {"match": CHANCES.T}}, r"finite, \(2, 3\), .*shape \(3, 2\)"),
        ({"matrices": {"match": CHANCES * np.nan}}, "`matrices` must be finite"),
        ({"matrices": {"match": CHANCES * 9}}, r"in \[0, 1\]. .*'match' from 0.9 to"),
        ({"pairs": [(0, 3)]}, r"`pairs` must be numbers of .*below 3. .*\(0, 3\)"),
        ({"pairs": [(0, 1, 1)]}, "`pairs` must be numbers"),
        ({"pairs": [(0.5, 1)]}, "`pairs` must be numbers"),
    ],
)
def test_other_matrices_are_refused(changes, message):
    arguments = {"images": PHOTOS, "texts": TEXTS, "matrices": {"cosine": COSINES}}
    with pytest.raises(ValueError, match=message):
        plot_similarity(**{**arguments, **changes})


@pytest.mark.parametrize("function", [image_text_similarity, image_relevance])
def test_the_model_has_two_towers(function):
    model, images, token_ids = sample(CLIP)
    for wrong in (model.image_encoder(), "clip"):
        with pytest.raises(TypeError, match="`model` must be a model from `build_clip"):
            function(wrong, images, token_ids)


def difference_quotients(monkeypatch, encoder, image, text, layer, shape):
    """The gradient of the cosine, by the scores (N, L, S) of one layer of a ViT."""
    count, step = int(np.prod(shape)), 1e-2
    steps = step * np.eye(count, dtype="float32").reshape(count, *shape)
    steps = np.concatenate([steps, -steps])
    original, calls = attention.attention_weights, []

    def moved(*args, **kwargs):
        calls.append(None)
        weights = original(*args, **kwargs)
        return weights + steps if len(calls) == layer + 1 else weights

    with monkeypatch.context() as patch:
        patch.setattr(attention, "attention_weights", moved)
        cosines = encoder(np.repeat(image[None], 2 * count, axis=0)) @ text[:, None]
    up, down = np.split(np.asarray(cosines)[:, 0], 2)
    return ((up - down) / (2 * step)).reshape(shape)


@pytest.mark.parametrize("name", [CLIP, SIGLIP])
def test_the_relevance_of_a_vit(name, monkeypatch):
    """Chefer et al. 2021, equations 5 and 6, with difference quotients."""
    model = randomize(create(name), scale=0.3)
    _, images, token_ids = sample(name)
    maps = image_relevance(model, images, token_ids)
    assert maps.shape == (2, 3, 2, 3) and maps.dtype == np.float32
    encoder = model.image_encoder()
    texts = np.asarray(model.text_encoder()(token_ids))
    scores = capture_attention(encoder, images)
    of_layers = [
        np.maximum(
            of_layer[1]
            * difference_quotients(
                monkeypatch, encoder, images[1], texts[2], layer, of_layer.shape[1:]
            ),
            0,
        ).mean(0)
        for layer, of_layer in enumerate(scores.values())
    ]
    one = np.eye(of_layers[0].shape[1])
    first, second, *probe = of_layers
    relevance = (one + second) @ (one + first)
    row = probe[0][0] @ relevance if probe else relevance[0, 1:]
    scale = row.max()
    np.testing.assert_allclose(maps[1, 2].ravel(), row, atol=0.01 * scale)


def test_the_relevance_of_a_resnet():
    """Selvaraju et al. 2017, equations 1 and 2, with difference quotients."""
    model, images, token_ids = sample(RESNET)
    maps = image_relevance(model, images, token_ids)
    pooling = model.get_layer("attention_pooling")
    features = np.asarray(keras.Model(model.inputs[0], pooling.input)(images))[1]
    text = np.asarray(model.text_encoder()(token_ids))[2]
    step = 1e-2 * np.eye(features.shape[-1], dtype="float32")[:, None, None]
    pooled = pooling(np.concatenate([features + step, features - step]))
    pooled = np.asarray(pooled, "float64")
    cosines = pooled @ text / np.linalg.norm(pooled, axis=1)
    up, down = np.split(cosines, 2)
    # A step of all positions is the sum of their derivatives.
    weights = (up - down) / 2e-2 / features[..., 0].size
    expected = np.maximum(features @ weights, 0)
    assert maps.shape == (2, 3, *expected.shape) and expected.max() > 0
    np.testing.assert_allclose(maps[1, 2], expected, atol=0.01 * expected.max())


def test_gradients_need_tensorflow(monkeypatch):
    model, images, token_ids = sample(CLIP)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="need the TensorFlow backend. .*'jax'"):
        image_relevance(model, images, token_ids)


def test_poolings_by_attention_are_on_the_map():
    model, images, _ = sample(RESNET)
    encoder = model.image_encoder()
    ((path, maps),) = image_attention(encoder, images).items()
    scores = capture_attention(encoder, images)[path]
    np.testing.assert_array_equal(
        maps.reshape(*scores.shape[:2], -1), scores[:, :, 0, 1:]
    )
    # The pooling has a query of its own.
    (same,) = image_attention(encoder, images, query=(1, 1)).values()
    np.testing.assert_array_equal(same, maps)
    with pytest.raises(ValueError, match="attend over all patches in every layer"):
        image_rollout(encoder, images)
    model, images, _ = sample(SIGLIP)
    encoder = model.image_encoder()
    *blocks, probe = capture_attention(encoder, images).values()
    rollout = image_rollout(encoder, images)
    expected = (probe.mean(1) @ attention_rollout(blocks)).reshape(2, 2, 3)
    np.testing.assert_allclose(rollout, expected, atol=1e-6)
    maps = list(image_attention(encoder, images).values())
    np.testing.assert_array_equal(maps[-1].reshape(2, -1, 6), probe[:, :, 0])


def test_a_map_covers_the_part_that_was_not_cropped():
    layer = ImagePreprocessing(8, crop_size=8)
    photo = RNG.random((20, 10, 3))  # Resized to 16 × 8; rows 4 to 12 are kept.
    box = layer.visible_box(20, 10)
    assert box == (0, 5, 10, 15)
    figure = plot_image_attention(photo, np.ones((2, 2)), box=box)
    ax = figure.axes[1]
    below, heat = ax.images
    assert tuple(below.get_extent()) == (-0.5, 9.5, 19.5, -0.5)
    assert tuple(heat.get_extent()) == (-0.5, 9.5, 14.5, 4.5)
    assert ax.get_ylim() == (19.5, -0.5)
    # A smaller image is padded; without a crop all of it is seen.
    assert ImagePreprocessing(None, crop_size=8).visible_box(4, 8) == (0, -2, 8, 6)
    assert ImagePreprocessing((3, 5)).visible_box(20, 10) == (0, 0, 10, 20)
    for wrong in ((5, 0, 5, 9), (0, 21, 10, 30)):
        with pytest.raises(ValueError, match="`box` must be left, top, right and bott"):
            plot_image_attention(photo, np.ones((2, 2)), box=wrong)


def test_callbacks_draw_the_photos(tmp_path):
    model, images, token_ids = sample(CLIP)
    maps = SimilarityMaps(
        tmp_path, images, token_ids[:2], TEXTS[:2], photos=PHOTOS, max_examples=1
    )
    maps.set_model(model)
    ((tag, figure),) = maps._figures()
    assert tag == "similarity" and len(figure.axes) == 3
    photo: Any = figure.axes[0].images[1].get_array()
    np.testing.assert_allclose(photo, PHOTOS[0] / 255, atol=1e-6)
    layer = ImagePreprocessing(images.shape[1:3], crop_size=images.shape[1:3])
    options = {"photos": list(PHOTOS), "preprocessing": layer}
    maps = RelevanceMaps(tmp_path, images, token_ids, TEXTS, **options)
    maps.set_model(model)
    (_, (tag, figure)) = maps._figures()
    assert tag == "relevance/1"
    assert [ax.get_title() for ax in panels(figure)] == ["image", *TEXTS]
    heat: Any = figure.axes[2].images[1].get_array()
    expected = image_relevance(model, images, token_ids)[1, 1]
    np.testing.assert_allclose(heat, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="`token_ids` and `texts` must have"):
        RelevanceMaps(tmp_path, images, token_ids, TEXTS[:2])
    with pytest.raises(ValueError, match="`images` and `photos` must have"):
        RelevanceMaps(tmp_path, images, token_ids, TEXTS, photos=list(PHOTOS[:1]))
    with pytest.raises(ValueError, match="must have"):
        SimilarityMaps(tmp_path, images, token_ids, TEXTS)
