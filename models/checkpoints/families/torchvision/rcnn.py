"""Faster R-CNN and Mask R-CNN on a ResNet with a feature pyramid, as in torchvision.

torchvision counts the background as class 0, so its `num_classes` is ours plus one. Its
batch norms are frozen and have no count of batches; a file with such a count is also
read.
"""

import inspect
from typing import Any

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import Config, one_or_two
from keras_attn.models.checkpoints.families.torchvision import architectures, resnet
from keras_attn.models.checkpoints.families.torchvision.vgg import flattened
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.detection import build_faster_rcnn, build_mask_rcnn
from keras_attn.models.parts.functional import numbered_names

_MOST_PIXELS = 4096  # Anchors take memory before any weight is read.
_MOST_BOXES = 100_000
_BUILDERS = {"detector": build_faster_rcnn, "instance_segmenter": build_mask_rcnn}
_SAVED_AS = {
    "detector": "fasterrcnn_resnet50_fpn",
    "instance_segmenter": "maskrcnn_resnet50_fpn",
}
_PREDICTORS = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.")


def _get_image_size(config: Config, name: str, default) -> tuple[int, int]:
    return config.get_pair(name, default, _MOST_PIXELS)


def _get_count(config: Config, name: str, default) -> int:
    return config.get_size(name, default, _MOST_BOXES)


def _get_probability(config: Config, name: str, default) -> float:
    return config.get_number(name, default, most=1.0)


def _get_positive(config: Config, name: str, default) -> tuple[float, ...]:
    """A short list of sizes of anchors in pixels, or of their aspect ratios."""
    values = config.get(name, default)
    is_list = isinstance(values, list) and 0 < len(values) <= 16
    if not is_list or not all(
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value <= _MOST_PIXELS
        for value in values
    ):
        expected = f"a list of 1 to 16 positive numbers, each at most {_MOST_PIXELS}"
        raise config.error(name, expected, values)
    return tuple(values)


# Arguments of `layers.RegionProposal` and of `layers.SelectDetections`.
_PROPOSAL_GETTERS = {
    "candidates_per_level": _get_count,
    "training_candidates_per_level": _get_count,
    "iou_threshold": _get_probability,
    "positive_threshold": _get_probability,
    "negative_threshold": _get_probability,
    "num_samples": _get_count,
    "positive_fraction": _get_probability,
}
_DETECTION_GETTERS = {
    "max_candidates": _get_count,
    "any_class": Config.get_bool,
    "box_weights": _get_positive,
    "match_threshold": _get_probability,
    "num_samples": _get_count,
    "positive_fraction": _get_probability,
}


def _get_proposal_options(config: Config, name: str, default) -> dict[str, Any]:
    return architectures.get_model_args(config, _PROPOSAL_GETTERS, name)


def _get_detection_options(config: Config, name: str, default) -> dict[str, Any]:
    return architectures.get_model_args(config, _DETECTION_GETTERS, name)


_GETTERS = {
    "image_size": _get_image_size,
    "stem_dim": Config.get_size,
    "num_blocks": Config.get_depths,
    "norm_epsilon": Config.get_epsilon,
    "pyramid_dim": Config.get_size,
    "head_dim": Config.get_size,
    "anchor_sizes": _get_positive,
    "aspect_ratios": _get_positive,
    "num_proposals": _get_count,
    "num_training_proposals": _get_count,
    "max_detections": _get_count,
    "score_threshold": _get_probability,
    "iou_threshold": _get_probability,
    "bounding_box_format": Config.get,  # The builder checks it.
    "proposal_options": _get_proposal_options,
    "detection_options": _get_detection_options,
}
_MASK_GETTERS = {
    "mask_dim": Config.get_size,
    "num_mask_layers": Config.get_num_blocks,
    "aligned_masks": Config.get_bool,
}
# What torchvision has no name for, with torchvision's values.
_ALIGNED_MASKS = False


def _build(config, task, overrides):
    getters = {**_GETTERS, **_MASK_GETTERS}
    arguments = architectures.get_model_args(config, getters)
    if task == "detector":
        for name in _MASK_GETTERS:
            arguments.pop(name, None)
    elif _default_task(config) == task:
        arguments.setdefault("aligned_masks", _ALIGNED_MASKS)
    with_background = architectures.get_num_classes(config, 91)
    if with_background < 2:
        expected = "at least 2: torchvision counts the background"
        raise config.error("num_classes", expected, with_background)
    arguments["num_classes"] = with_background - 1
    return tasks.call_builders([(_BUILDERS[task], arguments)], overrides)


def _default_task(config):
    tasks_of = {name: task for task, name in _SAVED_AS.items()}
    return tasks_of[config["architecture"]]


def _find_task(model):
    layers = layers_by_name(model)
    needed = {"stem_conv", "feature_pyramid", "region_proposal", "box_deltas"}
    heads = ("fc_", "class_logits", "box_deltas", "mask_conv_", "mask_upsampling")
    known = ("stem_", "stage_", "feature_pyramid", "region_proposal", "mask_logits")
    if not needed <= set(layers) or not mapping.has_only(layers, known + heads):
        return None
    return "instance_segmenter" if "mask_logits" in layers else "detector"


def _config(model) -> dict:
    layers = layers_by_name(model)
    task = "instance_segmenter" if "mask_logits" in layers else "detector"
    _, sizes = resnet.read_sizes(layers)
    proposer, selector = layers["region_proposal"], layers["detections"]
    sizes |= {
        "image_size": one_or_two(selector.image_size),
        "pyramid_dim": layers["feature_pyramid"].units,
        "head_dim": layers["fc_0"].units,
        "anchor_sizes": tuple(pixels for (pixels,) in proposer.anchor_sizes),
        "aspect_ratios": tuple(proposer.aspect_ratios),
        "num_proposals": proposer.num_proposals,
        "num_training_proposals": proposer.num_training_proposals,
    }
    for name in ("max_detections", "score_threshold", "iou_threshold"):
        sizes[name] = getattr(selector, name)
    sizes["bounding_box_format"] = selector.bounding_box_format
    sizes["proposal_options"] = _options(proposer, _PROPOSAL_GETTERS)
    sizes["detection_options"] = _options(selector, _DETECTION_GETTERS)
    if task == "instance_segmenter":
        sizes["mask_dim"] = layers["mask_upsampling"].filters
        sizes["num_mask_layers"] = len(numbered_names(layers, "mask_conv_"))
        sizes["aligned_masks"] = layers["masks"].aligned
    parameters = inspect.signature(_BUILDERS[task]).parameters
    published = {name: parameters[name].default for name in sizes if name in parameters}
    published["num_blocks"] = (3, 4, 6, 3)
    if "aligned_masks" in published:
        published["aligned_masks"] = _ALIGNED_MASKS
    return {
        "architecture": _SAVED_AS[task],
        "num_classes": layers["class_logits"].units,
        **architectures.changed({name: sizes[name] for name in published}, published),
    }


def _options(layer, names) -> dict[str, Any] | None:
    """The arguments of a layer that are not its defaults; None if all are."""
    parameters = inspect.signature(type(layer).__init__).parameters
    changed = {}
    for name in names:
        default, value = parameters[name].default, getattr(layer, name)
        default = list(default) if isinstance(default, tuple) else default
        if value != default:
            changed[name] = value
    return changed or None


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    weights = mapping.resnet_weights(layers, resnet.KEYS, "backbone.body.")
    pyramid, proposer = layers["feature_pyramid"], layers["region_proposal"]
    convolutions = {
        **{
            f"backbone.fpn.{blocks}_blocks.{level}.0": layer
            for blocks, levels in (("inner", pyramid.inner), ("layer", pyramid.outer))
            for level, layer in enumerate(levels)
        },
        "rpn.head.conv.0.0": proposer.convolution,
        "rpn.head.cls_logits": proposer.to_objectness,
        "rpn.head.bbox_pred": proposer.to_deltas,
    }
    if "mask_logits" in layers:
        for index, name in enumerate(numbered_names(layers, "mask_conv_")):
            convolutions[f"roi_heads.mask_head.{index}.0"] = layers[name]
        # Transposed, in both libraries: outputs and inputs are swapped.
        upsampling = "roi_heads.mask_predictor.conv5_mask"
        convolutions[upsampling] = layers["mask_upsampling"]
        last = "roi_heads.mask_predictor.mask_fcn_logits"
        convolutions[last] = layers["mask_logits"]
    for key, layer in convolutions.items():
        weights += mapping.convolution(key, layer)
    kernel, bias = mapping.dense("roi_heads.box_head.fc6", layers["fc_0"])
    shape = (*layers["roi_pooling"].output_size, pyramid.units)
    weights += [flattened(kernel, shape), bias]
    weights += mapping.dense("roi_heads.box_head.fc7", layers["fc_1"])
    predictor = "roi_heads.box_predictor"
    weights += mapping.dense(f"{predictor}.cls_score", layers["class_logits"])
    return weights + mapping.dense(f"{predictor}.bbox_pred", layers["box_deltas"])


RCNN = Family(
    model_type="torchvision",
    library="torchvision",
    also_saved_as=_SAVED_AS,
    tasks=tuple(_BUILDERS),
    heads=("roi_heads.mask_head.", *_PREDICTORS),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=(r".*\.num_batches_tracked",),
    # Names of torchvision before 0.13, which its published files still have.
    renames=(
        (r"^(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)$", r"\1.0.\2"),
        (r"^rpn\.head\.conv\.(weight|bias)$", r"rpn.head.conv.0.0.\1"),
        (
            r"^roi_heads\.mask_head\.mask_fcn(\d+)\.",
            lambda match: f"roi_heads.mask_head.{int(match[1]) - 1}.0.",
        ),
    ),
    default_task=_default_task,
)
