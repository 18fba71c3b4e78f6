"""Numbers are learned as labels of mean 0 and deviation 1, and predicted in theirs."""

import keras
import numpy as np
import pytest
from model_cases import build

from keras_attn import models
from keras_attn.cli.finetuning.label_scale import LabelScale

PRICES = np.array([120_000, 240_000, 360_000, 180_000], "float32")
TOKENS = np.array([[2, 5, 7, 3], [4, 4, 1, 6]], "int32")


def test_labels_are_standardized():
    scale = LabelScale.of(PRICES)
    assert scale.mean == 225_000
    assert scale.deviation == pytest.approx(np.std([120e3, 240e3, 360e3, 180e3]))
    labels = scale.standardize(PRICES)
    assert labels.dtype == "float32"
    assert (labels.mean(), labels.std()) == (
        pytest.approx(0, abs=1e-6),
        pytest.approx(1),
    )
    for equal in ([7.0, 7.0], [0.0], [1e9, 1e9]):
        assert LabelScale.of(np.array(equal, "float32")).deviation == 1


def test_errors_are_in_the_unit_of_the_labels():
    scale = LabelScale(225_000, 90_000)
    absolute, root, *_ = scale.metrics(max_samples=4)
    true, predicted = scale.standardize(PRICES), scale.standardize(PRICES + 300)
    predicted[0] += np.float32(3_600 / scale.deviation)
    for metric in (absolute, root):
        metric.update_state(true, predicted[:, None])
    assert float(absolute.result()) == pytest.approx((3_900 + 3 * 300) / 4, rel=1e-3)
    expected = np.sqrt((3_900**2 + 3 * 300**2) / 4)
    assert float(root.result()) == pytest.approx(expected, rel=1e-3)


def scores(model):
    mask = np.ones(TOKENS.shape, bool)
    inputs = {"token_ids": TOKENS, "padding_mask": mask, "segment_ids": 0 * TOKENS}
    names = {tensor.name for tensor in model.inputs}
    given = {name: array for name, array in inputs.items() if name in names}
    return model.predict_on_batch(given)


def bert():
    sizes = {"vocabulary_size": 11, "hidden_dim": 6, "num_heads": 2, "num_layers": 1}
    encoder = build("bert_base", **sizes)
    return models.build_bert_classifier(encoder, num_classes=1)


def test_a_checkpoint_has_the_scale_in_its_weights(tmp_path):
    scale, model = LabelScale(225_000, 90_000), bert()
    before = scores(model)
    assert scale.into(model) is model
    expected = 225_000 + 90_000 * before.astype("float64")
    np.testing.assert_allclose(scores(model), expected, rtol=1e-6)
    models.save_checkpoint(model, tmp_path)
    read = models.load_checkpoint(tmp_path)
    np.testing.assert_allclose(scores(read), expected, rtol=1e-6)
    np.testing.assert_allclose(scores(scale.out_of(model)), before, atol=1e-5)


def test_a_head_without_a_bias_gets_a_layer(tmp_path):
    gpt = build("gpt2_small", vocabulary_size=11)
    model = models.build_gpt_classifier(gpt, num_classes=1)
    scale, before = LabelScale(225_000, 90_000), scores(model)
    scaled = scale.into(model)
    expected = 225_000 + 90_000 * before.astype("float64")
    np.testing.assert_allclose(scores(scaled), expected, rtol=1e-6)
    scaled.save(tmp_path / "model.keras")
    read = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(scores(read), expected, rtol=1e-6)
    # Another scale replaces the layer.
    other = LabelScale(100, 7)
    again = other.out_of(read)
    assert len(again.layers) == len(read.layers)
    np.testing.assert_allclose(scores(again), (expected - 100) / 7, rtol=1e-5)
    with pytest.raises(ValueError, match="must not end with a `Rescaling` layer"):
        models.save_checkpoint(scaled, tmp_path / "checkpoint")
