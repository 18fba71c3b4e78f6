"""The last lines of a report call the artefact."""

from typing import Any

import keras
import numpy as np
import pytest
from export_formats import SUFFIXES

from keras_attn.export import export, verify
from keras_attn.export.description import STEPS, Description
from keras_attn.export.example import write_example
from keras_attn.export.signature_info import SignatureInfo, TensorInfo
from keras_attn.export.signatures import get_signatures
from keras_attn.models.parts.functional import Functional


def run(example):
    assert len(example.splitlines()) == 6
    exec(example, {})


# What every kind of model's report ends in runs in `models/test_export_parity.py`.
@pytest.mark.shipped
@pytest.mark.parametrize("suffix", SUFFIXES.values())
@pytest.mark.parametrize("name", ["dictionaries", "attention_pair"])
def test_the_last_six_lines_run(artefact, name, suffix, printed):
    _, report = artefact(name, suffix)
    assert "\n".join(str(report).splitlines()[-6:]) == report.example
    assert len(report.example.splitlines()) == 6
    (shapes,) = printed("-c", report.example)  # In a process of its own.
    for each in next(iter(report.outputs.values())):
        assert f"'{each}': (" in shapes


@pytest.mark.shipped
def test_photos_and_classes(tmp_path, capsys):
    keras.utils.set_random_seed(1)
    images = keras.Input((5, 7, 3), name="images")
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    model = Functional(images, keras.layers.Dense(2, name="logits")(pooled))
    model.class_names = ["cat", "dog"]
    model.preprocessing = {"size": {"height": 5, "width": 7}, "do_normalize": False}
    cases: Any = (("m.onnx", {}), ("m", {"image_bytes": True}))
    for path, options in cases:
        report = export(model, tmp_path / path, **options)
        assert "photo = np.zeros((480, 640, 3)" in report.example
        run(report.example)
        printed = capsys.readouterr().out
        assert "'cat'" in printed and "'dog'" in printed
        assert verify(model, tmp_path / path, **options).example == report.example


def test_photos_that_are_not_resized_have_the_size_of_the_input(build):
    (signature,) = get_signatures(build("dictionaries"))
    steps = {**dict.fromkeys(STEPS), "mean": 0.0, "std": 1.0, "scale": 1 / 255}

    def lines(*shape):
        info = SignatureInfo({"images": TensorInfo(shape, "float32")}, {})
        return write_example("m", signature, info, Description(None, steps))

    assert 'np.zeros((5, 7, 3), "uint8")' in lines(None, 5, 7, 3)
    assert 'np.zeros((224, 224, 1), "uint8")' in lines(1, None, None, 1)
    steps["crop_size"] = [5, 7]
    assert 'np.zeros((480, 640, 3), "uint8")' in lines(None, 5, 7, 3)


def test_texts_need_no_arrays(build):
    (signature,) = get_signatures(build("dictionaries"))
    info = SignatureInfo(
        {"text": TensorInfo((None,), "string")}, {"y": TensorInfo((None, 2), "float32")}
    )
    lines = write_example("ä b", signature, info, Description(("a", "b"))).splitlines()
    assert len(lines) == 6
    assert lines[2] == 'runner = load_runner("ä b")'
    assert lines[4] == 'outputs = runner(["a text", "another text"])'
    assert lines[5] == 'print(runner.decode_predictions(outputs["y"], top=3))'


def test_made_up_inputs_are_in_range(build):
    (signature,) = get_signatures(build("dictionaries"))
    inputs = {
        "zeta": TensorInfo((2, 3), "int32"),
        "alpha": TensorInfo((None, 5), "float32"),
    }
    signature.index_ranges["zeta"] = (3, 9)
    lines = write_example("m", signature, SignatureInfo(inputs, {}), Description())
    assert '{"zeta": np.full((2, 3), 3, "int32"), "alpha": np.ones((1, 5)' in lines
    signature.index_ranges["zeta"] = (0, 7)
    lines = write_example("m", signature, SignatureInfo(inputs, {}), Description())
    namespace = {}
    exec("import numpy as np\n" + lines.splitlines()[3], namespace)
    np.testing.assert_array_equal(namespace["inputs"]["zeta"], np.ones((2, 3)))
