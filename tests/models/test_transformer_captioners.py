"""Captioners that are Transformers, against the models that they are made of."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from model_cases import create, inputs_for, numpy, tiny
from model_family import B, U, V

from keras_attn import models
from keras_attn.decoding import generate
from keras_attn.ops import sinusoids, sinusoids_2d

pytestmark = pytest.mark.compiled

ROWS, COLUMNS, WIDTH, HEADS, LAYERS, MLP = 2, 3, 8, 2, 2, 11
SIZES: dict[str, Any] = {
    "vocabulary_size": V,
    "num_layers": LAYERS,
    "hidden_dim": WIDTH,
    "num_heads": HEADS,
    "mlp_dim": MLP,
}


@pytest.mark.parametrize("norm_first", [False, True])
def test_it_is_the_transformer_on_a_map(norm_first):
    """A map that is the embedded source gives the logits of a translator."""
    options: dict[str, Any] = {**SIZES, "norm_first": norm_first, "dropout": 0.0}
    translator = models.build_transformer(**options)
    captioner = models.build_caption_cnn_transformer(
        **options, grid_size=(ROWS, COLUMNS), feature_dim=WIDTH
    )
    rng = np.random.default_rng(0)
    for weight in translator.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape))
    for layer in captioner.layers:
        if layer.name == "image_projection":
            layer.set_weights([np.eye(WIDTH), np.zeros(WIDTH)])
        elif layer.weights:
            layer.set_weights(translator.get_layer(layer.name).get_weights())
    source = rng.integers(0, V, (B, ROWS * COLUMNS)).astype("int32")
    target = rng.integers(0, V, (B, 5)).astype("int32")
    embedded = numpy(translator.get_layer("token_embedding")(source)) * WIDTH**0.5
    embedded = embedded + numpy(sinusoids(ops.arange(ROWS * COLUMNS), WIDTH))
    grid = embedded.reshape(B, ROWS, COLUMNS, WIDTH)
    grid = grid - numpy(sinusoids_2d(ROWS, COLUMNS, WIDTH))
    found = captioner({"features": grid, "decoder_token_ids": target})
    expected = translator(
        {
            "token_ids": source,
            "padding_mask": np.ones(source.shape, bool),
            "decoder_token_ids": target,
        }
    )
    assert np.std(numpy(expected)) > 0.1
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-5)


def small_backbone(size):
    images = keras.Input((*size, 3))
    return keras.Model(images, keras.layers.Conv2D(U, 4, strides=4)(images))


def test_a_backbone_of_any_size():
    model = models.build_caption_cnn_transformer(
        backbone=small_backbone((None, None)), **SIZES
    )
    caption = np.ones((1, 2), "int32")
    for size in ((8, 12), (20, 9)):
        images = np.ones((1, *size, 3), "float32")
        logits = model({"images": images, "decoder_token_ids": caption})
        assert logits.shape == (1, 2, V)
        assert generate(model, {"images": images}, 2, start_token_id=1)[0].shape[1] == 2


@pytest.mark.parametrize("case", ["caption_cnn_transformer-scores"])
def test_the_scores_are_those_of_all_heads(case):
    model = tiny(case)
    found = model(inputs_for(model))
    assert found["attention_scores"].shape == (B, 2 * 3, 3, 2 * 5)
    np.testing.assert_allclose(numpy(found["attention_scores"]).sum(-1), 1, atol=1e-5)


def test_a_vit_is_projected_to_the_width_of_the_decoder():
    narrow = create("caption_vit_transformer", hidden_dim=15)
    assert narrow.get_layer("image_projection").units == 15
    assert "image_projection" not in {
        layer.name for layer in create("caption_vit_transformer", hidden_dim=21).layers
    }


def test_other_encoders_are_refused():
    build = models.build_caption_vit_transformer
    with pytest.raises(TypeError, match="`encoder` must be the name of a variant of"):
        build(encoder=3)
    with pytest.raises(ValueError, match="`encoder` must return `sequence_output`"):
        build(encoder=small_backbone((8, 8)))
    with pytest.raises(ValueError, match="`hidden_dim` must be even"):
        models.build_caption_cnn_transformer(hidden_dim=9)
    with pytest.raises(ValueError, match="`max_length` must be at most 31"):
        tiny("caption_vit_transformer").incremental(32)
