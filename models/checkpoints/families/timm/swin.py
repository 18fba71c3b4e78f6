"""Swin checkpoints in timm's naming."""

import re
from typing import Any

import numpy as np

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import one_or_two
from keras_attn.models.checkpoints.families.swin import find_stages, merging_weights
from keras_attn.models.checkpoints.families.timm import architectures as timm
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.swin import VARIANTS, build_swin

ARCHITECTURE = re.compile(
    r"swin_(?P<size>tiny|small|base|large)"
    r"_patch(?P<patch>\d{1,3})_window(?P<window>\d{1,3})"
    # Older names have the training data here, newer ones in a tag.
    r"(_(?P<pixels>\d{1,4}))?(_in22k)?"
)
# timm's name of each argument to ours.
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
    "attn_drop_rate": "attention_dropout",
    "proj_drop_rate": "dropout",
}
_EPSILON = 1e-5


def _build(config, task, overrides):
    timm.check_pooling(config, {"avg": "mean"}, "avg")
    name = timm.match_architecture(ARCHITECTURE, config)
    arguments: dict[str, Any] = {
        "variant": name["size"],
        "patch_size": int(name["patch"]),
        "window_size": int(name["window"]),
        **({"image_size": int(name["pixels"])} if name["pixels"] else {}),
        **timm.get_model_args(config, _ARGUMENTS, {"always_partition": False}),
        **tasks.top_arguments(config, task, timm.get_num_classes),
    }
    model = tasks.call_builders([(build_swin, arguments)], overrides)
    if not {"image_size", "window_size", "patch_size"} & set(overrides):
        _check_windows(model)
    return model


def _check_windows(model) -> None:
    """Rejects sizes at which timm's windows differ from the published code's.

    timm shifts a map before padding it, clips each side of a window to the map
    separately, and shifts along one side even if the other side is no longer than a
    window.

    Raises:
        ValueError: If this changes the output of a stage.
    """
    for index, blocks in enumerate(find_stages(model)):
        size, window = tuple(blocks[0].input.shape[1:3]), blocks[0].window_size
        is_one_window = size[0] == size[1] <= window
        is_filled = min(size) > window and not any(side % window for side in size)
        is_shifted = any(block.shifted for block in blocks)
        if is_one_window or is_filled or (min(size) >= window and not is_shifted):
            continue
        raise ValueError(
            "`img_size` in config.json must give each stage a map that is a multiple "
            "of the window, or a square no larger than one window: at other sizes "
            "timm computes different outputs from the published code, which our model "
            "follows. Pass `image_size` to load the weights anyway. "
            f"Received: a map of {size} in stage {index}, window_size={window}"
        )


def _position_bias(key, block) -> Weight:
    """The table of relative positions.

    For a window larger than the map timm stores only the rows that are used, which are
    in the middle of the whole table. The other rows are zero.
    """
    table = block.attention.position_bias
    rows, heads = table.shape
    window, _, _ = block.attention.grid(tuple(block.input.shape[1:3]))
    side, used = 2 * block.window_size - 1, 2 * window - 1
    margin = block.window_size - window

    def read(array):
        if len(array) == rows:
            return array
        square = array.reshape(used, used, heads)
        square = np.pad(square, ((margin, margin), (margin, margin), (0, 0)))
        return square.reshape(rows, heads)

    def write(array):
        square = array.reshape(side, side, heads)
        inner = slice(margin, margin + used)
        return (square[inner, inner].reshape(used**2, heads),)

    return Weight((key,), table, read, write, lambda shape: shape == (rows, heads))


def _block(name, block) -> list[Weight]:
    return [
        *timm.transformer_block(name, block),
        _position_bias(f"{name}.attn.relative_position_bias_table", block),
    ]


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    weights = mapping.patch_embedding(model, "patch_embed.proj", "patch_embed.norm")
    for index, blocks in enumerate(find_stages(model)):
        if index:
            # timm merges patches at the start of a stage, we do so at the end.
            merging = layers[f"stage_{index - 1}_merging"]
            weights += merging_weights(f"layers.{index}.downsample", merging)
        for number, block in enumerate(blocks):
            weights += _block(f"layers.{index}.blocks.{number}", block)
    weights += mapping.norm("norm", layers["final_norm"])
    return weights + mapping.head_weights(model, {"classifier": "head.fc"})


def _renames_for(keys):
    """Renames of older files, in which a stage ends with the merging of patches."""
    if "layers.0.downsample.reduction.weight" not in keys:
        return ()
    return (
        (
            r"^layers\.(\d+)\.downsample\.",
            lambda match: f"layers.{int(match[1]) + 1}.downsample.",
        ),
        (r"^head\.(weight|bias)$", r"head.fc.\1"),
    )


def _is_ours(model) -> bool:
    needed = {"patch_embedding", "stage_0_block_0", "final_norm"}
    blocks = [block.name for stage in find_stages(model) for block in stage]
    return timm.computes_as_timm(model, needed, blocks, _EPSILON)


def _config(model) -> dict[str, Any]:
    _check_windows(model)
    stages, patches = find_stages(model), layers_by_name(model)["patch_embedding"]
    first = stages[0][0]
    sizes = {
        "hidden_dim": patches.hidden_dim,
        "num_blocks": tuple(map(len, stages)),
        "num_heads": tuple(blocks[0].num_heads for blocks in stages),
    }
    arguments = {
        "img_size": list(model.inputs[0].shape[1:3]),
        "patch_size": one_or_two(patches.patch_size),
        "window_size": first.window_size,
        "embed_dim": sizes["hidden_dim"],
        "depths": list(sizes["num_blocks"]),
        "num_heads": list(sizes["num_heads"]),
        "mlp_ratio": timm.ratio(first.mlp_dim, patches.hidden_dim),
        "qkv_bias": first.attention_bias,
    }
    name = f"swin_{timm.closest(VARIANTS, sizes)}_patch4_window7_224"
    return timm.make_fields(model, name, "avg", arguments)


TIMM_SWIN = timm.make_family(
    _build,
    _weights,
    heads=("head.fc.",),
    is_ours=_is_ours,
    config=_config,
    # Computed from the window; older files contain them.
    buffers=(r"layers\..*\.(relative_position_index|attn_mask)",),
    renames_for=_renames_for,
)
