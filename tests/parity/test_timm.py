"""ViT, its hybrid, DeiT, DeiT III, Swin and ConvNeXt against timm, tiny checkpoints.

`timm_references.py` writes the folders.
"""

from typing import Any

import keras
import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    TOLERANCE,
    altered,
    arrays_of,
    config_of,
    same_weights,
)

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families import get_family
from keras_attn.models.checkpoints.families.timm import swin as timm_swin
from keras_attn.ops.patches import resize_positions


def read(case, **options):
    """Our model of a case, its images, and timm's logits for them."""
    if case == "timm_hybrid":
        options = {"num_blocks": (1, 1), "stem_dim": 32, **options}
    inputs, expected = arrays_of(CHECKPOINTS / case)
    model: Any = load_checkpoint(CHECKPOINTS / case, **options)
    return model, inputs["images"], expected["logits"]


def test_a_file_without_head_is_read_as_an_encoder(tmp_path):
    model, _, _ = read("timm_deit3", task="encoder")
    assert set(model.output) == {"sequence_output", "pooled_output"}

    def headless(arrays):
        return {key: x for key, x in arrays.items() if not key.startswith("head.")}

    folder = altered(tmp_path, "timm_vit", {"num_classes": 0}, headless)
    assert set(load_checkpoint(folder).output) == {"sequence_output", "pooled_output"}


def test_positions_are_resized_to_the_image_size(tmp_path):
    fields = {"img_size": 14, "patch_size": 7, "embed_dim": 12, "depth": 2}
    folder = altered(
        tmp_path,
        "timm_deit3",
        {"model_args": {**fields, "num_heads": 3}},
        lambda arrays: {**arrays, "pos_embed": arrays["pos_embed"][:, :4]},
    )
    small, large = load_checkpoint(folder), load_checkpoint(folder, image_size=(21, 28))
    assert large.get_layer("position_embedding").embeddings.shape == (12, 12)
    theirs, ours = (
        keras.ops.convert_to_numpy(m.get_layer("position_embedding").embeddings)
        for m in (small, large)
    )
    # The class token has no position.
    expected = resize_positions(theirs, (2, 2), (3, 4), num_prefix_tokens=0)
    np.testing.assert_array_equal(ours, expected)


def test_a_distilled_encoder_keeps_its_second_token():
    model, images, _ = read("timm_deit_distilled", task="encoder")
    assert model.get_layer("class_token").num_tokens == 2
    assert model(images)["sequence_output"].shape == (2, 2 + 6, 12)
    model, _, _ = read("timm_deit_distilled")
    names = {layer.name for layer in model.layers}
    assert {"classifier", "distillation_classifier"} <= names


def test_the_older_layout_of_swin_is_read(tmp_path):
    """Merging at the end of a stage, a head without `fc`, and buffers."""

    def older(arrays):
        renamed = {}
        for key, array in arrays.items():
            for stage in (1, 2):
                key = key.replace(f"{stage}.downsample", f"{stage - 1}.downsample")
            renamed[key.replace("head.fc.", "head.")] = array
        index = np.zeros((25, 25), "int64")
        renamed["layers.0.blocks.0.attn.relative_position_index"] = index
        renamed["layers.0.blocks.1.attn_mask"] = np.zeros((4, 25, 25), "float32")
        return renamed

    folder = altered(tmp_path, "timm_swin", tensors=older)
    new, images, expected = read("timm_swin")
    old: Any = load_checkpoint(folder)
    same_weights(old, new)
    np.testing.assert_allclose(old(images), expected, rtol=1e-4, atol=TOLERANCE)


def test_the_table_of_a_whole_window_is_read_at_any_size(tmp_path):
    """Its middle is timm's table for a smaller window."""

    def whole(arrays):
        key = "layers.2.blocks.0.attn.relative_position_bias_table"
        square = arrays[key].reshape(5, 5, 3)
        padded = np.pad(square, ((2, 2), (2, 2), (0, 0)), constant_values=7)
        return {**arrays, key: padded.reshape(81, 3)}

    folder = altered(tmp_path, "timm_swin", tensors=whole)
    model: Any = load_checkpoint(folder)
    _, images, expected = read("timm_swin")
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=TOLERANCE)
    # A larger map needs all of it; timm's table is too small.
    assert load_checkpoint(folder, image_size=40).input.shape[1:3] == (40, 40)
    with pytest.raises(
        ValueError, match=r"bias_table is \(25, 3\), expected \(81, 3\)"
    ):
        load_checkpoint(CHECKPOINTS / "timm_swin", image_size=40)


NAMES = {
    "vit_small_patch8_224": {"variant": "small_patch16", "patch_size": 8},
    "vit_base_patch16_384.augreg_in21k_ft_in1k": {"image_size": 384},
    "deit_base_patch16_384": {"variant": "base_patch16", "image_size": 384},
    "deit_tiny_distilled_patch16_224": {
        "variant": "tiny_patch16",
        "image_size": 224,
        "distillation": "head",
        "pooling": "token",
    },
    "swin_tiny_patch4_window7_224": {
        "variant": "tiny",
        "image_size": 224,
        "patch_size": 4,
        "window_size": 7,
    },
    "swin_large_patch4_window12_384_in22k": {
        "variant": "large",
        "image_size": 384,
        "window_size": 12,
    },
    "convnext_tiny": {"variant": "tiny", "image_size": (288, 288)},
    "convnext_xlarge_384_in22ft1k": {"variant": "xlarge", "image_size": 384},
    "convnext_base.fb_in22k": {"variant": "base", "layer_norm_epsilon": 1e-6},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_architecture_determines_the_sizes(name, monkeypatch):
    fields = {"architecture": name, "num_classes": 7}
    fields["pretrained_cfg"] = {"input_size": [3, 288, 288]}
    config = Config(fields, {"blocks.0.mlp.fc1.weight": (512, 512)})
    family = get_family(config)

    def first_arguments(calls, overrides):
        _, arguments = calls[0]
        return arguments

    monkeypatch.setattr(
        f"{family.build.__module__}.tasks.call_builders", first_arguments
    )
    # No model is built, so there are no windows to check.
    monkeypatch.setattr(timm_swin, "_check_windows", lambda model: None)
    arguments = family.build(config, "classifier", {})
    assert arguments == {**arguments, **NAMES[name], "num_classes": 7}


def test_models_that_transformers_lacks_are_written_in_timms_naming(tmp_path):
    for case, architecture in (("timm_deit3", "deit3_"), ("timm_vit", None)):
        model, images, expected = read(case)
        folder = tmp_path / case
        save_checkpoint(model, folder)
        name = config_of(folder).get("architecture")
        assert name is None if architecture is None else name.startswith(architecture)
        again: Any = load_checkpoint(folder)
        np.testing.assert_allclose(again(images), expected, rtol=1e-4, atol=TOLERANCE)
