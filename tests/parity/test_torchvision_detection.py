"""Faster R-CNN and Mask R-CNN against torchvision's, at tiny sizes with odd images.

torchvision's model pads a batch to a multiple of 32 by itself, and its transform leaves
an image of the right size as it is. Ours is read from a folder with its `state_dict`.
"""

from typing import Any

import keras
import numpy as np
import pytest

from keras_attn import ops
from keras_attn.models import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs PyTorch: the extra `parity`")
shim: Any = pytest.importorskip("parity.torchvision_shim")
if not shim.is_installed():
    pytest.skip("needs torchvision", allow_module_level=True)
references: Any = pytest.importorskip("parity.detector_references")
B, SIZE = references.B, references.SIZE


@pytest.fixture(scope="module", params=[False, True], ids=["faster", "mask"])
def pair(request, tmp_path_factory):
    """torchvision's model, ours with its weights, images, and what both return."""
    theirs = references.reference(request.param)
    folder = tmp_path_factory.mktemp("torchvision")
    references.write(folder, theirs, references.config(request.param))
    model: Any = load_checkpoint(folder)
    images = references.images_of()
    expected = references.run(theirs, images)
    found = {k: keras.ops.convert_to_numpy(v) for k, v in model(images).items()}
    return theirs, model, images, expected, found


def close(found, expected):
    expected = expected.numpy() if hasattr(expected, "numpy") else expected
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)


def test_features_and_proposals(pair):
    theirs, model, images, _, _ = pair
    tensors = list(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    with torch.no_grad():
        batch, _ = theirs.transform(tensors)
        maps = theirs.backbone(batch.tensors)
        proposals, _ = theirs.rpn(batch, maps)
    found = model(images, training=True)
    assert len(found) == len(maps) == 5
    for mine, other in zip(found, maps.values(), strict=True):
        close(mine, np.moveaxis(other.numpy(), 1, -1))
    proposed = model.get_layer("region_proposal")(found)
    for row, expected in enumerate(proposals):
        count = int(proposed["num_proposals"][row])
        assert count == len(expected) > 10
        close(proposed["proposals"][row, :count], expected)
        assert not np.any(proposed["proposals"][row, count:])


def test_detections(pair):
    _, model, images, expected, found = pair
    for row, wanted in enumerate(expected):
        count = int(found["num_detections"][row])
        assert count == len(wanted["boxes"]) > 5
        close(found["boxes"][row, :count], wanted["boxes"])
        close(found["scores"][row, :count], wanted["scores"])
        labels = found["classes"][row, :count] + 1
        np.testing.assert_array_equal(labels, wanted["labels"])
        assert len(set(labels)) > 1
        if "masks" not in wanted:
            continue
        pasted = ops.paste_masks(
            found["masks"], found["boxes"], SIZE, threshold=None, aligned=False
        )
        close(pasted[row, :count], wanted["masks"][:, 0])
        assert wanted["masks"].std() > 0.03


def test_losses(pair):
    """With every anchor and proposal as a sample, so that nothing is random."""
    theirs, model, images, _, _ = pair
    boxes = np.array(
        [[[3, 5, 60, 71], [50, 20, 130, 99], [9, 9, 25, 31]], [[20, 7, 43, 90]] * 3],
        "float32",
    )
    classes = np.array([[3, 6, 0], [5, -1, -1]], "int32")
    masks = np.random.default_rng(1).random((B, 3, *SIZE)) < 0.5
    truth = {"boxes": boxes, "classes": classes, "masks": masks}
    proposer, selector = (
        model.get_layer(name) for name in ("region_proposal", "detections")
    )
    count = len(proposer.anchors)
    proposer.num_samples, selector.num_samples = 2 * count, 1000
    proposer.positive_fraction = selector.positive_fraction = 0.5
    proposer.num_training_proposals, proposer.training_candidates_per_level = 53, 31
    rows = [classes[row] >= 0 for row in range(B)]
    targets = [
        {
            "boxes": torch.from_numpy(boxes[row][real]),
            "labels": torch.from_numpy(classes[row][real].astype("int64") + 1),
            "masks": torch.from_numpy(masks[row][real]),
        }
        for row, real in enumerate(rows)
    ]
    for sampler in (theirs.rpn.fg_bg_sampler, theirs.roi_heads.fg_bg_sampler):
        sampler.batch_size_per_image, sampler.positive_fraction = 2 * count, 0.5
    theirs.rpn._pre_nms_top_n["training"] = 31
    theirs.rpn._post_nms_top_n["training"] = 53
    theirs.train()
    per_image = []
    # Image by image: torchvision divides by the samples of all images.
    for row in range(B):
        tensors = [torch.from_numpy(images[row].transpose(2, 0, 1).copy())]
        with torch.no_grad():
            losses = theirs(tensors, [targets[row]])
        per_image.append({k: float(v) for k, v in losses.items()})
    theirs.eval()
    mean = {k: np.mean([x[k] for x in per_image]) for k in per_image[0]}
    names = {
        "objectness_loss": "loss_objectness",
        "proposal_box_loss": "loss_rpn_box_reg",
        "class_loss": "loss_classifier",
        "box_loss": "loss_box_reg",
    }
    maps = model(images, training=True)
    found = model._all_losses(maps, truth, True)
    for mine, other in names.items():
        np.testing.assert_allclose(found[mine], mean[other], rtol=1e-4, err_msg=mine)
    if model.has_masks:
        # torchvision takes more samples of a mask in a large box than two a side.
        np.testing.assert_allclose(found["mask_loss"], mean["loss_mask"], rtol=0.05)


def test_torchvision_reads_our_file(pair, tmp_path):
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    theirs, model, *_ = pair
    save_checkpoint(model, tmp_path)
    written, expected = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert torch.equal(written[key], value), key
    references.reference(model.has_masks).load_state_dict(written)


def test_the_committed_file_is_that_of_torchvision():
    theirs = references.reference(masks=True)
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    committed = load_file(references.FOLDER / "model.safetensors")
    for key, value in theirs.state_dict().items():
        assert torch.equal(committed[key].float(), value), key
    found = references.expected_of(references.run(theirs, references.images_of()))
    with np.load(references.FOLDER / "expected.npz") as file:
        assert set(file) == set(found)
        for name, array in file.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn"])
def test_published_sizes_have_the_keys_of_torchvision(name):
    from keras_attn import models
    from keras_attn.models.checkpoints.families.torchvision import TORCHVISION
    from keras_attn.models.parts.keras_state import undone, without_allocating

    build = getattr(references.detection, name)
    with torch.device("meta"):
        theirs = build(weights=None, weights_backbone=None)
    expected = {
        key: tuple(value.shape)
        for key, value in theirs.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    with undone(), without_allocating():
        own = name.replace("rcnn_resnet50_fpn", "_rcnn_resnet50")
        like_theirs = {"aligned_masks": False} if own.startswith("mask") else {}
        model = models.create(own, **like_theirs)
        (family,) = [each for each in TORCHVISION if each.task_of(model)]
        found = {}
        for weight in family.weights(model):
            found.update(weight.shapes())
        fields = family.config(model)
    assert fields == {"architecture": name, "num_classes": 91}
    assert found == expected
