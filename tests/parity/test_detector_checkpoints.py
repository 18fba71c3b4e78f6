"""Checkpoints of Faster R-CNN and Mask R-CNN, from a tiny file of torchvision.

`detector_references.py` writes the folder; `test_torchvision_detection.py` compares
with torchvision itself.
"""

import functools
import re

import keras
import numpy as np
import pytest
from parity.detector_training import compare_losses, images_of, our_losses
from parity.folders import (
    CHECKPOINTS,
    altered,
    config_of,
    outputs_of,
    same_tensors,
    same_weights,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint

CASE = "maskrcnn_resnet50_fpn"
FASTER = "fasterrcnn_resnet50_fpn"


@functools.cache
def committed():
    return load_checkpoint(CHECKPOINTS / CASE)


def test_agrees_with_torchvision():
    found = outputs_of(committed(), {"images": images_of()})
    with np.load(CHECKPOINTS / CASE / "expected.npz") as file:
        count = len(file["boxes"])
        assert found["num_detections"][0] == count > 5
        for name in ("boxes", "scores"):
            np.testing.assert_allclose(
                found[name][0, :count], file[name], rtol=0, atol=1e-4
            )
        np.testing.assert_array_equal(found["classes"][0, :count] + 1, file["labels"])
        from keras_attn.ops import paste_masks

        pasted = paste_masks(
            found["masks"],
            found["boxes"],
            (101, 131),
            threshold=None,
            aligned=committed().get_layer("masks").aligned,
        )
        means = np.mean(keras.ops.convert_to_numpy(pasted), axis=(2, 3))[0, :count]
        np.testing.assert_allclose(means, file["mask_means"], rtol=0, atol=1e-4)


def test_training_agrees_with_torchvision(monkeypatch):
    model = committed()
    with np.load(CHECKPOINTS / CASE / "training.npz") as file:
        expected = dict(file)
    maps = model(images_of(), training=True)
    for level, features in enumerate(maps):
        mean = keras.ops.convert_to_numpy(features)[0].mean(-1)
        assert np.std(expected[f"map_{level}"]) > 0.05
        np.testing.assert_allclose(mean, expected[f"map_{level}"], rtol=0, atol=1e-4)
    proposed = model.get_layer("region_proposal")(maps)
    count = int(proposed["num_proposals"][0])
    assert count == len(expected["proposals"]) > 10
    np.testing.assert_allclose(
        proposed["proposals"][0, :count], expected["proposals"], rtol=0, atol=0.02
    )
    found = our_losses(model, monkeypatch)
    assert len(found) == 5
    compare_losses(found, expected)


def test_files_are_those_of_torchvision(tmp_path):
    save_checkpoint(committed(), tmp_path, dtype="float16")
    same_tensors(CASE, tmp_path)
    expected = {**config_of(CHECKPOINTS / CASE), "dtype": "float16"}
    assert config_of(tmp_path) == expected
    same_weights(load_checkpoint(tmp_path), committed())


def test_every_option_is_read_again(tmp_path):
    options = {
        "image_size": 96,
        "aspect_ratios": (0.5, 1.5, 2.0),
        "num_training_proposals": 41,
        "score_threshold": 0.1,
        "iou_threshold": 0.4,
        "bounding_box_format": "rel_yxyx",
        "aligned_masks": True,
        "norm_epsilon": 0.0,
        "proposal_options": {"iou_threshold": 0.6, "num_samples": 7},
        "detection_options": {"any_class": True, "box_weights": (8, 8, 4, 4)},
    }
    model = load_checkpoint(CHECKPOINTS / CASE, **options)
    save_checkpoint(model, tmp_path)
    again = load_checkpoint(tmp_path)
    same_weights(again, model)
    assert not committed().get_layer("masks").aligned
    for name in ("region_proposal", "detections", "stem_norm", "masks"):
        one, other = (each.get_layer(name).get_config() for each in (again, model))
        assert one == other
    assert again.get_layer("stem_norm").epsilon == 0


def old_key(key):
    """The key as torchvision had it before 0.13."""
    key = re.sub(r"(_blocks\.\d|rpn\.head\.conv)(\.0)+\.", r"\1.", key)
    return re.sub(
        r"mask_head\.(\d)\.0\.", lambda m: f"mask_head.mask_fcn{int(m[1]) + 1}.", key
    )


def test_old_keys_are_read(tmp_path):
    def rename(tensors):
        renamed = {old_key(key): array for key, array in tensors.items()}
        assert len(set(renamed) - set(tensors)) == 2 * (4 + 4 + 1 + 2)
        assert "roi_heads.mask_head.mask_fcn2.bias" in renamed
        # A norm that was not frozen counts batches.
        renamed["backbone.body.bn1.num_batches_tracked"] = np.int64(3)
        return renamed

    same_weights(load_checkpoint(altered(tmp_path, CASE, tensors=rename)), committed())


def test_the_mask_head_may_be_left_out_or_new(tmp_path):
    model = load_checkpoint(CHECKPOINTS / CASE, task="detector")
    assert "masks" not in model.output
    save_checkpoint(model, tmp_path)
    assert config_of(tmp_path)["architecture"] == FASTER
    assert not any("mask" in key for key in tensors_of(tmp_path))
    same_weights(load_checkpoint(tmp_path), model)
    match = "no weights for mask_conv_0, mask_conv_1, mask_conv_2, mask_conv_3, mask_l"
    with pytest.warns(UserWarning, match=match):
        masked = load_checkpoint(tmp_path, "instance_segmenter", mask_dim=5)
    assert "masks" in masked.output
    # A head that is trained here.
    assert masked.get_layer("masks").aligned
