"""ConvNeXt checkpoints."""

from keras_attn.models.checkpoints.mapping import (
    ACTIVATIONS,
    IMAGE_TASKS,
    Family,
    Weight,
    activation_name,
    call_builders,
    convolution,
    dense,
    depthwise_convolution,
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
    norm,
    one_or_two,
    same,
    top_arguments,
)
from keras_attn.models.convnext import build_convnext


def _build(config, task, overrides):
    scale = get_number(config, "layer_scale_init_value", 1e-6, most=1e3)
    arguments = {
        "image_size": get_image_size(config, "image_size", 224),
        "patch_size": get_size(config, "patch_size", 4),
        "num_channels": get_size(config, "num_channels", 3),
        "hidden_dims": get_sizes(config, "hidden_sizes", [96, 192, 384, 768]),
        "num_blocks": get_depths(config, "depths", [3, 3, 9, 3]),
        "activation": get_choice(config, "hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_eps", 1e-12),
        "layer_scale": scale or None,
        "stochastic_depth": get_probability(config, "drop_path_rate", 0.0),
        **top_arguments(config, task),
    }
    return call_builders([build_convnext], [arguments], overrides)


def _task_of(model):
    names = {layer.name for layer in getattr(model, "layers", ())}
    if not {"patch_embedding", "stage_0_block_0_depthwise", "final_norm"} <= names:
        return None
    return "classifier" if "classifier" in names else "encoder"


def blocks_of(model) -> list[list[str]]:
    """The names of the blocks of each stage."""
    names, stages = {layer.name for layer in model.layers}, []
    while f"stage_{len(stages)}_block_0_depthwise" in names:
        start, blocks = f"stage_{len(stages)}_block_", []
        while f"{start}{len(blocks)}_depthwise" in names:
            blocks.append(f"{start}{len(blocks)}")
        stages.append(blocks)
    return stages


def _config(model) -> dict:
    part, stages = model.get_layer, blocks_of(model)
    names = {layer.name for layer in model.layers}
    patches, scale = part("patch_embedding"), f"{stages[0][0]}_scale"
    _, height, width, channels = patches.input.shape
    config = {
        "patch_size": patches.patch_size[0],
        "num_channels": channels,
        "num_stages": len(stages),
        "depths": [len(blocks) for blocks in stages],
        "hidden_sizes": [
            part(f"{blocks[0]}_depthwise").output.shape[-1] for blocks in stages
        ],
        "hidden_act": activation_name(part(f"{stages[0][0]}_feed_forward").activation),
        "layer_norm_eps": part("final_norm").epsilon,
        "layer_scale_init_value": part(scale).initial_value if scale in names else 0.0,
        "drop_path_rate": part(f"{stages[-1][-1]}_drop_path").rate,
    }
    # The format has no word for any size; transformers takes any in any case.
    if None not in (height, width):
        config["image_size"] = one_or_two((height, width))
    if _task_of(model) == "classifier":
        config.update(label_fields(part("classifier").units))
    return config


def _block_weights(model, name, key) -> list[Weight]:
    part = model.get_layer
    depthwise, feed_forward = part(f"{name}_depthwise"), part(f"{name}_feed_forward")
    weights = [
        *depthwise_convolution(f"{key}.dwconv", depthwise),
        *norm(f"{key}.layernorm", part(f"{name}_norm")),
        *dense(f"{key}.pwconv1", feed_forward.expand),
        *dense(f"{key}.pwconv2", feed_forward.contract),
    ]
    if f"{name}_scale" in {layer.name for layer in model.layers}:
        gamma = part(f"{name}_scale").gamma
        weights.append(same(f"{key}.layer_scale_parameter", gamma))
    return weights


def _weights(model) -> list[Weight]:
    part = model.get_layer
    weights = [
        *convolution(
            "convnext.embeddings.patch_embeddings", part("patch_embedding").projection
        ),
        *norm("convnext.embeddings.layernorm", part("embeddings_norm")),
    ]
    for index, blocks in enumerate(blocks_of(model)):
        stage = f"convnext.encoder.stages.{index}"
        if index:
            down = f"{stage}.downsampling_layer"
            weights += norm(f"{down}.0", part(f"stage_{index}_norm"))
            weights += convolution(
                f"{down}.1", part(f"stage_{index}_downsampling").projection
            )
        for number, name in enumerate(blocks):
            weights += _block_weights(model, name, f"{stage}.layers.{number}")
    weights += norm("convnext.layernorm", part("final_norm"))
    return weights + head_weights(model, {"classifier": "classifier"})


CONVNEXT = Family(
    model_type="convnext",
    architectures={
        "ConvNextModel": "encoder",
        "ConvNextForImageClassification": "classifier",
    },
    saved_as={
        "encoder": "ConvNextModel",
        "classifier": "ConvNextForImageClassification",
    },
    tasks=IMAGE_TASKS,
    bare="ConvNextModel",
    prefix="convnext.",
    heads=("classifier.",),
    build=_build,
    task_of=_task_of,
    config=_config,
    weights=_weights,
)
