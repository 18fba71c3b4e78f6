"""Swin checkpoints in timm's naming."""

import re
from typing import Any

import numpy as np

from keras_attn.models.checkpoints.families.swin import stages_of
from keras_attn.models.checkpoints.families.timm import (
    check_pooling,
    get_model_args,
    get_num_classes,
    match_architecture,
    timm_family,
    transformer_block,
)
from keras_attn.models.checkpoints.mapping import (
    Weight,
    call_builders,
    convolution,
    dense,
    norm,
    top_arguments,
    transposed,
)
from keras_attn.models.swin import build_swin

SWIN_ARCHITECTURE = re.compile(
    r"swin_(?P<size>tiny|small|base|large)_patch(?P<patch>\d{1,3})_window(?P<window>\d{1,3})"
    # What a name said of its data before names had tags.
    r"(_(?P<pixels>\d{1,4}))?(_in22k)?"
)
# timm's argument to ours.
_ARGUMENTS = {
    "img_size": "image_size",
    "patch_size": "patch_size",
    "in_chans": "num_channels",
    "embed_dim": "hidden_dim",
    "depths": "num_blocks",
    "num_heads": "num_heads",
    "window_size": "window_size",
    "mlp_ratio": "mlp_ratio",
    "qkv_bias": "attention_bias",
    "drop_path_rate": "stochastic_depth",
}


def _build(config, task, overrides):
    check_pooling(config, {"avg": "mean"}, "avg")
    found = match_architecture(SWIN_ARCHITECTURE, config)
    arguments: dict[str, Any] = {
        "variant": found["size"],
        "patch_size": int(found["patch"]),
        "window_size": int(found["window"]),
        **({"image_size": int(found["pixels"])} if found["pixels"] else {}),
        **get_model_args(config, _ARGUMENTS),
        **top_arguments(config, task, get_num_classes),
    }
    model = call_builders([build_swin], [arguments], overrides)
    if not {"image_size", "window_size", "patch_size"} & set(overrides):
        _check_windows(model)
    return model


def _check_windows(model) -> None:
    """Refuses sizes at which timm's windows differ from those of the published code.

    timm rolls a map before it pads it, cuts the two sides of a window to the map one by
    one, and shifts along one side where the other is no longer than a window.

    Raises:
        ValueError: where that matters to a stage.
    """
    for index, blocks in enumerate(stages_of(model)):
        size, window = tuple(blocks[0].input.shape[1:3]), blocks[0].window_size
        is_one_window = size[0] == size[1] <= window
        is_filled = min(size) > window and not any(side % window for side in size)
        is_shifted = any(block.shifted for block in blocks)
        if is_one_window or is_filled or (min(size) >= window and not is_shifted):
            continue
        raise ValueError(
            "`img_size` in config.json must give each stage a map that windows fill, "
            "or a square that is no larger than a window: at other sizes timm computes "
            "something else than the published code, which we follow. Say `image_size` "
            "yourself to read the weights all the same. "
            f"Received: a map of {size} in stage {index}, window_size={window}"
        )


def _position_bias(key, block) -> Weight:
    """The table of relative positions.

    Of a window that is larger than the map timm keeps the rows that are used alone:
    those in the middle of the whole table. The others stay zero.
    """
    table = block.attention.position_bias
    rows, heads = table.shape
    whole = 2 * block.window_size - 1
    window, _, _ = block.attention.grid(tuple(block.input.shape[1:3]))
    used = 2 * window - 1
    margin = (whole - used) // 2

    def read(array):
        if len(array) == rows:
            return array
        square = array.reshape(used, used, heads)
        square = np.pad(square, ((margin, margin), (margin, margin), (0, 0)))
        return square.reshape(rows, heads)

    return Weight(
        (key,),
        table,
        read,
        lambda array: (array,),
        lambda shape: shape == (used**2, heads),
    )


def _block(name, block) -> list[Weight]:
    return [
        *transformer_block(name, block),
        _position_bias(f"{name}.attn.relative_position_bias_table", block),
    ]


def _weights(model) -> list[Weight]:
    layers = {layer.name: layer for layer in model.layers}
    weights = [
        *convolution("patch_embed.proj", layers["patch_embedding"].projection),
        *norm("patch_embed.norm", layers["embeddings_norm"]),
    ]
    for index, blocks in enumerate(stages_of(model)):
        if index:
            # timm merges patches at the start of a stage.
            merging, key = layers[f"stage_{index - 1}_merging"], f"layers.{index}"
            weights += norm(f"{key}.downsample.norm", merging.norm)
            weights.append(
                transposed(
                    f"{key}.downsample.reduction.weight", merging.reduction.kernel
                )
            )
        for number, block in enumerate(blocks):
            weights += _block(f"layers.{index}.blocks.{number}", block)
    weights += norm("norm", layers["final_norm"])
    if "classifier" in layers:
        weights += dense("head.fc", layers["classifier"])
    return weights


def _renames_for(keys):
    """Old files merge patches at the end of a stage, so that the first stage does."""
    if "layers.0.downsample.reduction.weight" not in keys:
        return ()
    return (
        (
            r"^layers\.(\d+)\.downsample\.",
            lambda match: f"layers.{int(match[1]) + 1}.downsample.",
        ),
        (r"^head\.(weight|bias)$", r"head.fc.\1"),
    )


TIMM_SWIN = timm_family(
    _build,
    _weights,
    heads=("head.fc.",),
    # They follow from the window, and old files hold them.
    buffers=(r"layers\..*\.(relative_position_index|attn_mask)",),
    renames_for=_renames_for,
)
