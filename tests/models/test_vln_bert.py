"""VLN-BERT: it starts as ViLBERT, and its new terms place regions along a path."""

import re

import keras
import numpy as np
import pytest
from model_cases import build, inputs_for, numpy, outputs_of, randomize, tiny

from keras_attn import models
from keras_attn.layers import GlobalRegion

NEW = {"orientation_embedding", "next_heading_embedding", "viewpoint_embedding"}


def test_only_the_new_terms_are_new_and_zero():
    vilbert, model = tiny("vilbert_base"), build("vln_bert_base")
    ours, theirs = ({x.name for x in m.layers if x.weights} for m in (model, vilbert))
    assert ours - theirs == NEW and theirs <= ours
    assert all(not numpy(w).any() for n in NEW for w in model.get_layer(n).weights)


@pytest.mark.compiled
def test_the_new_terms_learn():
    """Zero is no point where their gradients vanish."""
    model = randomize(build("vln_bert_scorer"))
    layers = [model.get_layer(name) for name in NEW]
    for layer in layers:
        layer.set_weights([0 * weight for weight in layer.get_weights()])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(inputs_for(model), np.array([[3.0], [-3.0]]), batch_size=2, verbose=0)
    for layer in layers:
        (weights,) = map(numpy, layer.weights)
        assert np.isfinite(weights).all() and np.abs(weights).max() > 1e-5, layer.name


def test_the_score_of_the_pretrainer_is_of_the_first_word_and_region():
    model = tiny("vln_bert_pretrainer")
    assert model.get_layer("scorer").kernel.shape == (26, 1)
    features = keras.Model(model.inputs, model.get_layer("pair_dropout").input)
    inputs = inputs_for(model)
    fused = numpy(features(list(inputs[t.name] for t in model.inputs)))
    layer = model.get_layer("scorer")
    expected = fused @ numpy(layer.kernel) + numpy(layer.bias)
    score = outputs_of(model, inputs)["score"]
    np.testing.assert_allclose(score, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((0,), "`text_co_layers` and `region_co_layers` must have the same length"),
        ((1, 0), "`region_co_layers` must have blocks in ascending order"),
        ((0, 3), "`region_co_layers` must have blocks in ascending order, from 0 to 2"),
    ],
)
def test_bad_co_layers_are_refused(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build("vln_bert_base", region_co_layers=layers)


def test_heads_of_single_regions_refuse_the_other_kind_of_encoder():
    """Their first region is the whole image in one, and part of the path in the other.

    Without the error, the first region of a path would get no logits.
    """
    path, image = tiny("vln_bert_base"), tiny("vilbert_base")
    match = "from `build_vilbert`; for masked regions .*`build_vln_bert_pretrainer`"
    for head in (models.build_vilbert_referring, models.build_vilbert_pretrainer):
        with pytest.raises(ValueError, match=match):
            head(path)
    match = "from `build_vln_bert`; for masked regions .*`build_vilbert_pretrainer`"
    with pytest.raises(ValueError, match=match):
        models.build_vln_bert_pretrainer(image)


def test_an_image_or_path_without_a_region_is_named():
    for name in ("vilbert_referring", "vln_bert_scorer"):
        model = tiny(name)
        inputs = inputs_for(model)
        inputs["region_padding_mask"][1] = False
        match = r"`region_padding_mask` .* one real region in every row.*in rows \[1\]"
        for call in (model, model.predict):
            with pytest.raises(ValueError, match=match):
                call(inputs)


@pytest.mark.compiled
def test_an_image_without_a_region_may_fill_up_a_batch():
    features = np.full((1, 3, 5), 7, "float32")
    boxes, mask = np.ones((1, 3, 4), "float32"), np.zeros((1, 3), bool)
    outputs = [numpy(output) for output in GlobalRegion()(features, boxes, mask)]
    assert not outputs[0][0, 0].any()
    assert outputs[1][0, 0].tolist() == [0, 0, 1, 1, 1]
    assert outputs[2].tolist() == [[True, False, False, False]]
    model = build("vilbert_scorer")
    inputs = inputs_for(model)
    inputs["region_padding_mask"][1] = False
    model.compile("sgd", "mse", jit_compile=False)
    loss = model.train_on_batch(inputs, np.ones((len(inputs["token_ids"]), 1)))
    assert np.isfinite(loss)
    assert all(np.isfinite(numpy(weight)).all() for weight in model.weights)
