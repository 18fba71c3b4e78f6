"""U-Net on a ResNet in the naming of segmentation-models-pytorch.

`config.json` is what the library's `save_pretrained` writes: the `_model_class`,
`"Unet"`, and the arguments of that class by its names; and, for a ResNet of a different
size, which the library does not read, `model_args` with the arguments of our builder. A
`library`, `"segmentation_models_pytorch"`, with an `architecture`, `"Unet"`, is read as
well.
"""

from keras_attn.files.reading import shown
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import MAX_CLASSES, Config
from keras_attn.models.checkpoints.families.torchvision import architectures, resnet
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.resnet import VARIANTS, build_resnet
from keras_attn.models.unet import build_unet

LIBRARY = "segmentation_models_pytorch"
_CHANNELS = [256, 128, 64, 32, 16]
_SUPPORTED = {
    "_model_class": ("Unet",),
    "architecture": ("Unet",),
    "encoder_name": tuple(f"resnet{variant}" for variant in VARIANTS),
    "encoder_depth": (5,),
    "decoder_use_norm": ("batchnorm", True),
    "decoder_use_batchnorm": (True,),  # Its name before version 0.5.
    "decoder_attention_type": (None,),
    "decoder_interpolation": ("nearest",),
    "activation": (None, "identity"),
    "aux_params": (None,),
}
# Fields that change no output, or are read below.
_OTHERS = {
    "library",
    "encoder_weights",
    "in_channels",
    "classes",
    "decoder_channels",
    "model_args",
    "dtype",
}
_GETTERS = {
    "stem_dim": Config.get_size,
    "num_blocks": Config.get_depths,
    "norm_epsilon": Config.get_epsilon,
}


def _unet_on(encoder, *, num_classes, decoder_dims, name="unet"):
    """`build_unet`, whose first argument is a variant."""
    return build_unet(
        backbone=encoder, num_classes=num_classes, decoder_dims=decoder_dims, name=name
    )


def is_smp(config: Config) -> bool:
    """Whether a `config.json` is the library's."""
    return config.get("library") == LIBRARY or (
        "_model_class" in config and "library" not in config
    )


def _build(config, task, overrides):
    config.setdefault("encoder_name", "resnet34")  # The library's default.
    config.require(_SUPPORTED)
    # The library passes further arguments to the encoder, and skips private fields.
    known = {*_SUPPORTED, *_OTHERS}
    unknown = [x for x in config if x not in known and not x.startswith("_")]
    if unknown:
        raise ValueError(
            f"config.json may only have {', '.join(sorted(known))}: other arguments of "
            f"`Unet` are not supported. Received: {shown(unknown)}"
        )
    encoder = {
        "variant": config["encoder_name"].removeprefix("resnet"),
        "image_size": None,
        "include_top": False,
        "num_channels": config.get_size("in_channels", 3),
        **architectures.get_model_args(config, _GETTERS),
    }
    arguments = {
        "num_classes": config.get_size("classes", 1, MAX_CLASSES),
        "decoder_dims": config.get_sizes("decoder_channels", _CHANNELS),
    }
    calls = [(build_resnet, encoder), (_unet_on, arguments)]
    return tasks.call_builders(calls, overrides)


def _find_task(model):
    layers = layers_by_name(model)
    needed = {"stage_0_block_0_conv_0", "decoder_0_norm_1", "classifier"}
    known = ("stem_", "stage_", "decoder_", "classifier")
    is_ours = needed <= set(layers) and mapping.has_only(layers, known)
    return "segmenter" if is_ours else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    number, sizes = resnet.read_sizes(layers)
    channels = sizes.pop("num_channels")
    published = {**VARIANTS[number], "dilated_stages": (), "norm_epsilon": 1e-5}
    defaults = {name: values[0] for name, values in _SUPPORTED.items()}
    del defaults["architecture"], defaults["decoder_use_batchnorm"]
    return {
        **defaults,
        "encoder_name": f"resnet{number}",
        "encoder_weights": None,
        "in_channels": channels,
        "classes": layers["classifier"].filters,
        "decoder_channels": [layers[f"{x}_conv_0"].filters for x in _blocks(layers)],
        **architectures.changed(sizes, published),
    }


def _blocks(layers) -> list[str]:
    """The starts of the names of the decoder's layers, from the smallest map on."""
    return numbered_names(layers, "decoder_", "_conv_0")[::-1]


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    weights = mapping.resnet_weights(layers, resnet.KEYS, "encoder.")
    for index, name in enumerate(_blocks(layers)):
        for place in (0, 1):
            key = f"decoder.blocks.{index}.conv{place + 1}"
            weights += mapping.convolution(f"{key}.0", layers[f"{name}_conv_{place}"])
            weights += mapping.batch_norm(f"{key}.1", layers[f"{name}_norm_{place}"])
    return weights + mapping.convolution("segmentation_head.0", layers["classifier"])


SMP_UNET = Family(
    model_type=LIBRARY,
    library=LIBRARY,
    also_saved_as={"segmenter": "Unet"},
    tasks=("segmenter",),
    heads=("segmentation_head.",),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=(r".*\.num_batches_tracked",),
    default_task=lambda config: "segmenter",
)
