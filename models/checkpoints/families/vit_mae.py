"""ViT-MAE checkpoints: a ViT and a decoder.

With `task="encoder"` or `"classifier"` the body is read as a ViT, for fine-tuning.
"""

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families import vit
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.mae import build_mae
from keras_attn.models.parts.functional import numbered_names


def _build(config, task, overrides):
    if task != "pretrainer":
        return vit.build(config, task, overrides)
    arguments = {
        **vit.body_arguments(config),
        "mask_ratio": config.get_probability("mask_ratio", 0.75),
        "decoder_num_layers": config.get_num_blocks("decoder_num_hidden_layers", 8),
        "decoder_hidden_dim": config.get_size("decoder_hidden_size", 512),
        "decoder_num_heads": config.get_size("decoder_num_attention_heads", 16),
        "decoder_mlp_dim": config.get_size("decoder_intermediate_size", 2048),
    }
    return tasks.call_builders([(build_mae, arguments)], overrides)


def _find_task(model):
    return "pretrainer" if "masking" in layers_by_name(model) else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    block = layers["decoder_block_0"]
    return {
        **vit.body_config(model),
        "mask_ratio": layers["masking"].mask_ratio,
        # An option of the loss, unknown to the model: the default of
        # `MaskedPatchLoss`, which is the better target in He et al. 2022, section 3.
        "norm_pix_loss": True,
        "decoder_hidden_size": layers["decoder_embedding"].units,
        "decoder_num_hidden_layers": len(numbered_names(layers, "decoder_block_")),
        "decoder_num_attention_heads": block.num_heads,
        "decoder_intermediate_size": block.mlp_dim,
    }


def _weights(model) -> list[Weight]:
    layers = layers_by_name(model)
    if "masking" not in layers:
        return vit.list_weights(model)
    positions = layers["decoder_position_embedding"]
    return [
        *vit.body_weights(model, "vit."),
        *mapping.dense("decoder.decoder_embed", layers["decoder_embedding"]),
        mapping.same("decoder.mask_token", layers["unmasking"].token),
        vit.position_table("decoder.decoder_pos_embed", positions, model, 1),
        *vit.block_weights(model, "decoder_block_", "decoder.decoder_encoder.layer"),
        *mapping.norm("decoder.decoder_norm", layers["decoder_norm"]),
        *mapping.dense("decoder.decoder_pred", layers["decoder_prediction"]),
    ]


VIT_MAE = Family(
    model_type="vit_mae",
    architectures={"ViTMAEForPreTraining": "pretrainer", "ViTMAEModel": "encoder"},
    tasks=("pretrainer", *tasks.IMAGE_TASKS),
    prefix="vit.",
    heads=("decoder.", "classifier."),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    # Published files have the first, those that transformers 5 writes the second.
    renames=(
        (r"^decoder\.decoder_layers\.", "decoder.decoder_encoder.layer."),
        *vit.RENAMES,
    ),
    modules=vit.MODULES,
)
