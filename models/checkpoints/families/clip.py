"""CLIP and SigLIP checkpoints; CLIP's with a ViT, the only kind of transformers.

`open_clip.py` has the naming of open_clip, and CLIP with a ResNet.
"""

from typing import Any

import numpy as np

from keras_attn.files.reading import shown
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, MAX_SIZE
from keras_attn.models.checkpoints.families.vit import position_table
from keras_attn.models.checkpoints.mapping import Family, Joined, Weight, layers_by_name
from keras_attn.models.clip import build_clip
from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.siglip import build_siglip

TASK = "similarity"
# Of two names for one function, SigLIP's is written.
_ACTIVATIONS = {"gelu_pytorch_tanh": ACTIVATIONS["gelu_pytorch_tanh"], **ACTIVATIONS}
# Tables of positions 0, 1, …, which old files have.
_BUFFERS = (r"(text|vision)_model\.embeddings\.position_ids",)
# In old configurations, whose id is wrong, it stands for the largest id of a text.
_LARGEST_ID = 2


def _part(config, name):
    """The configuration of a tower, `"text"` or `"vision"`."""
    fields = config.get(f"{name}_config")
    # In old files. It replaces the other: it has transformers' defaults for what it
    # does not name.
    complete = config.get(f"{name}_config_dict")
    fields = fields if complete is None else complete
    if fields is not None and not isinstance(fields, dict):
        raise config.error(f"{name}_config", "the configuration of a tower", fields)
    return config.nested(fields or {})


def _shared_arguments(text, image, overrides, act, epsilon):
    """The arguments that both builders take.

    Args:
        text: Configuration of the text tower.
        image: Configuration of the image tower.
        overrides: Arguments from the caller.
        act: transformers' default of `hidden_act`.
        epsilon: transformers' default of `layer_norm_eps`.
    """
    for name, argument, default in (
        ("hidden_act", "activation", act),
        ("layer_norm_eps", "layer_norm_epsilon", epsilon),
        ("attention_dropout", "attention_dropout", 0.0),
    ):
        ours, other = text.get(name, default), image.get(name, default)
        # A function may have two names.
        functions = [ACTIVATIONS.get(str(x), x) for x in (ours, other)]
        if argument not in overrides and functions[0] != functions[1]:
            raise ValueError(
                f"`{name}` in config.json must be the same in text_config and "
                "vision_config, because our model has one for both; pass the one to "
                f"use as `{argument}`. Received: {shown(ours)} and {shown(other)}"
            )
    return {
        **tasks.block_arguments(image, act, epsilon),
        "text_num_layers": text.get_num_blocks("num_hidden_layers", 12),
        "attention_dropout": image.get_probability("attention_dropout", 0.0),
    }


def _build_clip(config, task, overrides):
    text, image = _part(config, "text"), _part(config, "vision")
    end = text.get_size("eos_token_id", 49_407, MAX_SIZE)
    arguments = {
        **_shared_arguments(text, image, overrides, "quick_gelu", 1e-5),
        **tasks.patch_arguments(image, 32),
        "embedding_dim": config.get_size("projection_dim", 512),
        "vocabulary_size": text.get_size("vocab_size", 49_408),
        "max_sequence_length": text.get_size("max_position_embeddings", 77),
        "text_hidden_dim": text.get_size("hidden_size", 512),
        "text_num_heads": text.get_size("num_attention_heads", 8),
        "text_mlp_dim": text.get_size("intermediate_size", 2048),
        "end_token_id": None if end == _LARGEST_ID else end,
    }
    return tasks.call_builders([(build_clip, arguments)], overrides)


def _build_siglip(config, task, overrides):
    text, image = _part(config, "text"), _part(config, "vision")
    image.require({"vision_use_head": (True,)})
    arguments = {
        **_shared_arguments(text, image, overrides, "gelu_pytorch_tanh", 1e-6),
        **tasks.patch_arguments(image, 16),
        "vocabulary_size": text.get_size("vocab_size", 32_000),
        "max_sequence_length": text.get_size("max_position_embeddings", 64),
        "text_hidden_dim": text.get_size("hidden_size", 768),
        "text_num_heads": text.get_size("num_attention_heads", 12),
        "text_mlp_dim": text.get_size("intermediate_size", 3072),
    }
    width = text.get_size("projection_size", arguments["text_hidden_dim"])
    if width != arguments["hidden_dim"]:
        raise ValueError(
            "`projection_size` of text_config in config.json must be `hidden_size` of "
            "vision_config, the width of the embeddings. "
            f"Received: {width} and {arguments['hidden_dim']}"
        )
    return tasks.call_builders([(build_siglip, arguments)], overrides)


def is_clip(model) -> bool:
    """Whether a model is from `build_clip`, with either image tower."""
    return isinstance(model, DualEncoder) and model.similarity.initial_bias is None


def _tower_fields(layers, start) -> dict[str, Any]:
    """The fields that both towers have, from the blocks `start + "0"`, …."""
    fields = tasks.block_fields(layers, start, _ACTIVATIONS)
    return {**fields, "attention_dropout": layers[f"{start}0"].attention_dropout}


def _config(model) -> dict[str, Any]:
    """The fields of both models."""
    layers = layers_by_name(model)
    patches, positions = layers["patch_embedding"], layers["text_position_embedding"]
    height, width = patches.input.shape[1:3]
    if height != width or patches.patch_size[0] != patches.patch_size[1]:
        raise ValueError(
            "`image_size` and `patch_size` must be equal in both directions for a "
            "checkpoint: transformers has no other CLIP. Received: "
            f"image_size={(height, width)}, patch_size={patches.patch_size}"
        )
    model_type = "clip" if is_clip(model) else "siglip"
    return {
        "text_config": {
            **_tower_fields(layers, "text_block_"),
            "model_type": f"{model_type}_text_model",
            "vocab_size": layers["text_token_embedding"].input_dim,
            "max_position_embeddings": positions.max_sequence_length,
        },
        "vision_config": {
            **_tower_fields(layers, "block_"),
            "model_type": f"{model_type}_vision_model",
            **tasks.patch_fields(layers),
        },
    }


def _clip_config(model) -> dict[str, Any]:
    layers, config = layers_by_name(model), _config(model)
    end = layers["text_pooling"].end_token_id
    config["text_config"]["eos_token_id"] = _LARGEST_ID if end is None else end
    config["projection_dim"] = layers["projection"].units
    for name in ("text_config", "vision_config"):
        config[name]["projection_dim"] = config["projection_dim"]
    return config


def _siglip_config(model) -> dict[str, Any]:
    config = _config(model)
    config["text_config"]["projection_size"] = config["vision_config"]["hidden_size"]
    return config


def _block_weights(layers, start, key) -> list[Weight]:
    """The weights of the blocks `start + "0"`, …, whose keys begin with `key`."""
    weights = []
    for index, name in enumerate(numbered_names(layers, start)):
        block, inner = layers[name], f"{key}.encoder.layers.{index}"
        attention, norm = get_attention(block)
        weights += [
            *mapping.query_key_value(
                f"{inner}.self_attn", attention, ("q_proj", "k_proj", "v_proj")
            ),
            *mapping.attention_output(f"{inner}.self_attn.out_proj", attention),
            *mapping.norm(f"{inner}.layer_norm1", norm),
            *mapping.dense(f"{inner}.mlp.fc1", block.feed_forward.expand),
            *mapping.dense(f"{inner}.mlp.fc2", block.feed_forward.contract),
            *mapping.norm(f"{inner}.layer_norm2", block.feed_forward_norm),
        ]
    return weights


def get_attention(block) -> tuple[Any, Any]:
    """The attention of a block and its norm: a causal block is a decoder's."""
    if hasattr(block, "self_attention"):
        return block.self_attention, block.self_attention_norm
    return block.attention, block.attention_norm


def class_token(key: str, layer) -> Weight:
    """The class token, (D,), of a `ClassToken`."""
    return mapping.reshaped(key, layer.tokens, layer.tokens.shape[-1:])


def _shared_weights(model) -> list[Weight]:
    """The weights of the layers that both models have."""
    layers, text, image = layers_by_name(model), "text_model", "vision_model"
    tables = {
        "text_token_embedding": f"{text}.embeddings.token_embedding.weight",
        "text_position_embedding": f"{text}.embeddings.position_embedding.weight",
    }
    return [
        *mapping.tables(layers, tables),
        *_block_weights(layers, "text_block_", text),
        *mapping.norm(f"{text}.final_layer_norm", layers["text_final_norm"]),
        *mapping.convolution(
            f"{image}.embeddings.patch_embedding", layers["patch_embedding"].projection
        ),
        position_table(
            f"{image}.embeddings.position_embedding.weight",
            layers["position_embedding"],
            model,
            1 if "class_token" in layers else 0,
            is_batched=False,
        ),
        *_block_weights(layers, "block_", image),
        *mapping.norm(f"{image}.post_layernorm", layers["final_norm"]),
    ]


def _clip_weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    return [
        scalar("logit_scale", model.similarity.logit_scale),
        *_shared_weights(model),
        class_token("vision_model.embeddings.class_embedding", layers["class_token"]),
        # transformers' spelling.
        *mapping.norm("vision_model.pre_layrnorm", layers["embeddings_norm"]),
        *mapping.dense("visual_projection", layers["projection"]),
        *mapping.dense("text_projection", layers["text_projection"]),
    ]


def _siglip_weights(model) -> list[Weight]:
    layers, head = layers_by_name(model), "vision_model.head"
    pooling, similarity = layers["probe_pooling"], model.similarity
    attention = pooling.attention
    inputs = attention.query, attention.key, attention.value
    return [
        scalar("logit_scale", similarity.logit_scale, (1,)),
        scalar("logit_bias", similarity.logit_bias, (1,)),
        *_shared_weights(model),
        *mapping.dense("text_model.head", layers["text_projection"]),
        mapping.reshaped(f"{head}.probe", pooling.probe, (1, *pooling.probe.shape)),
        mapping.transposed(
            f"{head}.attention.in_proj_weight", Joined([x.kernel for x in inputs])
        ),
        mapping.same(
            f"{head}.attention.in_proj_bias", Joined([x.bias for x in inputs])
        ),
        *mapping.attention_output(f"{head}.attention.out_proj", attention),
        *mapping.norm(f"{head}.layernorm", pooling.norm),
        *mapping.dense(f"{head}.mlp.fc1", pooling.feed_forward.expand),
        *mapping.dense(f"{head}.mlp.fc2", pooling.feed_forward.contract),
    ]


def scalar(key: str, variable, shape: tuple[int, ...] = ()) -> Weight:
    """A number, which files have with or without an axis of size 1.

    Args:
        key: Key of the tensor.
        variable: Our variable, ().
        shape: The shape to write, () or (1,).
    """
    return Weight(
        (key,),
        variable,
        lambda array: np.reshape(array, ()),
        lambda array: (np.reshape(array, shape),),
        accepts=lambda found: found in ((), (1,)),
    )


HF_CLIP = Family(
    model_type="clip",
    architectures={"CLIPModel": TASK},
    tasks=(TASK,),
    build=_build_clip,
    find_task=lambda model: (
        TASK if is_clip(model) and "class_token" in layers_by_name(model) else None
    ),
    config=_clip_config,
    weights=_clip_weights,
    buffers=_BUFFERS,
)
SIGLIP = Family(
    model_type="siglip",
    architectures={"SiglipModel": TASK},
    tasks=(TASK,),
    build=_build_siglip,
    find_task=lambda model: (
        TASK if isinstance(model, DualEncoder) and not is_clip(model) else None
    ),
    config=_siglip_config,
    weights=_siglip_weights,
    buffers=_BUFFERS,
)
