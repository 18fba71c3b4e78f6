"""ResNet checkpoints of transformers; torchvision's are in `torchvision/resnet.py`."""

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families.torchvision import resnet as torchvision
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.resnet import build_resnet

# What our model computes; other values would silently change the outputs.
_SUPPORTED = {
    "hidden_act": ("relu",),
    "downsample_in_first_stage": (False,),
    "downsample_in_bottleneck": (False,),
}
_EPSILON = 1e-5  # Not a field of the format.
# From our names of layers to transformers' keys.
_KEYS = (
    (r"stage_(\d+)_block_(\d+)_", r"encoder.stages.\1.layers.\2."),
    (r"stem_", "embedder.embedder."),
    (r"shortcut(?!_norm)", "shortcut.convolution"),
    (r"shortcut_norm", "shortcut.normalization"),
    (r"(conv|norm)_(\d)$", r"layer.\2.\1"),
    (r"\bconv$", "convolution"),
    (r"\bnorm$", "normalization"),
)


def _widths(stem_dim: int, num_stages: int, block: str) -> list[int]:
    """Output channels of each stage of our model."""
    first = stem_dim * (4 if block == "bottleneck" else 1)
    return [first * 2**stage for stage in range(num_stages)]


def _build(config, task, overrides):
    config.require(_SUPPORTED)
    block = torchvision.get_block(config, "layer_type", "bottleneck")
    depths = config.get_depths("depths", [3, 4, 6, 3])
    stem_dim = config.get_size("embedding_size", 64)
    widths = _widths(stem_dim, len(depths), block)
    config.require({"hidden_sizes": (widths,)})
    arguments = {
        "num_channels": config.get_size("num_channels", 3),
        "stem_dim": stem_dim,
        "num_blocks": depths,
        "block": block,
        "norm_epsilon": _EPSILON,
        **tasks.top_arguments(config, task),
    }
    if "image_size" not in overrides:
        arguments["image_size"] = None  # The format has none.
    return tasks.call_builders([(build_resnet, arguments)], overrides)


def _find_task(model) -> str | None:
    task = torchvision.find_task(model)
    if task not in tasks.IMAGE_TASKS:
        return None
    _, sizes = torchvision.read_sizes(layers_by_name(model))
    is_equal = not sizes["dilated_stages"] and sizes["norm_epsilon"] == _EPSILON
    return task if is_equal else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    _, sizes = torchvision.read_sizes(layers)
    depths, block = list(sizes["num_blocks"]), sizes["block"]
    return {
        **tasks.classifier_fields(layers),
        "num_channels": sizes["num_channels"],
        "embedding_size": sizes["stem_dim"],
        "hidden_sizes": _widths(sizes["stem_dim"], len(depths), block),
        "depths": depths,
        "layer_type": block,
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    }


def _weights(model) -> list[Weight]:
    weights = mapping.resnet_weights(layers_by_name(model), _KEYS, "resnet.")
    # Index 0 flattens.
    return weights + mapping.head_weights(model, {"classifier": "classifier.1"})


RESNET = tasks.image_family(
    "resnet",
    "ResNetModel",
    "ResNetForImageClassification",
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=(r".*\.num_batches_tracked",),
)
