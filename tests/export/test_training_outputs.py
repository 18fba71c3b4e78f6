"""Outputs that only training needs are part of the model, not of its artefacts."""

import keras
import numpy as np
import pytest
from export_formats import OF_MOST_MODELS
from model_cases import C, numpy, randomize

from keras_attn.export import ExportError, export, load_runner, verify
from keras_attn.models import build_fcn_resnet

IMAGES = np.random.default_rng(0).normal(size=(2, 19, 26, 3)).astype("float32")


@pytest.fixture(scope="module")
def fcn():
    sizes = {"stem_dim": 3, "num_blocks": (1, 1, 2, 1), "num_classes": C}
    return randomize(build_fcn_resnet(**sizes))


def test_training_outputs_are_saved_with_the_model(fcn, tmp_path):
    assert fcn.training_outputs == ("auxiliary_logits",)
    fcn.save(tmp_path / "fcn.keras")
    loaded = keras.saving.load_model(tmp_path / "fcn.keras")
    assert loaded.training_outputs == ("auxiliary_logits",)
    assert set(loaded.output) == {"logits", "auxiliary_logits"}


def test_a_configuration_without_them_is_as_before(fcn):
    config = fcn.get_config()
    assert config.pop("training_outputs") == ["auxiliary_logits"]
    assert type(fcn).from_config(config).training_outputs == ()
    sizes = {"stem_dim": 3, "num_blocks": (1, 1), "dilated_stages": ()}
    plain = build_fcn_resnet(**sizes, auxiliary_head=False)
    assert plain.training_outputs == ()
    assert "training_outputs" not in plain.get_config()


@pytest.mark.shipped
@pytest.mark.parametrize("suffix", OF_MOST_MODELS)
def test_an_export_leaves_out_what_only_training_needs(fcn, suffix, tmp_path):
    path, old = tmp_path / f"m{suffix}", tmp_path / f"old{suffix}"
    report = export(fcn, path)
    assert report.outputs == {"serve": {"logits": f"float32 (?, ?, ?, {C})"}}
    assert any("only training needs it: `auxiliary_logits`" in x for x in report.notes)
    found = load_runner(path)({"images": IMAGES})
    expected = numpy(fcn(IMAGES))
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=2e-5)
    assert verify(fcn, path).outputs == report.outputs
    # With all outputs it is the artefact of another model.
    whole = export(keras.Model(fcn.input, fcn.output), old)
    assert set(whole.outputs["serve"]) == {"logits", "auxiliary_logits"}
    assert whole.bytes > report.bytes
    with pytest.raises(ExportError, match="must return .'logits'.; the "):
        verify(fcn, old)
