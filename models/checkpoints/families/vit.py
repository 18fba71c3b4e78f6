"""ViT checkpoints; DeiT (`deit.py`) and ViT-MAE (`vit_mae.py`) have the same body."""

import math
import re

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.mapping import Rename, Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.vit import build_vit
from keras_attn.ops.patches import resize_positions


def names_of_today(
    inner: str, *others: tuple[str, str]
) -> tuple[tuple[Rename, ...], tuple[Rename, ...]]:
    """The names that modules have in transformers 5, and the way back.

    Files have the names that modules had in transformers 4, and today's with
    `save_pretrained(…, save_original_format=False)`.

    Args:
        inner: The module of queries, keys and values, in that of attention.
        *others: Further parts of keys, and what they are today.

    Returns:
        The `modules` of a family, and `renames`.
    """
    pairs = (
        (f"attention.{inner}.query.", "attention.q_proj."),
        (f"attention.{inner}.key.", "attention.k_proj."),
        (f"attention.{inner}.value.", "attention.v_proj."),
        *others,
        ("attention.output.dense.", "attention.o_proj."),
        ("intermediate.dense.", "mlp.fc1."),
        ("output.dense.", "mlp.fc2."),
    )
    before = r"(?<=\.)"
    return (
        tuple((before + re.escape(old), new) for old, new in pairs),
        tuple((before + re.escape(new), old) for old, new in pairs),
    )


_MODULES, _RENAMES = names_of_today("attention")
MODULES: tuple[Rename, ...] = ((r"encoder\.layer\.(?=\d)", "layers."), *_MODULES)
RENAMES: tuple[Rename, ...] = (
    (r"(^|\.)layers\.(?=\d+\.)", r"\1encoder.layer."),
    *_RENAMES,
)


def body_arguments(config):
    """The arguments that `build_vit` and `build_mae` share."""
    return {
        **tasks.block_arguments(config),
        **tasks.patch_arguments(config, 16),
        "qkv_bias": config.get_bool("qkv_bias", True),
    }


def build(config, task, overrides, **arguments):
    """The `build` of a ViT, with further arguments of `build_vit`."""
    arguments = {
        **body_arguments(config),
        **tasks.dropout_arguments(config, 0.0),
        **tasks.top_arguments(config, task),
        **arguments,
    }
    return tasks.call_builders([(build_vit, arguments)], overrides)


def is_vit(model, num_tokens: int) -> bool:
    """Whether transformers has an equivalent ViT, with this number of tokens."""
    layers = layers_by_name(model)
    body = ("patch_embedding", "class_token", "position_embedding", "block_0")
    if not {*body, "final_norm"} <= set(layers):
        return False
    if {"masking", "stem_conv"} & set(layers):  # MAE, and the hybrid.
        return False
    block = layers["block_0"]
    return (
        isinstance(block, TransformerEncoderBlock)
        and block.layer_scale is None
        and layers["class_token"].num_tokens == num_tokens
        and layers["patch_embedding"].stem_dims is None
        # With mean pooling the norm comes after the pooling.
        and len(layers["final_norm"].output.shape) == 3
    )


def _find_task(model):
    return tasks.image_task(model) if is_vit(model, 1) else None


def body_config(model) -> dict:
    """The fields of `config.json` that all of them share."""
    layers = layers_by_name(model)
    block = layers["block_0"]
    return {
        **tasks.block_fields(layers),
        "attention_probs_dropout_prob": block.attention_dropout,
        **tasks.patch_fields(layers),
        "qkv_bias": block.qkv_bias,
        "hidden_dropout_prob": block.dropout,
    }


def make_config(model) -> dict:
    """The fields of `config.json` of a ViT, with or without its top."""
    return {**body_config(model), **tasks.classifier_fields(layers_by_name(model))}


def get_grid(model) -> tuple[int, int]:
    """Rows and columns of patches."""
    patches = model.get_layer("patch_embedding")
    sizes = zip(patches.input.shape[1:3], patches.patch_size, strict=True)
    rows, columns = (pixels // patch for pixels, patch in sizes)
    return rows, columns


def position_table(
    key: str, layer, model, num_prefix_tokens: int, is_batched: bool = True
) -> Weight:
    """A table of positions; the file's may be for a different, square grid.

    Args:
        key: Key of the tensor, (1, P + T, D).
        layer: A `LearnedPositionEmbedding`.
        model: The model, whose `patch_embedding` gives the grid.
        num_prefix_tokens: P, rows of tokens before the patches.
        is_batched: Whether the tensor has its first axis.
    """
    rows, width = layer.embeddings.shape
    first = (1,) if is_batched else ()

    def read(array):
        table = array[0] if is_batched else array
        if len(table) == rows:
            return table
        side = math.isqrt(len(table) - num_prefix_tokens)
        # In float32: resizing in half precision would round the new positions.
        table = table.astype("float32")
        return resize_positions(table, (side, side), get_grid(model), num_prefix_tokens)

    def resizes(shape):
        if len(shape) < 2 or (*shape[:-2], shape[-1]) != (*first, width):
            return False
        count = shape[-2] - num_prefix_tokens
        return count > 0 and math.isqrt(count) ** 2 == count

    return Weight(
        (key,),
        layer.embeddings,
        read,
        lambda array: (array[None] if is_batched else array,),
        resizes=resizes,
    )


def block_weights(model, start: str, key: str) -> list[Weight]:
    """The weights of the blocks `start + "0"`, …, whose keys begin with `key`."""
    layers, weights = layers_by_name(model), []
    for index, name in enumerate(numbered_names(layers, start)):
        block, inner = layers[name], f"{key}.{index}"
        weights += [
            *mapping.norm(f"{inner}.layernorm_before", block.attention_norm),
            *mapping.query_key_value(f"{inner}.attention.attention", block.attention),
            *mapping.attention_output(
                f"{inner}.attention.output.dense", block.attention
            ),
            *mapping.norm(f"{inner}.layernorm_after", block.feed_forward_norm),
            *mapping.dense(f"{inner}.intermediate.dense", block.feed_forward.expand),
            *mapping.dense(f"{inner}.output.dense", block.feed_forward.contract),
        ]
    return weights


def body_weights(model, prefix: str) -> list[Weight]:
    """The weights of the body, whose keys begin with `prefix`."""
    layers, start = layers_by_name(model), f"{prefix}embeddings"
    token, positions = layers["class_token"], layers["position_embedding"]
    tokens = ("cls_token", "distillation_token")[: token.num_tokens]
    return [
        mapping.concatenated(
            [f"{start}.{name}" for name in tokens], token.tokens, axis=1
        ),
        position_table(
            f"{start}.position_embeddings", positions, model, token.num_tokens
        ),
        *mapping.convolution(
            f"{start}.patch_embeddings.projection", layers["patch_embedding"].projection
        ),
        *block_weights(model, "block_", f"{prefix}encoder.layer"),
        *mapping.norm(f"{prefix}layernorm", layers["final_norm"]),
    ]


def list_weights(model) -> list[Weight]:
    """The weights of a ViT, with or without its top."""
    head = mapping.head_weights(model, {"classifier": "classifier"})
    return body_weights(model, "vit.") + head


VIT = tasks.image_family(
    "vit",
    "ViTModel",
    "ViTForImageClassification",
    heads=("vit.pooler.", "classifier.", "decoder."),
    build=build,
    find_task=_find_task,
    config=make_config,
    weights=list_weights,
    # Of masked image modeling, like the decoder.
    buffers=(r"vit\.embeddings\.mask_token",),
    renames=RENAMES,
    modules=MODULES,
)
