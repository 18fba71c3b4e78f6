"""Captions from exported files are those of Keras, with every strategy."""

from typing import Any

import pytest
from backend import skip_module_without_tensorflow
from model_cases import B, create, inputs_for, tiny

skip_module_without_tensorflow("the exporters need the TensorFlow backend")

from export_formats import SUFFIXES  # noqa: E402

from keras_attn.decoding import Beam, Greedy, Sample, generate  # noqa: E402
from keras_attn.export import export, load_runner  # noqa: E402

pytestmark = pytest.mark.shipped
MODELS = {
    "show_and_tell": lambda: tiny("caption_show_and_tell"),
    "soft": lambda: tiny("caption_show_attend_tell"),
    "most_probable": lambda: create(
        "caption_show_attend_tell-hard", inference="most_probable"
    ),
}


@pytest.mark.parametrize("format", SUFFIXES)
@pytest.mark.parametrize("name", MODELS)
def test_captions_from_a_file(name, format, tmp_path):
    model = MODELS[name]()
    features = {"features": inputs_for(model)["features"]}
    path = tmp_path / f"captioner{SUFFIXES[format]}"
    beams: dict[str, Any] = {}
    if format == "litert":  # As on a phone, with fixed sizes.
        beams = {"batch_size": B, "num_beams": 1}
    difference = export(model, path, **beams).max_abs_diff
    assert difference is not None and difference < 1e-5
    runner = load_runner(path)
    strategies = [Greedy(), Sample(seed=5)]
    if format != "litert":
        strategies.append(Beam(3))
    for strategy in strategies:
        options = {"strategy": strategy, "start_token_id": 1, "end_token_id": 2}
        expected = generate(model, features, 4, **options)
        found = generate(runner, features, 4, **options)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
