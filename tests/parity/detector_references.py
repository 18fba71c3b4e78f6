"""A tiny Mask R-CNN of torchvision with odd images, in a folder as its `state_dict`.

`python tests/parity/detector_references.py` takes a few seconds. Needs PyTorch and
torchvision 0.28.0; `torchvision_shim.py` says how it is imported.
"""

import sys
from typing import Any

import detector_training as training
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from detector_training import LOSSES, SIZE, images_of, truth_of
from torch_models import pixels_of, randomize_state
from torchvision_references import TinyResNet, torchvision
from write_folders import CHECKPOINTS, saving, write

# Its RoI align in Python, without a compilation of a minute.
_align = sys.modules["torchvision.ops.roi_align"]
_align._roi_align = getattr(_align._roi_align, "__wrapped__", _align._roi_align)
detection = torchvision.models.detection
FOLDER = CHECKPOINTS / "maskrcnn_resnet50_fpn"
CLASSES = 7
STEM, WIDTH, HEAD, MASK = 3, 11, 13, 5
NUM_BLOCKS = (1, 2, 1, 1)
ANCHORS = (8, 16, 32, 64, 128)
PROPOSALS, CANDIDATES, DETECTIONS = 37, 29, 61


def config(masks):
    """The `config.json` of `reference`."""
    sizes: dict[str, Any] = {
        "image_size": list(SIZE),
        "stem_dim": STEM,
        "num_blocks": list(NUM_BLOCKS),
        "pyramid_dim": WIDTH,
        "head_dim": HEAD,
        "anchor_sizes": list(ANCHORS),
        "num_proposals": PROPOSALS,
        "max_detections": DETECTIONS,
        "proposal_options": {"candidates_per_level": CANDIDATES},
    }
    if masks:
        sizes |= {"mask_dim": MASK, "num_mask_layers": 2}
    kind = "mask" if masks else "faster"
    return {
        "library": "torchvision",
        "architecture": f"{kind}rcnn_resnet50_fpn",
        "num_classes": CLASSES + 1,
        "model_args": sizes,
    }


def reference(masks):
    """torchvision's model, with random weights, rounded as in the file."""
    body = TinyResNet(
        torchvision.models.resnet.Bottleneck,
        NUM_BLOCKS,
        norm_layer=torchvision.ops.misc.FrozenBatchNorm2d,
    )
    widths = [4 * STEM * 2**stage for stage in range(4)]
    backbone = detection.backbone_utils.BackboneWithFPN(
        body, {f"layer{i + 1}": str(i) for i in range(4)}, widths, WIDTH
    )
    options: dict[str, Any] = {
        "min_size": SIZE[0],
        "max_size": SIZE[1],
        "image_mean": [0.0] * 3,
        "image_std": [1.0] * 3,
        "rpn_anchor_generator": detection.anchor_utils.AnchorGenerator(
            tuple((size,) for size in ANCHORS), ((0.5, 1.0, 2.0),) * 5
        ),
        "rpn_pre_nms_top_n_test": CANDIDATES,
        "rpn_post_nms_top_n_test": PROPOSALS,
        "box_detections_per_img": DETECTIONS,
        "box_head": detection.faster_rcnn.TwoMLPHead(WIDTH * 49, HEAD),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(HEAD, CLASSES + 1),
    }
    if masks:
        options |= {
            "mask_head": detection.mask_rcnn.MaskRCNNHeads(WIDTH, (MASK, MASK), 1),
            "mask_predictor": detection.mask_rcnn.MaskRCNNPredictor(
                MASK, MASK, CLASSES + 1
            ),
        }
    kind = detection.MaskRCNN if masks else detection.FasterRCNN
    model = kind(backbone, **options).eval()
    randomize_state(model, small="cls_score", seed=7)  # Several classes have a chance.
    return model


def save(folder, model, dtype="float32"):
    """Writes a model's `state_dict` and its `config.json` into a folder."""
    state = {key: x.numpy().astype(dtype) for key, x in model.state_dict().items()}
    saving(state, config(model.roi_heads.has_mask()))(folder)


def run(model, images):
    """What torchvision finds in each image, a list of dictionaries of arrays."""
    with torch.no_grad():
        found = model(list(pixels_of(images)))
    return [{key: value.numpy() for key, value in row.items()} for row in found]


def expected_of(found):
    """The detections of the first image, and the mean of each mask."""
    (first, *_) = found
    return {
        "boxes": first["boxes"],
        "scores": first["scores"],
        "labels": first["labels"],
        "mask_means": first["masks"].mean(axis=(1, 2, 3)),
    }


def maps_and_proposals(model, images):
    """The maps of the pyramid, channels last, and the proposals of each image."""
    with torch.no_grad():
        batch, _ = model.transform(list(pixels_of(images)))
        maps = model.backbone(batch.tensors)
        proposals, _ = model.rpn(batch, maps)
    return (
        [np.moveaxis(x.numpy(), 1, -1) for x in maps.values()],
        [x.numpy() for x in proposals],
    )


def losses_of(model):
    """The mean of the images' losses of `truth_of`, without random samples.

    Image by image: torchvision divides by the samples of all images.
    """
    images, truth = images_of(), truth_of()
    for sampler in (model.rpn.fg_bg_sampler, model.roi_heads.fg_bg_sampler):
        sampler.batch_size_per_image = training.SAMPLES
        sampler.positive_fraction = 0.5
    model.rpn._pre_nms_top_n["training"] = training.CANDIDATES
    model.rpn._post_nms_top_n["training"] = training.PROPOSALS
    model.train()
    per_image = []
    for row, image in enumerate(images):
        real = truth["classes"][row] >= 0
        target = {
            "boxes": torch.from_numpy(truth["boxes"][row][real]),
            "labels": torch.from_numpy(truth["classes"][row][real].astype("int64") + 1),
            "masks": torch.from_numpy(truth["masks"][row][real]),
        }
        with torch.no_grad():
            tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
            losses = model([tensor], [target])
        per_image.append({key: float(value) for key, value in losses.items()})
    model.eval()
    names = [name for name in LOSSES.values() if name in per_image[0]]
    return {name: np.mean([each[name] for each in per_image]) for name in names}


def training_of(model):
    """Losses, proposals of the first image, and the mean channel of each map."""
    maps, proposals = maps_and_proposals(model, images_of())
    arrays = {f"map_{i}": x[0].mean(-1) for i, x in enumerate(maps)}
    arrays["proposals"] = proposals[0]
    return {**arrays, **losses_of(model)}


if __name__ == "__main__":
    model = reference(masks=True)
    arrays = expected_of(run(model, images_of()))
    write({FOLDER.name: (lambda folder: save(folder, model, "float16"), arrays)})
    np.savez_compressed(FOLDER / "training.npz", **training_of(model))
