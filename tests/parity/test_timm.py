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
    cases_of,
    check_refused,
    compare_with_committed,
    config_of,
    make_cases,
    same_weights,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families import get_family
from keras_attn.models.checkpoints.families.timm import swin as timm_swin
from keras_attn.ops.patches import resize_positions

CASES = cases_of("timm")


def read(case, **options):
    """Our model of a case, its images, and timm's logits for them."""
    if case == "timm_hybrid":
        options = {"num_blocks": (1, 1), "stem_dim": 32, **options}
    inputs, expected = arrays_of(CHECKPOINTS / case)
    model: Any = load_checkpoint(CHECKPOINTS / case, **options)
    return model, inputs["images"], expected["logits"]


def test_every_case_is_committed():
    assert [case.removeprefix("timm_") for case in CASES] == [
        "convnext",
        "deit",
        "deit3",
        "deit_distilled",
        "hybrid",
        "swin",
        "swin_oblong",
        "vit",
        "vit_mean",
    ]


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_timm(case):
    model, images, expected = read(case)
    assert np.std(expected) > 0.05
    found = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=TOLERANCE)


def test_every_weight_in_the_files_is_read():
    for case in CASES:
        model, _, _ = read(case)
        size = sum(array.size for array in tensors_of(CHECKPOINTS / case).values())
        # timm stores fewer rows of a table whose window is larger than the map.
        size += {"timm_swin": 3 * (9**2 - 5**2)}.get(case, 0)
        assert model.count_params() == size


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


def test_heads_with_another_number_of_classes_are_newly_initialized():
    for case, heads in (
        ("timm_deit_distilled", "classifier, distillation_classifier"),
        ("timm_swin", "classifier"),
        ("timm_convnext", "classifier"),
    ):
        with pytest.warns(UserWarning, match=f"no weights for {heads}:"):
            model, images, _ = read(case, num_classes=7)
        assert model(images).shape == (2, 7)


def test_a_convnext_accepts_any_image_size():
    model, images, expected = read("timm_convnext", image_size=None)
    assert model.input.shape == (None, None, None, 3)
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=TOLERANCE)


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


@pytest.mark.parametrize(
    "case, fields, message",
    [
        ("convnext", {"architecture": "convnext_tiny_hnf"}, "`architecture` in conf"),
        ("convnext", {"architecture": "convnextv2_tiny"}, "`architecture` in conf"),
        ("convnext", {"model_args": {"conv_mlp": True}}, r"`model_args`.*conv_mlp'\]"),
        ("convnext", {"model_args": [1]}, r"`model_args` .*\[1\]"),
        ("convnext", {"global_pool": "max"}, "`global_pool` .*one of avg.*'max'"),
        ("convnext", {"global_pool": ["avg"]}, r"`global_pool` .*\['avg'\]"),
        ("convnext", {"pretrained_cfg": {"input_size": [3, 0, 7]}}, "`input_size`"),
        ("convnext", {"pretrained_cfg": {"input_size": "big"}}, "`input_size`"),
        ("deit_distilled", {"global_pool": "avg"}, "`global_pool` .*one of token"),
        ("deit", {"model_args": {"qkv_bias": "no"}}, "`qkv_bias` .*true or false"),
        ("convnext", {"model_args": {"depths": 3}}, "`depths` .* a list .*depths=3"),
        ("swin", {"model_args": {"num_heads": [0]}}, "`num_heads` .*positive"),
        ("swin", {"model_args": {"mlp_ratio": "big"}}, "`mlp_ratio` .*a number"),
        ("swin", {"model_args": {"window_size": [5, 4]}}, "`window_size` .*positive"),
        ("swin", {"architecture": "swin_s3_tiny_224"}, "`architecture` in config"),
        ("swin", {"global_pool": "token"}, "`global_pool` .*one of avg.*'token'"),
        ("swin", {"model_args": {"head_dim": 7}}, r"`model_args` .*\['head_dim'\]"),
        # Windows of 5 that shift and don't fill the map; that are clipped on one side.
        (
            "swin",
            {"model_args": {"img_size": 22}},
            r"multiple of the window.*\(11, 11\) in stage 0",
        ),
        ("swin", {"model_args": {"img_size": [20, 30]}}, r"\(3, 4\) in stage 2"),
    ],
)
def test_unsupported_swins_deits_and_convnexts_are_refused(
    case, fields, message, tmp_path
):
    is_swin = case == "swin"
    check_refused(tmp_path, f"timm_{case}", fields, message, keeps_args=is_swin)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"architecture": "resnet50"}, "`architecture` .* timm.*'resnet50'"),
        ({"architecture": "vit_base_patch16_224_miil"}, "`architecture` in config"),
        ({"global_pool": "map"}, "`global_pool` .*one of token, avg.*'map'"),
        ({"model_args": {"qk_norm": True}}, r"`model_args` .*\['qk_norm'\]"),
        ({"model_args": {"mlp_ratio": "big"}}, "`mlp_ratio` .*a number"),
        ({"model_args": {"fc_norm": True}}, "`fc_norm` .*avg.*fc_norm=True"),
        ({"model_args": {"num_classes": 3}}, "`num_classes` .*=5, in `model_args` 3"),
    ],
)
def test_unsupported_vits_are_refused(fields, message, tmp_path):
    check_refused(tmp_path, "timm_vit", fields, message)


def test_models_that_transformers_lacks_are_written_in_timms_naming(tmp_path):
    for case, architecture in (("timm_deit3", "deit3_"), ("timm_vit", None)):
        model, images, expected = read(case)
        folder = tmp_path / case
        save_checkpoint(model, folder)
        name = config_of(folder).get("architecture")
        assert name is None if architecture is None else name.startswith(architecture)
        again: Any = load_checkpoint(folder)
        np.testing.assert_allclose(again(images), expected, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live(monkeypatch):
    """Cases computed now equal the committed ones."""
    needs = ("timm", "torchvision")
    cases = make_cases("timm_references", monkeypatch, needs)
    assert sorted(cases) == CASES
    for case, (tensors, _, arrays) in cases.items():
        compare_with_committed(case, tensors, arrays)
