"""U-Net on a ResNet against segmentation-models-pytorch, from tiny checkpoints.

`smp_unet_references.py` writes the folders.
"""

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS

from keras_attn.models import build_unet, create, load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.families import LIBRARIES
from keras_attn.models.parts.keras_state import undone, without_allocating

CASES = folders.cases_of("smp")
CASE, BASIC = "smp_unet_resnet50", "smp_unet_resnet18"


def test_every_case_is_committed():
    assert CASES == [BASIC, CASE]


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_segmentation_models_pytorch(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    model = load_checkpoint(CHECKPOINTS / case)
    assert model.output.shape == (None, None, None, 5)
    found = folders.outputs_of(model, inputs)
    assert np.std(expected["logits"]) > {CASE: 0.3, BASIC: 0.2}[case]
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_files_are_those_of_segmentation_models_pytorch(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case, num_frozen=1)
    save_checkpoint(model, tmp_path, dtype="float16")
    folders.same_tensors(case, tmp_path, ignored=["num_batches_tracked"])
    config = folders.config_of(CHECKPOINTS / case)
    # Ours names the library by its class, as the library does.
    assert (config.pop("library"), config.pop("architecture")) == (
        "segmentation_models_pytorch",
        "Unet",
    )
    config["_model_class"] = "Unet"
    found = folders.config_of(tmp_path)
    assert found == {**found, **config}
    assert "dtype" not in found
    folders.same_weights(load_checkpoint(tmp_path, "segmenter"), model)
    assert not model.get_layer("stem_conv").trainable


def test_another_number_of_classes_makes_a_new_head():
    with pytest.warns(UserWarning, match="no weights for classifier: they are newly"):
        model = load_checkpoint(CHECKPOINTS / CASE, num_classes=3)
    assert model.output.shape[-1] == 3


@pytest.mark.parametrize("case, number", [(BASIC, 14_328_209), (CASE, 32_521_105)])
def test_the_published_size_has_the_keys_of_the_library(case, number):
    """A ResNet and its decoder, with one class."""
    (family,) = LIBRARIES["segmentation_models_pytorch"]
    with undone(), without_allocating():
        name = case.rpartition("_")[-1]
        backbone = create(name, image_size=None, include_top=False)
        model = build_unet(backbone=backbone, num_classes=1)
        count = sum(np.prod(weight.shape) for weight in model.trainable_weights)
        assert family.find_task(model) == "segmenter"
        config = family.config(model)
        keys = {key for weight in family.weights(model) for key in weight.shapes()}
    assert count == number
    assert "model_args" not in config
    assert config["encoder_name"] == name
    tiny = {
        key
        for key in folders.tensors_of(CHECKPOINTS / case)
        if "num_batches" not in key
    }
    # The published one has more blocks.
    assert tiny <= keys


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"architecture": "FPN"}, "`architecture` in config.json must be 'Unet'"),
        # The library's default is "resnet34".
        ({"encoder_name": None}, "The files have more blocks"),
        ({"encoder_name": "vgg16"}, "`encoder_name` .* 'resnet18' or 'resnet34' or"),
        ({"encoder_depth": 4}, "`encoder_depth` in config.json must be 5"),
        (
            {"decoder_attention_type": "scse"},
            "`decoder_attention_type` .* must be None",
        ),
        ({"activation": "sigmoid"}, "`activation` in config.json must be None or"),
        ({"classes": 10**6}, "`classes` in config.json must be at most"),
        ({"classes": 4}, r"segmentation_head.0.weight is \(5, 2, 3, 3\), expected"),
        ({"decoder_channels": [11, 7, 5]}, "`decoder_dims` must have one number"),
        ({"decoder_channels": [11, 7, 5, 3, 10**9]}, "`decoder_channels` .* at most"),
        ({"in_channels": 4}, r"encoder.conv1.weight is \(3, 3, 7, 7\), expected"),
        ({"model_args": {"num_blocks": [1, 2, 2, 2]}}, "lacks keys of this model"),
    ],
)
def test_unsupported_configs_are_refused(fields, message, tmp_path):
    folders.check_refused(tmp_path, CASE, fields, message)


NEEDS = ("torch", "torchvision", "timm", "segmentation_models_pytorch")


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live(monkeypatch):
    """The U-Nets computed now equal the committed ones."""
    cases = folders.make_cases("smp_unet_references", monkeypatch, NEEDS)
    assert sorted(cases) == CASES
    for case, (tensors, _, arrays) in cases.items():
        folders.compare_with_committed(case, tensors, arrays)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_the_decoder_live(monkeypatch):
    for name, arrays in folders.make_cases(
        "smp_references", monkeypatch, NEEDS
    ).items():
        with np.load(CHECKPOINTS.parent / "segmenters" / f"{name}.npz") as file:
            assert set(file) == set(arrays)
            for key, array in arrays.items():
                folders.assert_as_committed(file[key], array, f"{name} {key}")
