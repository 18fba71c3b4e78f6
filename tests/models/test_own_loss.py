"""Models that compute their loss themselves: what `compile` takes, and loading."""

import keras
import numpy as np
import pytest
from model_cases import create, given, inputs_for, numpy, truth_for

OWN = pytest.mark.parametrize("case", ["clip_vit_base_patch32", "faster_rcnn_resnet50"])


@OWN
def test_compile_takes_no_loss(case):
    model = create(case)
    message = f"`loss` must be left out: a {type(model).__name__} computes its loss"
    for loss in ("mse", keras.losses.Huber(), {"boxes": "mse"}):
        with pytest.raises(ValueError, match=message):
            model.compile("sgd", loss)
        with pytest.raises(ValueError, match=message):
            model.compile(loss=loss)
    assert not model.compiled
    for loss in (None, "auto"):
        model.compile("sgd", loss, run_eagerly=True)
        assert model.compiled and model.run_eagerly and model.loss is None


@OWN
def test_a_compiled_model_is_loaded_compiled(case, tmp_path):
    model = create(case)
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    model.train_on_batch(given(model, inputs_for(model)), truth_for(model))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.compiled and loaded.run_eagerly
    assert int(loaded.optimizer.iterations) == 1
    pairs = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
    for ours, saved in pairs:
        np.testing.assert_array_equal(numpy(ours), numpy(saved), err_msg=saved.path)


@pytest.mark.parametrize(
    "case, output", [("dalle_12b", "image_logits"), ("dvae_dalle", "reconstruction")]
)
def test_a_loss_that_is_added_needs_labels(case, output):
    model = create(case)
    model.compile("sgd", {output: "mse"}, run_eagerly=True)
    with pytest.raises(ValueError, match="`y` must have the labels of the loss given"):
        model.evaluate(given(model, inputs_for(model)), verbose=0)
