"""Captioners in exported files, beyond the contract of exports."""

from typing import Any

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from model_cases import create, inputs_for, tiny
from model_family import B

skip_module_without_tensorflow("the exporters need the TensorFlow backend")

from export_formats import SUFFIXES  # noqa: E402

from keras_attn.decoding import Greedy, Sample, generate  # noqa: E402
from keras_attn.export import export, load_runner  # noqa: E402

pytestmark = pytest.mark.shipped


@pytest.mark.parametrize("format", SUFFIXES)
def test_the_most_probable_place_is_looked_at_in_a_file(format, tmp_path):
    model = create("caption_show_attend_tell-hard", inference="most_probable")
    features = {"features": inputs_for(model)["features"]}
    path = tmp_path / f"captioner{SUFFIXES[format]}"
    # As on a phone, with fixed sizes.
    sizes: Any = {"batch_size": B, "num_beams": 1} if format == "litert" else {}
    difference = export(model, path, **sizes).max_abs_diff
    assert difference is not None and difference < 1e-5
    for strategy in (Greedy(), Sample(seed=5)):
        options = {"strategy": strategy, "start_token_id": 1, "end_token_id": 2}
        expected = generate(model, features, 4, **options)
        found = generate(load_runner(path), features, 4, **options)
        assert found.token_ids.tolist() == expected.token_ids.tolist()


@pytest.mark.parametrize("name", ["caption_cnn_transformer", "caption_vit_transformer"])
def test_sample_inputs_are_what_the_model_takes(name, tmp_path):
    """Without a mask of the caption, which `prefill` takes and the model does not."""
    model = tiny(name)
    sample = inputs_for(model)
    path = tmp_path / "captioner.onnx"
    report = export(model, path, sample_inputs=sample)
    [mask] = set(report.inputs["prefill"]) - set(sample)
    assert mask == "decoder_padding_mask"
    prompt = {**sample, mask: np.ones(sample["decoder_token_ids"].shape, bool)}
    expected = model.incremental().prefill(prompt)["logits"]
    found = load_runner(path).prefill(prompt)["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
