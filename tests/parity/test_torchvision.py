"""ResNet, VGG and FCN against torchvision, from tiny checkpoints: read, run, written.

`torchvision_references.py` writes the folders.
"""

import json

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS
from parity.torchvision_shim import is_installed, load_torchvision

from keras_attn.models import load_checkpoint, save_checkpoint

CASES = folders.cases_of("torchvision")
FCN, RESNET = "torchvision_fcn_resnet50", "torchvision_resnet50"
BASIC, VGG = "torchvision_resnet18", "torchvision_vgg16"
# What is left of a case without its heads.
BODIES = {BASIC: "resnet18", VGG: "vgg16"}
TOLERANCE = 1e-5


@pytest.mark.parametrize("case", CASES)
def test_a_model_of_one_image_size_agrees_with_torchvision(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    size = inputs["images"].shape[1:3]
    found = folders.outputs_of(
        load_checkpoint(CHECKPOINTS / case, image_size=size), inputs
    )
    folders.compare(found, expected, inputs, rtol=0)


def test_a_classifier_is_read_as_a_segmenter_with_new_heads():
    with pytest.warns(UserWarning, match="no weights for auxiliary_c.*, head_norm"):
        model = load_checkpoint(CHECKPOINTS / RESNET, "segmenter", num_classes=7)
    assert model.output["logits"].shape == (None, None, None, 7)
    resnet = load_checkpoint(CHECKPOINTS / RESNET)
    names = {layer.name for layer in resnet.layers if layer.weights} - {"classifier"}
    folders.same_layers(resnet, model, names)
    assert model.get_layer("stage_2_block_0_conv_1").strides == (1, 1)
    assert resnet.get_layer("stage_2_block_0_conv_1").strides == (2, 2)


@pytest.mark.parametrize("case", CASES)
def test_a_body_is_read_without_its_heads_and_written(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case, "encoder")
    assert "pooled_output" in model.output
    save_checkpoint(model, tmp_path)
    config = folders.config_of(tmp_path)
    assert config["architecture"] == BODIES.get(case, "resnet50")
    assert not any(
        key.startswith(("backbone.", "classifier.", "fc."))
        for key in folders.tensors_of(tmp_path)
    )
    folders.same_weights(load_checkpoint(tmp_path, "encoder"), model)
    # Its file has no head; without a task that is an error.
    with pytest.raises(ValueError, match="lacks keys .* newly initialized. Received"):
        load_checkpoint(tmp_path)


def test_a_segmenter_can_be_read_without_its_auxiliary_head():
    inputs, expected = folders.arrays_of(CHECKPOINTS / FCN)
    model = load_checkpoint(CHECKPOINTS / FCN, auxiliary_head=False)
    np.testing.assert_allclose(
        folders.outputs_of(model, inputs)["logits"], expected["logits"], atol=TOLERANCE
    )


def test_the_weights_of_a_vgg_fix_its_image_size():
    with pytest.raises(ValueError, match=r"classifier.0.weight is \(11, 105\), expec"):
        load_checkpoint(CHECKPOINTS / VGG, image_size=(22, 30))
    # The map of 14 rows has 3, as that of 15.
    load_checkpoint(CHECKPOINTS / VGG, image_size=(15, 23))


def live(test):
    """A test that needs torchvision itself."""
    test = pytest.mark.parity(pytest.mark.filterwarnings("ignore")(test))
    return pytest.mark.skipif(not is_installed(), reason="needs torchvision")(test)


@live
@pytest.mark.parametrize("name", ["resnet18", "fcn_resnet50"])
def test_a_file_of_torch_save_is_converted_loaded_and_written(name, tmp_path):
    """What users of torchvision have: `torch.save(model.state_dict(), "….pth")`."""
    pytest.importorskip("torch")
    import torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    library = load_torchvision().models
    is_fcn = "fcn" in name
    auxiliary = {"aux_loss": True} if is_fcn else {}
    options = {**auxiliary, "weights_backbone": None} if is_fcn else {}
    torch.manual_seed(0)
    theirs = library.get_model(name, weights=None, **options)
    theirs(torch.randn(4, 3, 64, 64))  # The norms' statistics are not those of a start.
    theirs.eval()
    torch.save(theirs.state_dict(), tmp_path / f"{name}.pth")
    fields = {"library": "torchvision", "architecture": name, **auxiliary}
    fields["num_classes"] = 21 if is_fcn else 1000
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(FileNotFoundError, match=rf"{name}.pth.*convert it to safete"):
        load_checkpoint(tmp_path)

    state = torch.load(tmp_path / f"{name}.pth", weights_only=True)
    save_file(state, tmp_path / "model.safetensors")
    model = load_checkpoint(tmp_path)
    images = np.random.default_rng(19).normal(size=(2, 75, 64, 3)).astype("float32")
    pixels = torch.from_numpy(images).movedim(-1, 1)
    with torch.no_grad():
        expected = theirs(pixels)
    if not is_fcn:
        expected = {"out": expected}
    names = {"out": "logits", "aux": "auxiliary_logits"}
    found = folders.outputs_of(model, {"images": images})
    assert set(found) == {names[output] for output in expected}
    for output, tensor in expected.items():
        array = np.moveaxis(tensor.numpy(), 1, -1)
        np.testing.assert_allclose(
            found[names[output]], array, rtol=0, atol=1e-5 * np.abs(array).max()
        )

    save_checkpoint(model, tmp_path / "ours")
    again = library.get_model(name, weights=None, **options)
    saved = folders.tensors_of(tmp_path / "ours")
    again.load_state_dict({key: torch.from_numpy(x) for key, x in saved.items()})
    kept = again.state_dict()
    for key, tensor in theirs.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(kept[key], tensor, err_msg=key)


@live
@pytest.mark.parametrize(
    "name",
    [
        *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
        *("vgg16", "fcn_resnet50", "fcn_resnet101"),
        *("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn"),
    ],
)
def test_published_sizes_have_the_keys_of_torchvision(name):
    """Without their values: every key and shape of the published size."""
    import torch  # pyright: ignore[reportMissingImports]

    from keras_attn import models
    from keras_attn.models.checkpoints.families.torchvision import TORCHVISION
    from keras_attn.models.parts.keras_state import undone, without_allocating

    library, ours = load_torchvision().models, {}
    options: dict = {}
    if name.startswith("fcn"):
        library, options = library.segmentation, {"aux_loss": True}
    elif "rcnn" in name:
        library = library.detection
        ours = {"aligned_masks": False} if name.startswith("mask") else {}
    if name.startswith(("fcn", "faster", "mask")):
        options["weights_backbone"] = None
    with torch.device("meta"):
        theirs = getattr(library, name)(weights=None, **options)
    expected = {
        key: tuple(value.shape)
        for key, value in theirs.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    with undone(), without_allocating():
        own = name.replace("rcnn_resnet50_fpn", "_rcnn_resnet50")
        model = models.create(own, **ours)
        (family,) = [each for each in TORCHVISION if each.find_task(model)]
        found = {}
        for weight in family.weights(model):
            found.update(weight.shapes())
        fields = family.config(model)
    assert fields["architecture"] == name and "model_args" not in fields
    bare = family.prefix if name.startswith(("resnet", "vgg")) else ""
    assert {key.removeprefix(bare): shape for key, shape in found.items()} == expected
