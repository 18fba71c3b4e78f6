"""What a detector is compared with torchvision's in, when it is trained."""

import numpy as np

B, SIZE = 2, (101, 131)
# All anchors and proposals are samples, so that nothing is random.
SAMPLES, PROPOSALS, CANDIDATES = 10_000, 53, 31
# Our losses, and torchvision's names of them.
LOSSES = {
    "objectness_loss": "loss_objectness",
    "proposal_box_loss": "loss_rpn_box_reg",
    "class_loss": "loss_classifier",
    "box_loss": "loss_box_reg",
    "mask_loss": "loss_mask",
}


def images_of():
    """(B, H, W, 3)."""
    return np.random.default_rng(3).normal(size=(B, *SIZE, 3)).astype("float32")


def truth_of():
    """Boxes, classes and masks of three objects, and of one."""
    boxes = np.array(
        [[[3, 5, 60, 71], [50, 20, 130, 99], [9, 9, 25, 31]], [[20, 7, 43, 90]] * 3],
        "float32",
    )
    classes = np.array([[3, 6, 0], [5, -1, -1]], "int32")
    masks = np.random.default_rng(1).random((B, 3, *SIZE)) < 0.5
    return {"boxes": boxes, "classes": classes, "masks": masks}


def our_losses(model, monkeypatch):
    """The losses of `truth_of`, by our names, of a model without random samples."""
    proposer, selector = map(model.get_layer, ("region_proposal", "detections"))
    for layer, name, value in (
        (proposer, "num_samples", 2 * len(proposer.anchors)),
        (selector, "num_samples", 1000),
        (proposer, "positive_fraction", 0.5),
        (selector, "positive_fraction", 0.5),
        (proposer, "num_training_proposals", PROPOSALS),
        (proposer, "training_candidates_per_level", CANDIDATES),
    ):
        monkeypatch.setattr(layer, name, value)
    maps = model(images_of(), training=True)
    found = model._all_losses(maps, truth_of(), True)
    return {name: float(found[name]) for name in LOSSES if name in found}


def compare_losses(found, expected):
    """Compares with torchvision's, by its names."""
    assert {LOSSES[name] for name in found} <= set(expected)
    for name, loss in found.items():
        # torchvision takes more samples of a mask in a large box than two a side.
        tolerance = 0.05 if name == "mask_loss" else 1e-4
        np.testing.assert_allclose(
            loss, expected[LOSSES[name]], rtol=tolerance, err_msg=name
        )
