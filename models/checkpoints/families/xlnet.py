"""XLNet checkpoints.

In a file, the attention kernels have one axis for the heads and one for the units of a
head; ours have one axis for both. Old field names, such as `n_token`, are not read.
"""

from keras_attn.layers.blocks.xlnet_block import XLNetBlock
from keras_attn.models import xlnet as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, activation_name
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names

# What our encoder computes; other values would silently change the outputs.
_SUPPORTED = {"attn_type": ("bi",), "bi_data": (False,), "untie_r": (True,)}
# Bound of a distance between two tokens, far above the length of any text.
MAX_DISTANCE = 1_000_000
_SUPPORTED_SUMMARY = {
    "summary_type": ("last",),
    "summary_use_proj": (True,),
    "summary_activation": ("tanh",),
}
_HEADS = {
    "permutation_lm": builders.build_xlnet_permutation_lm,
    "masked_lm": builders.build_xlnet_permutation_lm,
    **tasks.heads_of(builders, "xlnet"),
}
_CLASSES = {
    "XLNetModel": "encoder",
    "XLNetLMHeadModel": "permutation_lm",
    "XLNetForSequenceClassification": "classifier",
    "XLNetForTokenClassification": "token_classifier",
    "XLNetForQuestionAnsweringSimple": "span_qa",
}


def _encoder_arguments(config):
    config.require(_SUPPORTED)
    width, num_heads = config.get_size("d_model", 1024), config.get_size("n_head", 16)
    config.require({"d_head": (width // num_heads, None)})
    clamp = config.get("clamp_len", -1)
    dropout = config.get_probability("dropout", 0.1)
    return {
        "vocabulary_size": config.get_size("vocab_size", 32_000),
        "num_layers": config.get_num_blocks("n_layer", 24),
        "hidden_dim": width,
        "num_heads": num_heads,
        "mlp_dim": config.get_size("d_inner", 4096),
        "max_distance": None
        if clamp in (-1, 0)
        else config.get_size("clamp_len", -1, MAX_DISTANCE),
        "activation": config.get_choice("ff_activation", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": config.get_epsilon("layer_norm_eps", 1e-12),
        "dropout": dropout,
        "attention_dropout": dropout,
    }


def _head_arguments(config, task):
    if task == "masked_lm":
        return {"two_stream": False}
    if task == "token_classifier":
        return {"num_classes": config.get_num_labels()}
    if task != "classifier":
        return {}
    config.require(_SUPPORTED_SUMMARY)
    return tasks.label_arguments(config, "summary_last_dropout")


def _find_task(model) -> str | None:
    if not isinstance(layers_by_name(model).get("block_0"), XLNetBlock):
        return None
    task = tasks.head_task(model)
    if task == "masked_lm" and "target_mapping" in model.input:
        return "permutation_lm"
    return task


def _config(model) -> dict:
    layers = layers_by_name(model)
    block, tokens = layers["block_0"], layers["token_embedding"]
    config = {
        **tasks.classifier_fields(layers),
        "vocab_size": tokens.input_dim,
        "d_model": tokens.output_dim,
        "d_head": block.attention.key_dim,
        "n_layer": len(numbered_names(layers, "block_")),
        "n_head": block.num_heads,
        "d_inner": block.mlp_dim,
        "ff_activation": activation_name(block.activation),
        "layer_norm_eps": block.layer_norm_epsilon,
        "dropout": layers["embeddings_dropout"].rate,
        "clamp_len": layers["relative_positions"].max_distance or -1,
        "mem_len": None,
        "attn_type": "bi",
        "bi_data": False,
    }
    if "segment_memory" in layers:
        config["mem_len"] = layers["segment_memory"].memory_length
    if "classifier" in layers:
        config["summary_last_dropout"] = layers["classifier_dropout"].rate
    return config


def _attention(name, layer) -> list[Weight]:
    heads = (layer.num_heads, layer.key_dim)
    biases = {
        "r_w_bias": layer.content_bias,
        "r_r_bias": layer.position_bias,
        "r_s_bias": layer.segment_bias,
        "seg_embed": layer.segment_embedding,
    }
    kernels = {
        "q": layer.query.kernel,
        "k": layer.key.kernel,
        "v": layer.value.kernel,
        "r": layer.position.kernel,
    }
    weights = [
        mapping.same(f"{name}.{key}", variable) for key, variable in biases.items()
    ]
    for key, variable in kernels.items():
        shape = (variable.shape[0], *heads)
        weights.append(mapping.reshaped(f"{name}.{key}", variable, shape))
    weights.append(
        Weight(
            (f"{name}.o",),
            layer.output_projection.kernel,
            lambda array: array.reshape(len(array), -1).T,
            lambda array: (array.T.reshape(-1, *heads),),
        )
    )
    return weights


def _weights(model) -> list[Weight]:
    layers, prefix = layers_by_name(model), "transformer."
    words, mask = (layers[f"{x}_embedding"].embeddings for x in ("token", "target"))
    weights = [
        mapping.same(f"{prefix}word_embedding.weight", words),
        mapping.reshaped(f"{prefix}mask_emb", mask, (1, *mask.shape)),
    ]
    for index, name in enumerate(numbered_names(layers, "block_")):
        block, key = layers[name], f"{prefix}layer.{index}"
        weights += [
            *_attention(f"{key}.rel_attn", block.attention),
            *mapping.norm(f"{key}.rel_attn.layer_norm", block.attention_norm),
            *mapping.dense(f"{key}.ff.layer_1", block.feed_forward.expand),
            *mapping.dense(f"{key}.ff.layer_2", block.feed_forward.contract),
            *mapping.norm(f"{key}.ff.layer_norm", block.feed_forward_norm),
        ]
    has_hidden = "classifier_hidden" in layers
    named = {
        "masked_lm_logits": "lm_loss.bias",
        # transformers has no such class: always newly initialized and never saved.
        "next_sentence": "seq_relationship",
        "classifier_hidden": "sequence_summary.summary",
        "classifier": "logits_proj" if has_hidden else "classifier",
        "span": "qa_outputs",
    }
    return weights + mapping.head_weights(model, named)


_TIES = {"lm_loss.weight": "transformer.word_embedding.weight"}

XLNET = tasks.text_family(
    "xlnet",
    _CLASSES,
    (builders.build_xlnet, _encoder_arguments),
    _HEADS,
    _head_arguments,
    prefix="transformer.",
    head_keys=(
        "lm_loss.",
        "sequence_summary.",
        "logits_proj.",
        "classifier.",
        "qa_outputs.",
        "seq_relationship.",
        # The question-answering head with beam search, which we don't build.
        "start_logits.",
        "end_logits.",
        "answer_class.",
    ),
    also_saved_as={"masked_lm": "XLNetLMHeadModel"},
    find_task=_find_task,
    config=_config,
    weights=_weights,
    tied={"permutation_lm": _TIES, "masked_lm": _TIES},
)
