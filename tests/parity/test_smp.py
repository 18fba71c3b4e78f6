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
