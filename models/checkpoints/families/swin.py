"""Swin checkpoints."""

import math

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, activation_name
from keras_attn.models.checkpoints.families.vit import names_of_today
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.swin import build_swin


def _window_size(config):
    # The files have one row for each of its (2w - 1)² relative positions.
    most = (math.isqrt(config.max_size) + 1) // 2
    return config.get_size("window_size", 7, most)


def _build(config, task, overrides):
    config.require({"use_absolute_embeddings": (False,)})
    arguments = {
        **tasks.patch_arguments(config, 4),
        "window_size": _window_size(config),
        "hidden_dim": config.get_size("embed_dim", 96),
        "num_blocks": config.get_depths("depths", [2, 2, 6, 2]),
        "num_heads": config.get_sizes("num_heads", [3, 6, 12, 24]),
        "mlp_ratio": config.get_number("mlp_ratio", 4.0),
        "activation": config.get_choice("hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": config.get_epsilon("layer_norm_eps", 1e-5),
        "attention_bias": config.get_bool("qkv_bias", True),
        **tasks.dropout_arguments(config, 0.0),
        "stochastic_depth": config.get_probability("drop_path_rate", 0.1),
        **tasks.top_arguments(config, task),
    }
    return tasks.call_builders([(build_swin, arguments)], overrides)


def _find_task(model):
    needed = {"patch_embedding", "stage_0_block_0", "final_norm"}
    return tasks.image_task(model) if needed <= set(layers_by_name(model)) else None


def find_stages(model) -> list[list]:
    """The blocks of each stage."""
    layers = layers_by_name(model)
    stages = mapping.stages_of(layers, "")
    return [[layers[name] for name in names] for names in stages]


def _config(model) -> dict:
    layers, stages = layers_by_name(model), find_stages(model)
    first, width = stages[0][0], layers["patch_embedding"].hidden_dim
    return {
        **tasks.patch_fields(layers),
        **tasks.classifier_fields(layers),
        "window_size": first.window_size,
        "embed_dim": width,
        "depths": [len(blocks) for blocks in stages],
        "num_heads": [blocks[0].num_heads for blocks in stages],
        "mlp_ratio": first.mlp_dim / width,
        "hidden_act": activation_name(first.activation),
        "layer_norm_eps": first.layer_norm_epsilon,
        "qkv_bias": first.attention_bias,
        "hidden_dropout_prob": first.dropout,
        "attention_probs_dropout_prob": first.attention_dropout,
        "drop_path_rate": stages[-1][-1].stochastic_depth,
    }


def _block_weights(name, block) -> list[Weight]:
    attention, table = f"{name}.attention", block.attention.position_bias
    return [
        *mapping.norm(f"{name}.layernorm_before", block.attention_norm),
        *mapping.query_key_value(f"{attention}.self", block.attention),
        mapping.same(f"{attention}.self.relative_position_bias_table", table),
        *mapping.attention_output(f"{attention}.output.dense", block.attention),
        *mapping.norm(f"{name}.layernorm_after", block.feed_forward_norm),
        *mapping.dense(f"{name}.intermediate.dense", block.feed_forward.expand),
        *mapping.dense(f"{name}.output.dense", block.feed_forward.contract),
    ]


def merging_weights(name: str, layer) -> list[Weight]:
    """The weights of a `PatchMerging`, which timm names alike."""
    kernel = mapping.transposed(f"{name}.reduction.weight", layer.reduction.kernel)
    return [*mapping.norm(f"{name}.norm", layer.norm), kernel]


def _weights(model) -> list[Weight]:
    layers, start = layers_by_name(model), "swin.embeddings"
    projection = f"{start}.patch_embeddings.projection"
    weights = mapping.patch_embedding(model, projection, f"{start}.norm")
    for index, blocks in enumerate(find_stages(model)):
        stage = f"swin.encoder.layers.{index}"
        for number, block in enumerate(blocks):
            weights += _block_weights(f"{stage}.blocks.{number}", block)
        merging = layers.get(f"stage_{index}_merging")
        if merging is not None:
            weights += merging_weights(f"{stage}.downsample", merging)
    weights += mapping.norm("swin.layernorm", layers["final_norm"])
    return weights + mapping.head_weights(model, {"classifier": "classifier"})


_MODULES, _RENAMES = names_of_today(
    "self",
    (
        "attention.self.relative_position_bias_table",
        "attention.relative_position_bias.relative_position_bias_table",
    ),
)
SWIN = tasks.image_family(
    "swin",
    "SwinModel",
    "SwinForImageClassification",
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    heads=("classifier.", "decoder."),
    # The index of the table's row for each pair of positions follows from the window;
    # the mask token is of masked image modeling, like the decoder.
    buffers=(r"swin\..*\.relative_position_index", r"swin\.embeddings\.mask_token"),
    modules=_MODULES,
    renames=_RENAMES,
)
