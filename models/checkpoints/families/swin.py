"""Swin checkpoints."""

import math

from keras_attn.models.checkpoints.mapping import (
    ACTIVATIONS,
    IMAGE_TASKS,
    Family,
    Weight,
    activation_name,
    call_builders,
    convolution,
    dense,
    fused,
    get_bool,
    get_choice,
    get_depths,
    get_epsilon,
    get_image_size,
    get_number,
    get_probability,
    get_size,
    get_sizes,
    head_weights,
    label_fields,
    linear,
    norm,
    one_or_two,
    require,
    same,
    top_arguments,
    transposed,
)
from keras_attn.models.swin import build_swin


def _window_size(config):
    # The files have a row for each of its (2 w - 1)² distances.
    return get_size(config, "window_size", 7, (math.isqrt(config.max_size) + 1) // 2)


def _build(config, task, overrides):
    require(config, {"use_absolute_embeddings": (False,)})
    arguments = {
        "image_size": get_image_size(config, "image_size", 224),
        "patch_size": get_size(config, "patch_size", 4),
        "window_size": _window_size(config),
        "num_channels": get_size(config, "num_channels", 3),
        "hidden_dim": get_size(config, "embed_dim", 96),
        "num_blocks": get_depths(config, "depths", [2, 2, 6, 2]),
        "num_heads": get_sizes(config, "num_heads", [3, 6, 12, 24]),
        "mlp_ratio": get_number(config, "mlp_ratio", 4.0),
        "activation": get_choice(config, "hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_eps", 1e-5),
        "attention_bias": get_bool(config, "qkv_bias", True),
        "dropout": get_probability(config, "hidden_dropout_prob", 0.0),
        "attention_dropout": get_probability(
            config, "attention_probs_dropout_prob", 0.0
        ),
        "stochastic_depth": get_probability(config, "drop_path_rate", 0.1),
        **top_arguments(config, task),
    }
    return call_builders([build_swin], [arguments], overrides)


def _task_of(model):
    names = {layer.name for layer in getattr(model, "layers", ())}
    if not {"patch_embedding", "stage_0_block_0", "final_norm"} <= names:
        return None
    return "classifier" if "classifier" in names else "encoder"


def stages_of(model) -> list[list]:
    """The blocks of each stage."""
    layers, stages = {layer.name: layer for layer in model.layers}, []
    while f"stage_{len(stages)}_block_0" in layers:
        start, blocks = f"stage_{len(stages)}_block_", []
        while f"{start}{len(blocks)}" in layers:
            blocks.append(layers[f"{start}{len(blocks)}"])
        stages.append(blocks)
    return stages


def _config(model) -> dict:
    part, stages = model.get_layer, stages_of(model)
    first, patches = stages[0][0], part("patch_embedding")
    _, height, width, channels = patches.input.shape
    config = {
        "image_size": one_or_two((height, width)),
        "patch_size": patches.patch_size[0],
        "window_size": first.window_size,
        "num_channels": channels,
        "embed_dim": patches.hidden_dim,
        "depths": [len(blocks) for blocks in stages],
        "num_heads": [blocks[0].num_heads for blocks in stages],
        "mlp_ratio": first.mlp_dim / patches.hidden_dim,
        "hidden_act": activation_name(first.activation),
        "layer_norm_eps": first.layer_norm_epsilon,
        "qkv_bias": first.attention_bias,
        "hidden_dropout_prob": first.dropout,
        "attention_probs_dropout_prob": first.attention_dropout,
        "drop_path_rate": stages[-1][-1].stochastic_depth,
    }
    if _task_of(model) == "classifier":
        config.update(label_fields(part("classifier").units))
    return config


def _block_weights(name, block) -> list[Weight]:
    attention, feed_forward = block.attention, block.feed_forward
    inner = f"{name}.attention.self"
    return [
        *norm(f"{name}.layernorm_before", block.attention_norm),
        *fused(
            inner,
            ("query", "key", "value"),
            attention.query_key_value_kernel,
            attention.query_key_value_bias,
        ),
        same(f"{inner}.relative_position_bias_table", attention.position_bias),
        *linear(
            f"{name}.attention.output.dense",
            attention.output_kernel,
            attention.output_bias,
        ),
        *norm(f"{name}.layernorm_after", block.feed_forward_norm),
        *dense(f"{name}.intermediate.dense", feed_forward.expand),
        *dense(f"{name}.output.dense", feed_forward.contract),
    ]


def _weights(model) -> list[Weight]:
    part, stages = model.get_layer, stages_of(model)
    weights = [
        *convolution(
            "swin.embeddings.patch_embeddings.projection",
            part("patch_embedding").projection,
        ),
        *norm("swin.embeddings.norm", part("embeddings_norm")),
    ]
    for index, blocks in enumerate(stages):
        stage = f"swin.encoder.layers.{index}"
        for number, block in enumerate(blocks):
            weights += _block_weights(f"{stage}.blocks.{number}", block)
        if index + 1 < len(stages):
            merging = part(f"stage_{index}_merging")
            weights += norm(f"{stage}.downsample.norm", merging.norm)
            weights.append(
                transposed(
                    f"{stage}.downsample.reduction.weight", merging.reduction.kernel
                )
            )
    weights += norm("swin.layernorm", part("final_norm"))
    return weights + head_weights(model, {"classifier": "classifier"})


SWIN = Family(
    model_type="swin",
    architectures={
        "SwinModel": "encoder",
        "SwinForImageClassification": "classifier",
    },
    saved_as={"encoder": "SwinModel", "classifier": "SwinForImageClassification"},
    tasks=IMAGE_TASKS,
    bare="SwinModel",
    prefix="swin.",
    heads=("classifier.",),
    build=_build,
    task_of=_task_of,
    config=_config,
    weights=_weights,
    # Which row of the table each pair of places has follows from the window.
    buffers=(r"swin\..*\.relative_position_index",),
)
