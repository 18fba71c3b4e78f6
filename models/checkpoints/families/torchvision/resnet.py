"""ResNet, and FCN on it, in torchvision's naming.

Keys are as in the FCN, whose ResNet is its `backbone`; a file of only the ResNet does
not have this prefix. So a classifier's weights can also be read as a segmenter with new
heads, and a segmenter's weights as an encoder.
"""

from typing import Any

import keras

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families.torchvision import architectures
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.fcn import VARIANTS as FCN_VARIANTS
from keras_attn.models.fcn import build_fcn_resnet
from keras_attn.models.resnet import VARIANTS, build_resnet

_PREFIX = "backbone."
# From our names of layers to torchvision's keys.
KEYS = (
    (r"stage_(\d+)_block_(\d+)_", lambda m: f"layer{int(m[1]) + 1}.{m[2]}."),
    (r"stem_(conv|norm)_(\d)$", r"\1_\2"),  # CLIP's stem has three.
    (r"stem_conv", "conv1"),
    (r"stem_norm", "bn1"),
    (r"shortcut_norm", "downsample.1"),
    (r"shortcut", "downsample.0"),
    (r"norm_", "bn_"),
    # torchvision counts them from one.
    (r"(conv|bn)_(\d)$", lambda m: f"{m[1]}{int(m[2]) + 1}"),
)
# Layer of a head to the module that torchvision has for it.
_HEADS = {
    "head_conv": "classifier.0",
    "head_norm": "classifier.1",
    "classifier": "classifier.4",
    "auxiliary_conv": "aux_classifier.0",
    "auxiliary_norm": "aux_classifier.1",
    "auxiliary_classifier": "aux_classifier.4",
}


def _get_stages(config: Config, name: str, default) -> tuple[int, ...]:
    """Indices of stages; there may be none."""
    return () if config.get(name) == [] else config.get_sizes(name, default)


def get_block(config: Config, name: str, default: str | None) -> str:
    """The kind of blocks, by the name that all libraries give it."""
    return config.get_choice(
        name, {"basic": "basic", "bottleneck": "bottleneck"}, default
    )


_GETTERS = {
    "stem_dim": Config.get_size,
    "num_blocks": Config.get_depths,
    "block": get_block,
    "num_channels": Config.get_size,
    "dilated_stages": _get_stages,
    "norm_epsilon": Config.get_epsilon,
}


def _build(config, task, overrides):
    arguments = {
        "variant": config["architecture"].rpartition("resnet")[2],
        **architectures.get_model_args(config, _GETTERS),
    }
    # The number of classes in the file belongs to its own head.
    own = config if task == _default_task(config) else config.nested({})
    if task == "segmenter":
        arguments |= {
            "auxiliary_head": config.get_bool("aux_loss", True),
            "num_classes": architectures.get_num_classes(own, 21),
        }
        return tasks.call_builders([(build_fcn_resnet, arguments)], overrides)
    arguments |= tasks.top_arguments(
        own, task, lambda config: architectures.get_num_classes(config, 1000)
    )
    if "image_size" not in overrides:
        # The weights fit any size; "224" would only be a guess.
        arguments["image_size"] = None
    return tasks.call_builders([(build_resnet, arguments)], overrides)


def _default_task(config):
    is_segmenter = config["architecture"].startswith("fcn_")
    return "segmenter" if is_segmenter else "classifier"


def find_task(model) -> str | None:
    """The task of a ResNet, or of an FCN on one; None for any other model."""
    layers = layers_by_name(model)
    norm = layers.get("stem_norm")
    known = ("stem_", "stage_", "head_", "auxiliary_", "classifier")
    is_batch_norm = isinstance(norm, keras.layers.BatchNormalization)
    if not is_batch_norm or not mapping.has_only(layers, known):
        return None
    if "head_conv" in layers:
        return "segmenter"
    if "classifier" in layers:
        return "classifier"
    is_encoder = isinstance(model.output, dict) and "pooled_output" in model.output
    return "encoder" if is_encoder else None


def read_sizes(layers, names=tuple(VARIANTS)) -> tuple[str, dict[str, Any]]:
    """The sizes of a ResNet, by the arguments of our builder.

    Args:
        layers: The layers of a model with a `models.parts.resnet.resnet`, by name.
        names: Variants to choose from.

    Returns:
        The variant with as many blocks of this kind, or else the first with blocks of
        this kind; and the sizes.
    """
    stages = mapping.stages_of(layers, "_conv_0")
    sizes = {
        "stem_dim": layers["stem_conv"].filters,
        "num_blocks": tuple(map(len, stages)),
        "block": "bottleneck" if f"{stages[0][0]}_conv_2" in layers else "basic",
        "num_channels": layers["stem_conv"].kernel.shape[2],
        "dilated_stages": _dilated_stages(layers, len(stages)),
        "norm_epsilon": layers["stem_norm"].epsilon,
    }

    def likeness(name):
        row = VARIANTS[name]
        return [row[size] == sizes[size] for size in ("block", "num_blocks")]

    return max(names, key=likeness), sizes


def _config(model) -> dict:
    layers, task = layers_by_name(model), find_task(model)
    names = tuple(FCN_VARIANTS["resnet"]) if task == "segmenter" else tuple(VARIANTS)
    number, sizes = read_sizes(layers, names)
    published = {
        **VARIANTS[number],
        "num_channels": 3,
        "dilated_stages": (2, 3) if task == "segmenter" else (),
        "norm_epsilon": 1e-5,
    }
    config = architectures.changed(sizes, published)
    if task == "segmenter":
        config |= {
            "architecture": f"fcn_resnet{number}",
            "num_classes": layers["classifier"].filters,
            "aux_loss": "auxiliary_conv" in layers,
        }
        return config
    config["architecture"] = f"resnet{number}"
    if task == "classifier":
        config["num_classes"] = layers["classifier"].units
    return config


def _dilated_stages(layers, count):
    """Indices of the stages that keep the size of the map."""
    # The shortcut of a stage's first block has the stride of the stage.
    halved = (f"stage_{stage}_block_0_shortcut" for stage in range(1, count))
    return tuple(
        stage for stage, name in enumerate(halved, 1) if layers[name].strides == (1, 1)
    )


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    weights = mapping.resnet_weights(layers, KEYS, _PREFIX)
    heads = _HEADS if "head_conv" in layers else {"classifier": "fc"}
    for name, key in heads.items():
        if name in layers:
            weights += mapping.image_layer(key, layers[name])
    return weights


RESNET = Family(
    model_type="torchvision",
    library="torchvision",
    also_saved_as={
        **dict.fromkeys(("encoder", "classifier"), "resnet"),
        "segmenter": "fcn_resnet",
    },
    tasks=("encoder", "classifier", "segmenter"),
    prefix=_PREFIX,
    heads=("fc.", "classifier.", "aux_classifier."),
    build=_build,
    find_task=find_task,
    config=_config,
    weights=_weights,
    buffers=(r".*\.num_batches_tracked",),
    default_task=_default_task,
)
