"""CLIP in open_clip's naming, which is OpenAI's: with a ViT, or with a ResNet.

`open_clip_config.json` is what the library's `save_for_hf` writes: `model_cfg`, the
arguments of its `CLIP` by its names, and `preprocess_cfg`, which `description.py`
reads. The weights are in `open_clip_model.safetensors`.
"""

import re
from typing import Any

import keras

from keras_attn.files.reading import shown
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import MAX_SIZE, Config, one_or_two
from keras_attn.models.checkpoints.families.clip import (
    TASK,
    class_token,
    get_attention,
    is_clip,
    scalar,
)
from keras_attn.models.checkpoints.families.timm.architectures import ratio
from keras_attn.models.checkpoints.families.torchvision import resnet
from keras_attn.models.checkpoints.families.vit import position_table
from keras_attn.models.checkpoints.folder import OPEN_CLIP_FILES
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.clip import build_clip
from keras_attn.models.parts.functional import numbered_names
from keras_attn.ops import quick_gelu

LIBRARY = "open_clip"
_EPSILON = 1e-5
# What our model does not do, by the values that it implies, the default first.
_NO_BLOCK_OPTIONS = {
    "ls_init_value": (None,),
    "output_tokens": (False,),
    "final_ln_after_pool": (False,),
    "act_kwargs": (None,),
    "norm_kwargs": (None,),
    "block_type": (None, "default"),
    **dict.fromkeys(
        (
            *("qk_norm", "scaled_cosine_attn", "scale_heads"),
            *("scale_attn_inner", "scale_attn", "scale_fc"),
        ),
        (False,),
    ),
}
_MODEL = {"init_logit_bias": (None,), "multimodal_cfg": (None,)}
_IMAGE = {
    **_NO_BLOCK_OPTIONS,
    "attentional_pool": (False,),
    "no_ln_pre": (False,),
    "pos_embed_type": ("learnable",),
    "pool_type": ("tok",),
    "timm_model_name": (None,),
}
_TEXT = {
    **_NO_BLOCK_OPTIONS,
    "embed_cls": (False,),
    "no_causal_mask": (False,),
    "pool_type": ("argmax", "eos"),
    "proj_bias": (False,),
    "proj_type": ("linear",),
    "hf_model_name": (None,),
}
# Fields that are read, and fields that change no output of a trained model.
_READ = {
    "model_cfg": {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"},
    "vision_cfg": {
        *("layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size")
    },
    "text_cfg": {
        *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
        "eos_id",
    },
}
_TABLES = {
    "text_token_embedding": "token_embedding.weight",
    "text_position_embedding": "positional_embedding",
}
_IDLE = re.compile(
    r"custom_text|init_logit_scale|nonscalar_logit_scale|patch_dropout|pad_id"
    r"|attn_pooler_.*|timm_.*|hf_.*|tokenizer_.*|.*_pretrained"
)


def _part(config, name, supported) -> Config:
    """The object `name` of the configuration, with its fields checked."""
    fields = config.get(name)
    if not isinstance(fields, dict):
        raise config.error(name, "an object", fields)
    part = config.nested(fields)
    part.require(supported)
    known = _READ[name] | set(supported)
    unknown = [x for x in part if x not in known and not _IDLE.fullmatch(x)]
    if unknown:
        raise ValueError(
            f"`{name}` in {config.file} may only have {', '.join(sorted(known))}: "
            f"other arguments are not supported. Received: {shown(unknown)}"
        )
    return part


def _build(config, task, overrides):
    model = _part(config, "model_cfg", _MODEL)
    image, text = _part(model, "vision_cfg", _IMAGE), _part(model, "text_cfg", _TEXT)
    width = text.get_size("width", 512)
    is_quick = model.get_bool("quick_gelu", False)
    arguments: dict[str, Any] = {
        "image_size": image.get_image_size("image_size", 224),
        "embedding_dim": model.get_size("embed_dim", 512),
        "vocabulary_size": text.get_size("vocab_size", 49_408),
        "max_sequence_length": text.get_size("context_length", 77),
        "text_num_layers": text.get_num_blocks("layers", 12),
        "text_hidden_dim": width,
        "text_num_heads": text.get_size("heads", 8),
        "text_mlp_dim": _mlp_dim(text, width),
        "activation": quick_gelu if is_quick else "gelu",
        "layer_norm_epsilon": _EPSILON,
    }
    if text.get("pool_type") == "eos":
        arguments["end_token_id"] = text.get_size("eos_id", 2, MAX_SIZE)
    is_resnet = isinstance(image.get("layers"), list)
    arguments |= _resnet_arguments(image) if is_resnet else _vit_arguments(image)
    return tasks.call_builders([(build_clip, arguments)], overrides)


def _mlp_dim(part, width):
    return max(1, int(part.get_number("mlp_ratio", 4.0) * width))


def _vit_arguments(image):
    width = image.get_size("width", 768)
    return {
        "patch_size": image.get_pair("patch_size", 16),
        "num_layers": image.get_num_blocks("layers", 12),
        "hidden_dim": width,
        "num_heads": max(1, width // image.get_size("head_width", 64)),
        "mlp_dim": _mlp_dim(image, width),
    }


def _resnet_arguments(image):
    width = image.get_size("width", 64)
    return {
        # All that belongs to a ResNet; the other sizes are defaults.
        "variant": "rn50",
        "num_blocks": image.get_depths("layers", []),
        "stem_dim": width,
        "num_heads": max(1, 32 * width // image.get_size("head_width", 64)),
    }


def _find_task(model) -> str | None:
    return TASK if is_clip(model) else None


def _config(model) -> dict[str, Any]:
    layers = layers_by_name(model)
    block, positions = layers["text_block_0"], layers["text_position_embedding"]
    if block.layer_norm_epsilon != _EPSILON:
        raise ValueError(
            f"`layer_norm_epsilon` must be {_EPSILON} for a checkpoint of open_clip. "
            f"Received: layer_norm_epsilon={block.layer_norm_epsilon}"
        )
    if block.activation not in (quick_gelu, keras.activations.gelu):
        raise ValueError(
            "`activation` must be `quick_gelu` or 'gelu' for a checkpoint of "
            f"open_clip. Received: activation={block.activation!r}"
        )
    text = {
        **_tower_fields(layers, "text_"),
        "context_length": positions.max_sequence_length,
        "vocab_size": layers["text_token_embedding"].input_dim,
        "heads": block.num_heads,
    }
    end = layers["text_pooling"].end_token_id
    if end is not None:
        text |= {"pool_type": "eos", "eos_id": end}
    is_vit = "class_token" in layers
    return {
        "model_cfg": {
            "embed_dim": layers["text_projection"].units,
            "quick_gelu": block.activation is quick_gelu,
            "vision_cfg": (_vit_config if is_vit else _resnet_config)(model, layers),
            "text_cfg": text,
        },
        "preprocess_cfg": {},
    }


def _tower_fields(layers, start) -> dict[str, Any]:
    """The fields of both towers, from the layers whose names begin with `start`."""
    width = layers[f"{start}position_embedding"].embeddings.shape[1]
    return {
        "width": width,
        "layers": len(numbered_names(layers, f"{start}block_")),
        "mlp_ratio": ratio(layers[f"{start}block_0"].mlp_dim, width),
    }


def _vit_config(model, layers) -> dict[str, Any]:
    patches, fields = layers["patch_embedding"], _tower_fields(layers, "")
    _check_channels(model)
    return {
        **fields,
        "image_size": one_or_two(patches.input.shape[1:3]),
        "patch_size": one_or_two(patches.patch_size),
        "head_width": fields["width"] // layers["block_0"].num_heads,
    }


def _resnet_config(model, layers) -> dict[str, Any]:
    stages = [len(blocks) for blocks in mapping.stages_of(layers, "_conv_0")]
    height, width = model.input["images"].shape[1:3]
    stem_dim = layers["stem_conv_2"].filters
    num_heads = layers["attention_pooling"].num_heads
    _check_channels(model)
    if len(stages) != 4 or height != width or 32 * stem_dim % num_heads:
        raise ValueError(
            "A ResNet must have four stages, square images and a pooling whose "
            "`num_heads` divides its width for a checkpoint of open_clip. Received: "
            f"num_blocks={stages}, image_size={(height, width)}, num_heads={num_heads}"
        )
    return {
        "image_size": height,
        "layers": stages,
        "width": stem_dim,
        "head_width": 32 * stem_dim // num_heads,
        "patch_size": None,
    }


def _check_channels(model):
    channels = model.input["images"].shape[-1]
    if channels != 3:
        raise ValueError(
            "`num_channels` must be 3 for a checkpoint of open_clip. "
            f"Received: num_channels={channels}"
        )


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    is_vit = "class_token" in layers
    return [
        scalar("logit_scale", model.similarity.logit_scale),
        *mapping.tables(layers, _TABLES),
        *_block_weights(layers, "text_block_", ""),
        *mapping.norm("ln_final", layers["text_final_norm"]),
        mapping.same("text_projection", layers["text_projection"].kernel),
        *(_vit_weights if is_vit else _resnet_weights)(model, layers),
    ]


def _vit_weights(model, layers) -> list[Weight]:
    return [
        class_token("visual.class_embedding", layers["class_token"]),
        position_table(
            "visual.positional_embedding",
            layers["position_embedding"],
            model,
            1,
            is_batched=False,
        ),
        *mapping.convolution("visual.conv1", layers["patch_embedding"].projection),
        *mapping.norm("visual.ln_pre", layers["embeddings_norm"]),
        *_block_weights(layers, "block_", "visual."),
        *mapping.norm("visual.ln_post", layers["final_norm"]),
        mapping.same("visual.proj", layers["projection"].kernel),
    ]


def _resnet_weights(model, layers) -> list[Weight]:
    pooling, key = layers["attention_pooling"], "visual.attnpool"
    attention = pooling.attention
    return [
        *mapping.resnet_weights(layers, resnet.KEYS, "visual."),
        mapping.same(f"{key}.positional_embedding", pooling.embeddings),
        *mapping.dense(f"{key}.q_proj", attention.query),
        *mapping.dense(f"{key}.k_proj", attention.key),
        *mapping.dense(f"{key}.v_proj", attention.value),
        *mapping.attention_output(f"{key}.c_proj", attention),
    ]


def _block_weights(layers, start, prefix) -> list[Weight]:
    """The weights of the blocks `start + "0"`, ….

    Args:
        layers: Layers by name.
        start: The start of the names of the blocks.
        prefix: What the keys begin with.
    """
    weights = []
    for index, name in enumerate(numbered_names(layers, start)):
        block, key = layers[name], f"{prefix}transformer.resblocks.{index}"
        attention, norm = get_attention(block)
        weights += [
            *mapping.norm(f"{key}.ln_1", norm),
            mapping.transposed(
                f"{key}.attn.in_proj_weight", attention.query_key_value.kernel
            ),
            mapping.same(f"{key}.attn.in_proj_bias", attention.query_key_value.bias),
            *mapping.attention_output(f"{key}.attn.out_proj", attention),
            *mapping.norm(f"{key}.ln_2", block.feed_forward_norm),
            *mapping.dense(f"{key}.mlp.c_fc", block.feed_forward.expand),
            *mapping.dense(f"{key}.mlp.c_proj", block.feed_forward.contract),
        ]
    return weights


OPEN_CLIP = Family(
    model_type=LIBRARY,
    library=LIBRARY,
    files=OPEN_CLIP_FILES,
    also_saved_as={TASK: "CLIP"},
    tasks=(TASK,),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    # The second line is in OpenAI's own files.
    buffers=(r".*\.num_batches_tracked", r"input_resolution|context_length|vocab_size"),
    # With `custom_text` the text tower is a module of its own.
    renames=((r"^text\.", ""),),
    default_task=lambda config: TASK,
)
