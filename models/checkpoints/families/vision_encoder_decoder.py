"""Captioners of transformers: `VisionEncoderDecoderModel` of a ViT and a GPT-2."""

import functools
from typing import Any

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families import gpt, vit
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.transformer_captioners import (
    TransformerCaptioner,
    build_caption_vit_transformer,
)
from keras_attn.models.vit import build_vit

_PARTS = {"encoder": "vit", "decoder": "gpt2"}
# Our layers of the decoder, and the matching layers of `build_gpt`.
_NAMES = {
    "caption_positions": "position_embedding",
    "caption_dropout": "embeddings_dropout",
    "decoder_norm": "final_norm",
}


@functools.wraps(build_caption_vit_transformer)
def _build_on(encoder, **options):
    return build_caption_vit_transformer(encoder=encoder, **options)


def _part(config, name):
    """The configuration of the encoder or of the decoder."""
    fields = config.get(name)
    if not isinstance(fields, dict) or fields.get("model_type") != _PARTS[name]:
        expected = f"a configuration with model_type={_PARTS[name]!r}"
        raise config.error(name, expected, fields)
    return config.nested(fields)


def _build(config, task, overrides):
    encoder, decoder = _part(config, "encoder"), _part(config, "decoder")
    decoder.require(
        {"cross_attention_hidden_size": (None,), "tie_word_embeddings": (True,)}
    )
    of_encoder: dict[str, Any] = {
        **vit.body_arguments(encoder),
        **tasks.dropout_arguments(encoder, 0.0),
        "include_top": False,
    }
    of_decoder = gpt.gpt2_arguments(decoder, overrides, cross_attention=True)
    of_decoder.pop("variant")
    calls = [(build_vit, of_encoder), (_build_on, of_decoder)]
    return tasks.call_builders(calls, overrides)


def _find_task(model) -> str | None:
    layers = layers_by_name(model)
    if not isinstance(model, TransformerCaptioner) or "encoder" not in layers:
        return None
    return "captioner" if vit.is_vit(layers["encoder"], 1) else None


def _decoder_layers(model) -> dict[str, Any]:
    """The layers of the decoder by their names in `build_gpt`."""
    layers = layers_by_name(model)
    renamed = {_NAMES.get(name, name): layer for name, layer in layers.items()}
    for index, name in enumerate(numbered_names(layers, "decoder_block_")):
        renamed[f"block_{index}"] = layers[name]
    return renamed


def _config(model) -> dict:
    layers = layers_by_name(model)
    encoder = {**vit.make_config(layers["encoder"]), "model_type": "vit"}
    decoder = gpt.gpt2_config(_decoder_layers(model))
    decoder |= {"add_cross_attention": True, "model_type": "gpt2"}
    return {"encoder": encoder, "decoder": decoder}


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    weights = vit.body_weights(layers["encoder"], "encoder.")
    if "image_projection" in layers:
        weights += mapping.dense("enc_to_dec_proj", layers["image_projection"])
    return weights + gpt.body_weights(_decoder_layers(model), "decoder.transformer.")


VISION_ENCODER_DECODER = Family(
    model_type="vision-encoder-decoder",
    architectures={"VisionEncoderDecoderModel": "captioner"},
    tasks=("captioner",),
    # transformers' ViT has a further layer, which a captioner does not use.
    heads=("encoder.pooler.",),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=tuple(gpt.BUFFERS),
    tied={"captioner": {"decoder.lm_head.weight": "decoder.transformer.wte.weight"}},
    renames=vit.RENAMES,
    modules=vit.MODULES,
)
