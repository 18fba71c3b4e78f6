"""Faster R-CNN and Mask R-CNN: boxes, classes and masks of the objects in an image.

    build_faster_rcnn        images -> detections, on a ResNet and a feature pyramid
    build_mask_rcnn          the same, with masks
    build_faster_rcnn_vgg16  the original form: a VGG16, one map, RoI pooling

Proposals: `layers/detection/region_proposal.py`; pooling:
`layers/detection/roi_pooling.py`; detections: `layers/detection/select_detections.py`;
heads: `models/parts/detection/heads.py`; learning: `detector.py` beside it, with
`losses/detection.py`. A box of 224 × 224 pixels reads the map of stride 16, one of half
the side the next finer map.

Legend: B batch, H and W pixels, M ground-truth boxes with padding, K detections, C
classes.
Layers: `image_padding`; the layers of `models/parts/backbones/resnet.py` or
`models/parts/backbones/vgg.py`; `feature_pyramid`, `region_proposal`, `roi_pooling`,
`fc_0`, `fc_1`, `class_logits`, `box_deltas`, `detections`; in the VGG also `dropout_0`,
`dropout_1`; for masks `mask_pooling`, `mask_conv_0`, …, `mask_upsampling`,
`mask_logits`, `masks`.

Classes are counted from 0, without the background: C is one less than torchvision's
`num_classes`, and class c is torchvision's label c + 1. As in torchvision, the
background comes first in the logits and deltas of the heads.

All three builders are in this file of more than 400 lines because they share every
helper.
"""

from collections.abc import Sequence
from typing import Any

from keras.layers import ZeroPadding2D

from keras_attn.checks.argument_types import Epsilon, Index, Probability, Seed
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    FeaturePyramid,
    RegionProposal,
    ROIAlign,
    ROIPool,
    SelectDetections,
    SelectMasks,
)
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.backbones.resnet import resnet
from keras_attn.models.parts.backbones.vgg import VGG16_STAGES, vgg
from keras_attn.models.parts.detection.detector import Detector
from keras_attn.models.parts.detection.heads import (
    box_head,
    box_head_layers,
    mask_head,
    mask_head_layers,
)
from keras_attn.models.parts.functional import by_name
from keras_attn.models.parts.images import image_input
from keras_attn.ops.boxes import BoxFormat, convert_boxes

# He et al. 2016, table 1.
VARIANTS = {
    "resnet50": {"num_blocks": (3, 4, 6, 3)},
    "resnet101": {"num_blocks": (3, 4, 23, 3)},
}
CARDS = {
    "faster_rcnn": model_cards(
        "faster_rcnn_{variant}",
        {"resnet50": 41_755_286, "resnet101": 60_695_190},
        scores=[
            scored("COCO box AP", "", "torchvision's weights", {"resnet50": 37.0}),
            scored("COCO box AP", "schedule 3x", "Detectron2", {"resnet101": 42.0}),
        ],
        title="Faster R-CNN on {variant} with a feature pyramid",
        paper="Ren et al. 2015, arXiv:1506.01497; Lin et al. 2017, arXiv:1612.03144",
        **tasks.detection(),
    ),
    "mask_rcnn": model_cards(
        "mask_rcnn_{variant}",
        {"resnet50": 44_401_393},
        scores=[
            scored(name, "", "torchvision's weights", {"resnet50": score})
            for name, score in (("COCO box AP", 37.9), ("COCO mask AP", 34.6))
        ],
        title="Mask R-CNN on {variant} with a feature pyramid",
        paper="He et al. 2017, arXiv:1703.06870",
        **tasks.detection(masks="(B, K, 28, 28) float32, probabilities inside the box"),
    ),
    "faster_rcnn_vgg16": model_cards(
        "faster_rcnn_vgg16",
        {"vgg16": None},
        scores=[scored("VOC 2007 mAP", "", "table 3", {"vgg16": 69.9})],
        title="Faster R-CNN on {variant}, one map, as first published",
        paper="Ren et al. 2015, arXiv:1506.01497",
        **tasks.detection(),
    ),
}


@registered(CARDS["faster_rcnn"], VARIANTS)
def build_faster_rcnn(
    variant: str = "resnet50",
    *,
    image_size: int | tuple[int, int] = 800,
    num_classes: int = 90,
    stem_dim: int = 64,
    num_blocks: Sequence[int] = FROM_VARIANT,
    num_frozen: Index = 2,
    frozen_norms: bool = True,
    norm_epsilon: Epsilon = 1e-5,
    pyramid_dim: int = 256,
    head_dim: int = 1024,
    anchor_sizes: Sequence[float] = (32, 64, 128, 256, 512),
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    num_proposals: int = 1000,
    num_training_proposals: int = 2000,
    proposal_options: dict[str, Any] | None = None,
    detection_options: dict[str, Any] | None = None,
    max_detections: int = 100,
    score_threshold: float = 0.05,
    iou_threshold: float = 0.5,
    bounding_box_format: BoxFormat = "xyxy",
    seed: Seed = None,
    name: str = "faster_rcnn",
) -> Detector:
    """Proposes regions, reads their features from a pyramid of maps, classifies them.

    The image is padded with zeros, below and on the right, to the next multiple of the
    last stride, as torchvision does after its normalization. Resizing to the image size
    is left to the data pipeline.

    To train without a checkpoint, pass `frozen_norms=False, num_frozen=0`; `fit` warns
    about frozen norms that have never seen data.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns).
        num_classes: C, not counting the background.
        stem_dim: Channels of the first map of the ResNet.
        num_blocks: Bottlenecks of each stage of the ResNet.
        num_frozen: Number of parts of the ResNet, stem first, that are not trained.
        frozen_norms: Whether the batch norms are frozen.
        norm_epsilon: Added to the variance by the norms.
        pyramid_dim: Channels of the feature pyramid.
        head_dim: Units of the two fully connected layers.
        anchor_sizes: √(w h) of the anchors of each map in pixels, finest map first; one
            more than stages.
        aspect_ratios: Heights of anchors divided by their widths.
        num_proposals: Number of classified proposals.
        num_training_proposals: Number of proposals from which training draws samples.
        proposal_options: Further arguments of `layers.RegionProposal`, a dictionary.
        detection_options: Further arguments of `layers.SelectDetections`, a dictionary.
        max_detections: K, the maximum number of detections per image.
        score_threshold: Minimum score of a detection.
        iou_threshold: Maximum IoU of a detection with a higher-scoring one of the same
            class.
        bounding_box_format: Format of all boxes, also for `fit`; see
            `ops.convert_boxes`.
        seed: Seed of the sampling in training.
        name: Name of the model.

    Returns:
        A `Detector`, from `images` (B, H, W, 3) to a dictionary of `boxes` (B, K, 4),
        `scores` (B, K), `classes` (B, K) int32 and `num_detections` (B,) int32. Beyond
        that number, boxes and scores are 0 and classes are -1. `fit` takes `(images,
        truth)`, see `Detector`; `compile` takes no loss.

    Raises:
        ValueError: If a size is not a positive integer, or `bounding_box_format` is
            unknown.

    Reference:
        Ren et al. 2015, "Faster R-CNN" (arXiv:1506.01497); Lin et al. 2017, section 5.2
        (arXiv:1612.03144).
    """
    if len(anchor_sizes) != len(num_blocks) + 1:
        raise ValueError(
            "`anchor_sizes` must have one number for each map of the pyramid, one more "
            f"than the stages of `num_blocks`: {len(num_blocks) + 1}. "
            f"Received: anchor_sizes={anchor_sizes}"
        )
    strides = [4 * 2**stage for stage in range(len(num_blocks))]
    images, hidden, size = _padded_images(image_size, strides[-1])
    stages = resnet(
        hidden,
        stem_dim=stem_dim,
        num_blocks=num_blocks,
        block="bottleneck",
        norm_epsilon=norm_epsilon,
        frozen_norms=frozen_norms,
        num_frozen=num_frozen,
    )
    # One map for each stage, and every second row and column of the coarsest.
    maps = FeaturePyramid(pyramid_dim, name="feature_pyramid")(list(stages.values()))
    roi_pooling = ROIAlign(7, strides=strides, name="roi_pooling")
    proposer = RegionProposal(
        [[pixels] for pixels in anchor_sizes],
        _strides(hidden, maps),
        size,
        aspect_ratios=aspect_ratios,
        num_proposals=num_proposals,
        num_training_proposals=num_training_proposals,
        seed=seed,
        name="region_proposal",
        **_further("proposal_options", proposal_options),
    )
    head = box_head_layers(head_dim, num_classes)
    selector = SelectDetections(
        size,
        max_detections=max_detections,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        bounding_box_format=bounding_box_format,
        seed=seed,
        name="detections",
        **_further("detection_options", detection_options),
    )
    detections = _detect(maps, proposer, roi_pooling, head, selector)
    return Detector(images, detections, name=name)


@registered(CARDS["mask_rcnn"], {"resnet50": VARIANTS["resnet50"]})
@described_as(build_faster_rcnn)
def build_mask_rcnn(
    variant: str = "resnet50",
    *,
    image_size: int | tuple[int, int] = 800,
    num_classes: int = 90,
    stem_dim: int = 64,
    num_blocks: Sequence[int] = FROM_VARIANT,
    num_frozen: Index = 2,
    frozen_norms: bool = True,
    norm_epsilon: Epsilon = 1e-5,
    pyramid_dim: int = 256,
    head_dim: int = 1024,
    anchor_sizes: Sequence[float] = (32, 64, 128, 256, 512),
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    num_proposals: int = 1000,
    num_training_proposals: int = 2000,
    proposal_options: dict[str, Any] | None = None,
    detection_options: dict[str, Any] | None = None,
    max_detections: int = 100,
    score_threshold: float = 0.05,
    iou_threshold: float = 0.5,
    bounding_box_format: BoxFormat = "xyxy",
    seed: Seed = None,
    mask_dim: int = 256,
    num_mask_layers: int = 4,
    aligned_masks: bool = True,
    name: str = "mask_rcnn",
) -> Detector:
    """A Faster R-CNN that predicts a mask of 28 × 28 values for each detection.

    Args:
        variant: Only `"resnet50"`.
        mask_dim: Channels of the mask head.
        num_mask_layers: Convolutions of the mask head.
        aligned_masks: Whether pixel i of a ground-truth mask lies at i + ½ when the
            mask is cropped to the box, which is exact, or at i, as in torchvision. Pass
            it on as `aligned` to `ops.paste_masks` and as `aligned_masks` to
            `DetectionScores` and `plot_detections`. The weights fit either.

    Returns:
        A `Detector` as from `build_faster_rcnn`, with a further output, `masks`
        (B, K, 28, 28), probabilities inside the box. `ops.paste_masks` pastes them into
        the image. The truth for `fit` also has `masks` (B, M, H, W).

    Raises:
        ValueError: As in `build_faster_rcnn`.

    Reference:
        He et al. 2017, "Mask R-CNN" (arXiv:1703.06870).
    """
    detector = build_faster_rcnn(
        variant,
        image_size=image_size,
        num_blocks=num_blocks,
        stem_dim=stem_dim,
        num_frozen=num_frozen,
        frozen_norms=frozen_norms,
        norm_epsilon=norm_epsilon,
        pyramid_dim=pyramid_dim,
        anchor_sizes=anchor_sizes,
        num_classes=num_classes,
        head_dim=head_dim,
        aspect_ratios=aspect_ratios,
        num_proposals=num_proposals,
        num_training_proposals=num_training_proposals,
        proposal_options=proposal_options,
        detection_options=detection_options,
        max_detections=max_detections,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        bounding_box_format=bounding_box_format,
        seed=seed,
    )
    layers, detections = by_name(detector.layers), detector.output
    selector, pooling = layers["detections"], layers["roi_pooling"]
    maps = layers["feature_pyramid"].output
    num_logits = layers["class_logits"].units
    head = {
        "mask_pooling": ROIAlign(14, strides=pooling.strides, name="mask_pooling"),
        **mask_head_layers(mask_dim, num_mask_layers, num_logits),
    }
    boxes = convert_boxes(
        detections["boxes"], selector.bounding_box_format, "xyxy", selector.image_size
    )
    logits = mask_head(head, head["mask_pooling"](maps, boxes))
    masks = SelectMasks(aligned_masks, name="masks")(logits, detections["classes"])
    return Detector(detector.input, {**detections, "masks": masks}, name=name)


@registered(CARDS["faster_rcnn_vgg16"], {"vgg16": VGG16_STAGES})
@described_as(build_faster_rcnn)
def build_faster_rcnn_vgg16(
    variant: str = "vgg16",
    *,
    image_size: int | tuple[int, int] = (600, 1000),
    num_classes: int = 20,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    num_convs: Sequence[int] = FROM_VARIANT,
    num_frozen: Index = 2,
    head_dim: int = 4096,
    dropout: Probability = 0.5,
    anchor_sizes: Sequence[float] = (128, 256, 512),
    aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    num_proposals: int = 300,
    num_training_proposals: int = 2000,
    proposal_options: dict[str, Any] | None = None,
    detection_options: dict[str, Any] | None = None,
    max_detections: int = 100,
    score_threshold: float = 0.05,
    iou_threshold: float = 0.3,
    bounding_box_format: BoxFormat = "xyxy",
    seed: Seed = None,
    name: str = "faster_rcnn_vgg16",
) -> Detector:
    """The detector of the paper: one map of a VGG16, and RoI pooling.

    It compares the best 2000 boxes of the map instead of 6000, because memory grows
    with the square of their number.

    Args:
        variant: Only `"vgg16"`.
        image_size: In pixels: one number, or (rows, columns).
        hidden_dims: Channels of each stage of the VGG.
        num_convs: Convolutions of each stage.
        num_frozen: Stages that are not trained.
        dropout: Dropout after each of them.
        anchor_sizes: √(w h) of the anchors of the map, in pixels.
        name: Name of the model.

    Returns:
        A `Detector` as from `build_faster_rcnn`.

    Raises:
        ValueError: As in `build_faster_rcnn`, or if `variant` is unknown.

    Reference:
        Ren et al. 2015, "Faster R-CNN" (arXiv:1506.01497).
    """
    if num_frozen not in range(len(hidden_dims) + 1):
        raise ValueError(
            f"`num_frozen` must be from 0 to {len(hidden_dims)}, the number of stages. "
            f"Received: num_frozen={num_frozen!r}"
        )
    stride = 2 ** (len(hidden_dims) - 1)
    images, hidden, size = _padded_images(image_size, stride)
    stages = vgg(hidden, hidden_dims=hidden_dims, num_convs=num_convs)
    maps = [stages[f"stage_{len(hidden_dims) - 1}"]]
    roi_pooling = ROIPool(7, strides=[stride], name="roi_pooling")
    proposer = RegionProposal(
        [list(anchor_sizes)],
        _strides(hidden, maps),
        size,
        aspect_ratios=aspect_ratios,
        num_proposals=num_proposals,
        num_training_proposals=num_training_proposals,
        seed=seed,
        name="region_proposal",
        **_further("proposal_options", proposal_options, candidates_per_level=2000),
    )
    head = box_head_layers(head_dim, num_classes, dropout)
    selector = SelectDetections(
        size,
        max_detections=max_detections,
        score_threshold=score_threshold,
        iou_threshold=iou_threshold,
        bounding_box_format=bounding_box_format,
        seed=seed,
        name="detections",
        **_further("detection_options", detection_options, num_samples=128),
    )
    detections = _detect(maps, proposer, roi_pooling, head, selector)
    model = Detector(images, detections, name=name)
    for stage in range(num_frozen):
        for layer in model.layers:
            if layer.name.startswith(f"stage_{stage}_"):
                layer.trainable = False
    return model


def _detect(maps, proposer, roi_pooling, head, selector) -> dict[str, Any]:
    """Proposes regions, classifies them and selects the detections.

    Args:
        maps: The features, finest first.
        proposer: A `RegionProposal`.
        roi_pooling: The layer that pools the features inside boxes.
        head: The layers of `box_head_layers`.
        selector: A `SelectDetections`.
    """
    proposed = proposer(maps)
    proposals = proposed["proposals"]
    _, logits, deltas = box_head(head, roi_pooling(maps, proposals))
    return selector(logits, deltas, proposals, proposed["num_proposals"])


def _further(argument, options, **defaults) -> dict[str, Any]:
    """Further arguments of a layer: the caller's, or else these defaults.

    Raises:
        ValueError: If there are arguments of the builder among them.
    """
    own = sorted({"seed", "name", "strides", "image_size"} & set(options or {}))
    if own:
        raise ValueError(
            f"`{argument}` must not have {own}: `seed` and `image_size` are arguments "
            "of the builder, and the model determines names and strides. "
            f"Received: {argument}={options!r}"
        )
    return {**defaults, **(options or {})}


def _padded_images(image_size, multiple):
    """The input, the images padded to a multiple, and their original size.

    Args:
        image_size: In pixels: one number, or (rows, columns).
        multiple: Rows and columns are padded to a multiple of it.
    """
    images = image_input(image_size)
    rows, columns = (int(side) for side in images.shape[1:3])
    below, right = -rows % multiple, -columns % multiple
    padding = ZeroPadding2D(
        ((0, below), (0, right)), data_format="channels_last", name="image_padding"
    )
    return images, padding(images), (rows, columns)


def _strides(images, maps):
    """Pixels between two locations of each map, rounded down as in torchvision."""
    _, rows, columns, _ = images.shape
    return [
        (rows // features.shape[1], columns // features.shape[2]) for features in maps
    ]
