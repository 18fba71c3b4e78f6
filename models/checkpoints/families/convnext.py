"""ConvNeXt checkpoints."""

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, activation_name
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.convnext import build_convnext


def _build(config, task, overrides):
    scale = config.get_number("layer_scale_init_value", 1e-6, most=1e3)
    arguments = {
        **tasks.patch_arguments(config, 4),
        "hidden_dims": config.get_sizes("hidden_sizes", [96, 192, 384, 768]),
        "num_blocks": config.get_depths("depths", [3, 3, 9, 3]),
        "activation": config.get_choice("hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": config.get_epsilon("layer_norm_eps", 1e-12),
        "layer_scale": scale or None,
        "stochastic_depth": config.get_probability("drop_path_rate", 0.0),
        **tasks.top_arguments(config, task),
    }
    return tasks.call_builders([(build_convnext, arguments)], overrides)


def _find_task(model):
    needed = {"patch_embedding", "stage_0_block_0_depthwise", "final_norm"}
    return tasks.image_task(model) if needed <= set(layers_by_name(model)) else None


def find_stages(model) -> list[list[str]]:
    """For each stage, the common starts of the names of each block's layers."""
    return mapping.stages_of(layers_by_name(model), "_depthwise")


def _config(model) -> dict:
    layers, stages = layers_by_name(model), find_stages(model)
    first, last = stages[0][0], stages[-1][-1]
    scale = layers.get(f"{first}_scale")
    return {
        **tasks.patch_fields(layers),
        **tasks.classifier_fields(layers),
        "num_stages": len(stages),
        "depths": [len(blocks) for blocks in stages],
        "hidden_sizes": [
            layers[f"{blocks[0]}_depthwise"].output.shape[-1] for blocks in stages
        ],
        "hidden_act": activation_name(layers[f"{first}_feed_forward"].activation),
        "layer_norm_eps": layers["final_norm"].epsilon,
        "layer_scale_init_value": 0.0 if scale is None else scale.initial_value,
        "drop_path_rate": layers[f"{last}_drop_path"].rate,
    }


def _block_weights(layers, name, key) -> list[Weight]:
    feed_forward = layers[f"{name}_feed_forward"]
    weights = [
        *mapping.depthwise_convolution(f"{key}.dwconv", layers[f"{name}_depthwise"]),
        *mapping.norm(f"{key}.layernorm", layers[f"{name}_norm"]),
        *mapping.dense(f"{key}.pwconv1", feed_forward.expand),
        *mapping.dense(f"{key}.pwconv2", feed_forward.contract),
    ]
    if f"{name}_scale" in layers:
        gamma = layers[f"{name}_scale"].gamma
        weights.append(mapping.same(f"{key}.layer_scale_parameter", gamma))
    return weights


def list_weights(model) -> list[Weight]:
    """The weights of a ConvNeXt, with or without its top."""
    layers, start = layers_by_name(model), "convnext.embeddings"
    patches = f"{start}.patch_embeddings"
    weights = mapping.patch_embedding(model, patches, f"{start}.layernorm")
    for index, blocks in enumerate(find_stages(model)):
        stage = f"convnext.encoder.stages.{index}"
        if index:
            key = f"{stage}.downsampling_layer"
            weights += mapping.norm(f"{key}.0", layers[f"stage_{index}_norm"])
            down = layers[f"stage_{index}_downsampling"].projection
            weights += mapping.convolution(f"{key}.1", down)
        for number, name in enumerate(blocks):
            weights += _block_weights(layers, name, f"{stage}.layers.{number}")
    weights += mapping.norm("convnext.layernorm", layers["final_norm"])
    return weights + mapping.head_weights(model, {"classifier": "classifier"})


CONVNEXT = tasks.image_family(
    "convnext",
    "ConvNextModel",
    "ConvNextForImageClassification",
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=list_weights,
)
