"""ConvNeXt checkpoints in timm's naming."""

import re
from typing import Any

from keras_attn.models.checkpoints.families.convnext import blocks_of
from keras_attn.models.checkpoints.families.timm import (
    check_pooling,
    get_model_args,
    get_num_classes,
    match_architecture,
    timm_family,
)
from keras_attn.models.checkpoints.mapping import (
    Weight,
    call_builders,
    convolution,
    dense,
    depthwise_convolution,
    get_image_size,
    norm,
    same,
    top_arguments,
)
from keras_attn.models.convnext import build_convnext

CONVNEXT_ARCHITECTURE = re.compile(
    r"convnext_(?P<size>tiny|small|base|large|xlarge)(_(?P<pixels>\d{1,4}))?"
    # What a name said of its data before names had tags.
    r"(_in22k|_in22ft1k)?"
)
# timm's argument to ours.
_ARGUMENTS = {
    "in_chans": "num_channels",
    "dims": "hidden_dims",
    "depths": "num_blocks",
    "ls_init_value": "layer_scale",
    "drop_path_rate": "stochastic_depth",
}


def _build(config, task, overrides):
    check_pooling(config, {"avg": "mean"}, "avg")
    found = match_architecture(CONVNEXT_ARCHITECTURE, config)
    arguments: dict[str, Any] = {
        "variant": found["size"],
        "image_size": _image_size(config, found["pixels"]),
        "layer_norm_epsilon": 1e-6,
        **get_model_args(config, _ARGUMENTS),
        **top_arguments(config, task, get_num_classes),
    }
    return call_builders([build_convnext], [arguments], overrides)


def _image_size(config, pixels):
    """Of the images that it was trained on; it takes any, as `image_size=None` does."""
    if pixels:
        return int(pixels)
    trained = config.get("pretrained_cfg")
    size = trained.get("input_size") if isinstance(trained, dict) else None
    # Channels come first.
    size = size[1:] if isinstance(size, list) else size
    fields = {} if size is None else {"input_size": size}
    return get_image_size(config.inner(fields), "input_size", 224)


def _weights(model) -> list[Weight]:
    layers = {layer.name: layer for layer in model.layers}
    weights = [
        *convolution("stem.0", layers["patch_embedding"].projection),
        *norm("stem.1", layers["embeddings_norm"]),
    ]
    for index, blocks in enumerate(blocks_of(model)):
        stage = f"stages.{index}"
        if index:
            down = layers[f"stage_{index}_downsampling"].projection
            weights += norm(f"{stage}.downsample.0", layers[f"stage_{index}_norm"])
            weights += convolution(f"{stage}.downsample.1", down)
        for number, name in enumerate(blocks):
            key = f"{stage}.blocks.{number}"
            feed_forward = layers[f"{name}_feed_forward"]
            weights += [
                *depthwise_convolution(f"{key}.conv_dw", layers[f"{name}_depthwise"]),
                *norm(f"{key}.norm", layers[f"{name}_norm"]),
                *dense(f"{key}.mlp.fc1", feed_forward.expand),
                *dense(f"{key}.mlp.fc2", feed_forward.contract),
            ]
            if f"{name}_scale" in layers:
                weights.append(same(f"{key}.gamma", layers[f"{name}_scale"].gamma))
    weights += norm("head.norm", layers["final_norm"])
    if "classifier" in layers:
        weights += dense("head.fc", layers["classifier"])
    return weights


TIMM_CONVNEXT = timm_family(_build, _weights, heads=("head.fc.",))
