"""Faster R-CNN and Mask R-CNN against torchvision's, at tiny sizes with odd images.

torchvision's model pads a batch to a multiple of 32 by itself, and its transform leaves
an image of the right size as it is.
"""

import sys
from typing import Any

import keras
import numpy as np
import pytest

from keras_attn import models, ops
from keras_attn.models.parts.functional import by_name

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs PyTorch: the extra `parity`")
shim: Any = pytest.importorskip("parity.torchvision_shim")
if not shim.is_installed():
    pytest.skip("needs torchvision", allow_module_level=True)
torchvision = shim.load_torchvision()
# Its RoI align in Python, without a compilation of a minute.
_align = sys.modules["torchvision.ops.roi_align"]
_align._roi_align = getattr(_align._roi_align, "__wrapped__", _align._roi_align)
detection = torchvision.models.detection
B, CLASSES, SIZE = 2, 7, (101, 131)
STEM, WIDTH, HEAD, MASK = 3, 11, 13, 5
NUM_BLOCKS = (1, 2, 1, 1)
ANCHORS = (8, 16, 32, 64, 128)
PROPOSALS, CANDIDATES, DETECTIONS = 37, 29, 61


class TinyResNet(torchvision.models.resnet.ResNet):
    """torchvision's ResNet with fewer channels."""

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.inplanes = STEM
            self.conv1 = torch.nn.Conv2d(3, STEM, 7, stride=2, padding=3, bias=False)
            self.bn1 = self._norm_layer(STEM)
        planes = STEM * planes // 64
        return super()._make_layer(block, planes, blocks, stride, dilate)


def reference(masks):
    """torchvision's model, with random weights."""
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
    rng = np.random.default_rng(7)
    with torch.no_grad():
        for key, value in sorted(model.state_dict().items()):
            spread = 0.3 if value.ndim == 1 else value[0].numel() ** -0.5
            is_norm = "bn" in key or "downsample.1" in key
            values = rng.normal(0, spread, value.shape)
            values += is_norm and key.endswith(".weight")
            if key.endswith("running_var"):
                values = np.abs(values) + 0.5
            if "cls_score" in key:
                values *= 0.2  # Several classes have a chance.
            value.copy_(torch.from_numpy(values))
    return model


def ours(masks):
    build = models.build_mask_rcnn if masks else models.build_faster_rcnn
    options: Any = {"mask_dim": MASK, "num_mask_layers": 2} if masks else {}
    return build(
        image_size=SIZE,
        num_classes=CLASSES,
        stem_dim=STEM,
        num_blocks=NUM_BLOCKS,
        pyramid_dim=WIDTH,
        head_dim=HEAD,
        anchor_sizes=ANCHORS,
        num_proposals=PROPOSALS,
        max_detections=DETECTIONS,
        proposal_options={"candidates_per_level": CANDIDATES},
        **options,
    )


def load(model, state):
    """Gives a model the weights of torchvision's `state_dict`."""
    state = {key: value.numpy() for key, value in state.items()}
    layers = by_name(model.layers)

    def convolution(layer, name):
        kernel = state[f"{name}.weight"]
        bias = [state[f"{name}.bias"]] if layer.use_bias else []
        # Of a transposed convolution, too: there both have inputs and outputs swapped.
        layer.set_weights([kernel.transpose(2, 3, 1, 0), *bias])

    def norm(layer, name):
        parts = ("weight", "bias", "running_mean", "running_var")
        layer.set_weights([state[f"{name}.{part}"] for part in parts])

    def dense(layer, name, channels=None):
        kernel = state[f"{name}.weight"]
        if channels:
            # Features are flattened with the channels last.
            places = kernel.reshape(len(kernel), channels, 7, 7)
            kernel = places.transpose(0, 2, 3, 1).reshape(len(kernel), -1)
        layer.set_weights([kernel.T, state[f"{name}.bias"]])

    body = "backbone.body"
    convolution(layers["stem_conv"], f"{body}.conv1")
    norm(layers["stem_norm"], f"{body}.bn1")
    for stage, count in enumerate(NUM_BLOCKS):
        for block in range(count):
            mine, theirs = (
                f"stage_{stage}_block_{block}",
                f"{body}.layer{stage + 1}.{block}",
            )
            for index in range(3):
                convolution(layers[f"{mine}_conv_{index}"], f"{theirs}.conv{index + 1}")
                norm(layers[f"{mine}_norm_{index}"], f"{theirs}.bn{index + 1}")
            if not block:
                convolution(layers[f"{mine}_shortcut"], f"{theirs}.downsample.0")
                norm(layers[f"{mine}_shortcut_norm"], f"{theirs}.downsample.1")
    pyramid = layers["feature_pyramid"]
    for level in range(4):
        convolution(pyramid.inner[level], f"backbone.fpn.inner_blocks.{level}.0")
        convolution(pyramid.outer[level], f"backbone.fpn.layer_blocks.{level}.0")
    proposer = layers["region_proposal"]
    convolution(proposer.convolution, "rpn.head.conv.0.0")
    convolution(proposer.to_objectness, "rpn.head.cls_logits")
    convolution(proposer.to_deltas, "rpn.head.bbox_pred")
    dense(layers["fc_0"], "roi_heads.box_head.fc6", WIDTH)
    dense(layers["fc_1"], "roi_heads.box_head.fc7")
    dense(layers["class_logits"], "roi_heads.box_predictor.cls_score")
    dense(layers["box_deltas"], "roi_heads.box_predictor.bbox_pred")
    if "mask_logits" in layers:
        for index in range(2):
            name = f"roi_heads.mask_head.{index}.0"
            convolution(layers[f"mask_conv_{index}"], name)
        predictor = "roi_heads.mask_predictor"
        convolution(layers["mask_upsampling"], f"{predictor}.conv5_mask")
        convolution(layers["mask_logits"], f"{predictor}.mask_fcn_logits")
    return model


@pytest.fixture(scope="module", params=[False, True], ids=["faster", "mask"])
def pair(request):
    """torchvision's model, ours with its weights, images, and what both return."""
    theirs = reference(request.param)
    model = load(ours(request.param), theirs.state_dict())
    shape = (B, *SIZE, 3)
    images = np.random.default_rng(3).normal(size=shape).astype("float32")
    with torch.no_grad():
        tensors = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        expected = theirs(list(tensors))
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
        pasted = ops.paste_masks(found["masks"], found["boxes"], SIZE, threshold=None)
        close(pasted[row, :count], wanted["masks"][:, 0])
        assert wanted["masks"].numpy().std() > 0.03


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
