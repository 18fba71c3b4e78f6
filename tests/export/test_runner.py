"""Calling an artefact, and errors for wrong inputs."""

import numpy as np
import pytest
from export_formats import SUFFIXES

from keras_attn.export import ExportError, export, load_runner
from keras_attn.export.description import Description
from keras_attn.export.metadata import IndexRanges
from keras_attn.export.runner import Runner, SignatureInfo, TensorInfo


@pytest.fixture(scope="module", params=SUFFIXES.values())
def runner(request, artefact):
    path, _ = artefact("dictionaries", request.param)
    return load_runner(path)


@pytest.fixture
def inputs(normal):
    return {"zeta": np.array([[1, 2, 3], [4, 5, 6]], np.int32), "alpha": normal(2, 5)}


def test_signatures_are_described(runner):
    assert runner.signatures == {
        "serve": SignatureInfo(
            inputs={
                "zeta": TensorInfo((None, 3), "int32"),
                "alpha": TensorInfo((None, 5), "float32"),
            },
            outputs={
                "best": TensorInfo((None,), "int32"),
                "first": TensorInfo((None, 2), "float32"),
                "same": TensorInfo((None, 5), "float32"),
                "second": TensorInfo((None, 3, 2), "float32"),
            },
        )
    }


def test_outputs_are_numpy_and_equal_keras(build, runner, inputs):
    found = runner(inputs)
    want = build("dictionaries")(inputs)
    assert set(found) == set(want)
    for name, value in found.items():
        assert isinstance(value, np.ndarray)
        np.testing.assert_allclose(value, want[name], atol=1e-6)


def test_wider_dtypes_are_converted(runner, inputs):
    wide = {"zeta": inputs["zeta"].tolist(), "alpha": inputs["alpha"].astype(float)}
    for name, value in runner(wide, "serve").items():
        np.testing.assert_allclose(value, runner(inputs)[name], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"zeta": [[1, 2, 3], [4, 5]]}, r"`inputs\['zeta'\]` must be an array whose"),
        ({"zeta": np.full((2, 3), None)}, r"must be int32. .*dtype=object"),
        ({"zeta": [[1, 2, 3], [4, -1, 6]]}, r"zeta'\]` must be in \[0, 7\),.* -1 at"),
        ({"zeta": [[1, 2, 7], [4, 5, 6]]}, r"in \[0, 7\), .*: 7 at index \(0, 2\)"),
        ({"zeta": np.array([[2**32 + 1] * 3] * 2)}, r"in \[0, 7\),.*: 4294967297 at"),
        ({"zeta": np.ones((0, 3), int)}, r"None is any .* shape=\(0, 3\)"),
        ({"zeta": np.ones((2, 0), int)}, r"None is any .* shape=\(2, 0\)"),
        ({"alpha": np.ones((0, 5))}, r"alpha'\]` must have .* shape=\(0, 5\)"),
        ({"zeta": np.ones((2, 3))}, r"`inputs\['zeta'\]` must be int32. .*=float64"),
        ({"zeta": np.ones((2, 4), int)}, r"\(None, 3\), where None is .*\(2, 4\)"),
        ({"alpha": np.ones(5)}, r"must have the shape \(None, 5\).* shape=\(5,\)"),
        (
            {"beta": 1},
            r"the keys \['alpha', 'zeta'\] \(missing: \[\], unknown: \['beta",
        ),
    ],
)
def test_wrong_inputs(runner, inputs, change, match):
    with pytest.raises(ValueError, match=match):
        runner({**inputs, **change})


def test_other_wrong_arguments(runner, inputs):
    with pytest.raises(ValueError, match=r"missing: \['alpha'\]"):
        runner({"zeta": inputs["zeta"]})
    with pytest.raises(ValueError, match="must be a dictionary, .* type list"):
        runner(list(inputs.values()))
    with pytest.raises(ValueError, match=r"one of \['serve'\]. .* signature='train'"):
        runner(inputs, "train")


@pytest.mark.parametrize("name", ["m.tflite", "m.onnx", "m.txt", ""])
def test_file_that_is_not_a_model(tmp_path, name):
    with pytest.raises(ValueError, match="`path` does not exist. Received: path="):
        load_runner(tmp_path / "other" / name)
    if name:
        (tmp_path / name).write_text("not a model")
    with pytest.raises(ValueError, match="`path` must be one of: a SavedModel folder"):
        load_runner(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_damaged_artefact(build, tmp_path, suffix):
    path = tmp_path / f"m{suffix}"
    export(build("mlp"), path)
    file = path / "saved_model.pb" if suffix == "" else path
    file.write_bytes(file.read_bytes()[: 16 if suffix else 3])
    with pytest.raises(ExportError, match=r"cannot load m"):
        load_runner(path)


def test_artefact_has_its_index_ranges(runner):
    assert runner.index_ranges == {"serve": {"zeta": (0, 7)}}


class Identity:
    """A runtime that returns its inputs."""

    format = "onnx"
    index_ranges: IndexRanges | None = None
    description = Description()
    signatures = {
        "serve": SignatureInfo(
            {
                "token_ids": TensorInfo((None,), "int32"),
                "count": TensorInfo((None,), "int32"),
                "padding_mask": TensorInfo((None,), "bool"),
            },
            {},
        )
    }

    def call(self, signature, inputs, in_place):
        return inputs


def test_without_metadata_ids_must_not_be_negative():
    runner = Runner(Identity())
    good = {"token_ids": [10**6], "count": [-5], "padding_mask": [True]}
    assert runner(good)["token_ids"].dtype == "int32"
    match = r"token_ids'\]` must be at least 0, .*Received: -1 at index \(1,\)"
    with pytest.raises(ValueError, match=match):
        runner({**good, "token_ids": [3, -1]})


@pytest.mark.parametrize("count", [2**31, -(2**31) - 1])
def test_integers_out_of_range(count):
    runner = Runner(Identity())
    match = rf"count'\]` must be in \[-2147483648, 2147483648\), .*{count} at"
    with pytest.raises(ValueError, match=match):
        runner({"token_ids": [3], "count": [count], "padding_mask": [True]})


def test_mask_may_have_integers_0_and_1():
    runner = Runner(Identity())
    inputs = {"token_ids": [3], "count": [1]}
    found = runner({**inputs, "padding_mask": np.array([1, 0], "int32")})
    assert found["padding_mask"].tolist() == [True, False]
    match = r"padding_mask'\]` must be bool, or the integers 0 and 1. .*from 0 to 2"
    with pytest.raises(ValueError, match=match):
        runner({**inputs, "padding_mask": np.array([0, 2])})
    with pytest.raises(ValueError, match=r"must be bool. Received: dtype=float64"):
        runner({**inputs, "padding_mask": np.array([0.0, 1.0])})


def test_a_list_of_integers_is_converted_to_unsigned_ones():
    """Lists, as of JSON, are int64 in NumPy, which it does not cast to uint8."""
    engine = Identity()
    engine.signatures = {"serve": SignatureInfo({"x": TensorInfo((2,), "uint8")}, {})}
    runner = Runner(engine)
    assert runner({"x": [0, 255]})["x"].dtype == "uint8"
    for wrong in ([0, 256], [-1, 0]):
        with pytest.raises(ValueError, match=r"x'\]` must be in \[0, 256\)"):
            runner({"x": wrong})
    with pytest.raises(ValueError, match="must be uint8. Received: dtype=float64"):
        runner({"x": [0.0, 1.0]})


def test_tensor_info_prints_as_a_shape():
    assert str(TensorInfo((None, 3), "int32")) == "int32 (?, 3)"
