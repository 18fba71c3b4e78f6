"""ViT, its hybrid, DeiT III and Swin against timm, from tiny checkpoints.

The folders are written by `timm_references.py`.
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
    compare_with_committed,
    make_cases,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.patches import resize_positions

CASES = sorted(folder.name for folder in CHECKPOINTS.glob("timm_*"))


def read(case, **options):
    """A model of ours, its images, and what timm makes of them."""
    if case == "timm_hybrid":
        options = {"num_blocks": (1, 1), "stem_dim": 32, **options}
    inputs, expected = arrays_of(CHECKPOINTS / case)
    model: Any = load_checkpoint(CHECKPOINTS / case, **options)
    return model, inputs["images"], expected["logits"]


def test_every_case_is_here():
    kinds = ("deit3", "hybrid", "swin", "vit", "vit_mean")
    assert CASES == [f"timm_{kind}" for kind in kinds]


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_timm(case):
    model, images, expected = read(case)
    assert np.std(expected) > 0.05
    found = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=TOLERANCE)


def test_all_that_the_files_hold_is_read():
    for case in CASES:
        model, _, _ = read(case)
        held = sum(array.size for array in tensors_of(CHECKPOINTS / case).values())
        assert model.count_params() == held


def test_without_the_head_it_is_an_encoder(tmp_path):
    model, _, _ = read("timm_deit3", task="encoder")
    assert set(model.output) == {"sequence_output", "pooled_output"}

    def headless(arrays):
        return {key: x for key, x in arrays.items() if not key.startswith("head.")}

    folder = altered(tmp_path, "timm_vit", {"num_classes": 0}, headless)
    assert set(load_checkpoint(folder).output) == {"sequence_output", "pooled_output"}


def test_positions_of_another_image_size(tmp_path):
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
    # The class token has no place among them.
    expected = resize_positions(theirs, (2, 2), (3, 4), num_prefix_tokens=0)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"architecture": "resnet50"}, "`architecture` .* timm.*'resnet50'"),
        ({"architecture": "vit_base_patch16_224_miil"}, "`architecture` in config"),
        ({"global_pool": "map"}, "`global_pool` .*one of token, avg.*'map'"),
        ({"model_args": {"qk_norm": True}}, r"`model_args` .*\['qk_norm'\]"),
        ({"model_args": {"mlp_ratio": 3}}, r"`model_args` .*\['mlp_ratio'\]"),
    ],
)
def test_what_is_not_ours_is_refused(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_checkpoint(altered(tmp_path, "timm_vit", fields))


def test_what_transformers_has_no_class_for_is_not_written(tmp_path):
    model, _, _ = read("timm_deit3")
    with pytest.raises(ValueError, match="`model` must be from a builder of a family"):
        save_checkpoint(model, tmp_path)
    # A plain ViT is written in the layout of transformers.
    model, images, expected = read("timm_vit")
    save_checkpoint(model, tmp_path)
    again: Any = load_checkpoint(tmp_path)
    np.testing.assert_allclose(again(images), expected, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_live(monkeypatch):
    """Made again today: as committed."""
    needs = ("timm", "torchvision")
    cases = make_cases("timm_references", monkeypatch, needs)
    assert sorted(cases) == CASES
    for case, (tensors, _, arrays) in cases.items():
        compare_with_committed(case, tensors, arrays)
