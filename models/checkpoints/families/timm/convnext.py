"""ConvNeXt checkpoints in timm's naming."""

import re
from typing import Any

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families.convnext import find_stages, list_weights
from keras_attn.models.checkpoints.families.timm import architectures as timm
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.convnext import VARIANTS, build_convnext

ARCHITECTURE = re.compile(
    r"convnext_(?P<size>tiny|small|base|large|xlarge)(_(?P<pixels>\d{1,4}))?"
    # Older names have the training data here, newer ones in a tag.
    r"(_in22k|_in22ft1k)?"
)
# timm's name of each argument to ours.
_ARGUMENTS = {
    "in_chans": "num_channels",
    "patch_size": "patch_size",
    "dims": "hidden_dims",
    "depths": "num_blocks",
    "ls_init_value": "layer_scale",
    "drop_path_rate": "stochastic_depth",
}
# Arguments for which our model has no other value.
_DEFAULTS = {
    "kernel_sizes": 7,
    "conv_mlp": False,
    "conv_bias": True,
    "use_grn": False,
    "head_norm_first": False,
    "output_stride": 32,
    "stem_type": "patch",
}
# From transformers' keys to timm's.
_KEYS = (
    (r"convnext\.embeddings\.patch_embeddings", "stem.0"),
    (r"convnext\.embeddings\.layernorm", "stem.1"),
    (r"convnext\.encoder\.", ""),
    (r"convnext\.layernorm", "head.norm"),
    (r"classifier", "head.fc"),
    (r"downsampling_layer", "downsample"),
    (r"\.layers\.", ".blocks."),
    (r"dwconv", "conv_dw"),
    (r"layernorm", "norm"),
    (r"pwconv", "mlp.fc"),
    (r"layer_scale_parameter", "gamma"),
)
_EPSILON = 1e-6
_HALVED_AGAIN = 2  # The patch size after which timm's first stage halves the map.


def _build(config, task, overrides):
    timm.check_pooling(config, {"avg": "mean"}, "avg")
    name = timm.match_architecture(ARCHITECTURE, config)
    given = timm.get_model_args(config, _ARGUMENTS, _DEFAULTS)
    if _HALVED_AGAIN in given.get("patch_size", ()):
        raise ValueError(
            f"`patch_size` in config.json must not be {_HALVED_AGAIN}: timm then also "
            "halves the map in the first stage, and our model does not. "
            f"Received: patch_size={_HALVED_AGAIN}"
        )
    arguments: dict[str, Any] = {
        "variant": name["size"],
        "image_size": _image_size(config, name["pixels"]),
        "layer_norm_epsilon": _EPSILON,
        **given,
        **tasks.top_arguments(config, task, timm.get_num_classes),
    }
    return tasks.call_builders([(build_convnext, arguments)], overrides)


def _image_size(config, pixels):
    """The size of the training images; `image_size=None` makes it accept any size."""
    if pixels:
        return int(pixels)
    trained = config.get("pretrained_cfg")
    size = trained.get("input_size") if isinstance(trained, dict) else None
    # timm has the channels first.
    size = size[1:] if isinstance(size, list) else size
    fields = {} if size is None else {"input_size": size}
    return config.nested(fields).get_image_size("input_size", 224)


def _weights(model) -> list[Weight]:
    return mapping.with_keys(list_weights(model), _KEYS)


def _is_ours(model) -> bool:
    layers, stages = layers_by_name(model), find_stages(model)
    if not stages or f"{stages[0][0]}_scale" not in layers:
        return False
    rows, columns = layers["patch_embedding"].patch_size
    if rows == _HALVED_AGAIN or rows != columns:
        return False
    networks = [f"{name}_feed_forward" for blocks in stages for name in blocks]
    needed = {"patch_embedding", "final_norm"}
    return timm.computes_as_timm(model, needed, networks, _EPSILON)


def _config(model) -> dict[str, Any]:
    layers, stages = layers_by_name(model), find_stages(model)
    widths = [layers[f"{names[0]}_depthwise"].output.shape[-1] for names in stages]
    sizes = {
        "hidden_dims": tuple(widths),
        "num_blocks": tuple(len(names) for names in stages),
    }
    arguments = {
        "patch_size": layers["patch_embedding"].patch_size[0],
        "dims": list(sizes["hidden_dims"]),
        "depths": list(sizes["num_blocks"]),
        "ls_init_value": layers[f"{stages[0][0]}_scale"].initial_value,
    }
    name = f"convnext_{timm.closest(VARIANTS, sizes)}"
    return timm.make_fields(model, name, "avg", arguments)


TIMM_CONVNEXT = timm.make_family(
    _build, _weights, heads=("head.fc.",), is_ours=_is_ours, config=_config
)
