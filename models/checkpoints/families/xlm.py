"""XLM checkpoints.

A file lists the layers by kind: all attentions, then all first norms, and so on.
"""

from keras_attn.models import xlm as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names

# What our encoder computes; other values would silently change the outputs.
_SUPPORTED = {
    "is_encoder": (True,),
    "causal": (False,),
    "asm": (False,),
    "use_lang_emb": (True,),
}
_SUPPORTED_SUMMARY = {
    "summary_type": ("first",),
    "summary_use_proj": (True,),
    "summary_proj_to_labels": (True,),
    "summary_activation": (None,),
}
_HEADS = tasks.heads_of(builders, "xlm")
_CLASSES = {
    "XLMModel": "encoder",
    "XLMWithLMHeadModel": "masked_lm",
    "XLMForSequenceClassification": "classifier",
    "XLMForTokenClassification": "token_classifier",
    "XLMForQuestionAnsweringSimple": "span_qa",
}


def _encoder_arguments(config):
    config.require(_SUPPORTED)
    width = config.get_size("emb_dim", 2048)
    if config.get_size("n_langs", 1) == 1:
        reason = "our model has language embeddings, and a monolingual model has none"
        raise config.error("n_langs", f"at least 2: {reason}", 1)
    # The published files use the older name.
    size = "n_words" if "n_words" in config else "vocab_size"
    return {
        "vocabulary_size": config.get_size(size, 30_145),
        "num_languages": config.get_size("n_langs", 1),
        "num_layers": config.get_num_blocks("n_layers", 12),
        "hidden_dim": width,
        "num_heads": config.get_size("n_heads", 16),
        "mlp_dim": 4 * width,
        "max_sequence_length": config.get_size("max_position_embeddings", 512),
        "activation": "gelu" if config.get_bool("gelu_activation", True) else "relu",
        "layer_norm_epsilon": config.get_epsilon("layer_norm_eps", 1e-12),
        "dropout": config.get_probability("dropout", 0.1),
        "attention_dropout": config.get_probability("attention_dropout", 0.1),
    }


def _head_arguments(config, task):
    if task == "token_classifier":
        return tasks.label_arguments(config, "dropout")
    if task != "classifier":
        return {}
    config.require(_SUPPORTED_SUMMARY)
    return tasks.label_arguments(config, "summary_first_dropout")


def _find_task(model) -> str | None:
    needed = {"language_embedding", "token_embedding", "block_0"}
    return tasks.head_task(model) if needed <= set(layers_by_name(model)) else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    block, tokens = layers["block_0"], layers["token_embedding"]
    activation = block.activation.__name__
    if block.mlp_dim != 4 * tokens.output_dim or activation not in ("gelu", "relu"):
        raise ValueError(
            "`model` has no counterpart among the xlm classes of transformers, whose "
            "`mlp_dim` is 4 times the width and whose activation is gelu or relu; save "
            "it with `model.save`. Received: "
            f"mlp_dim={block.mlp_dim}, width={tokens.output_dim}, "
            f"activation={activation!r}"
        )
    config = {
        **tasks.classifier_fields(layers),
        "vocab_size": tokens.input_dim,
        "emb_dim": tokens.output_dim,
        "n_layers": len(numbered_names(layers, "block_")),
        "n_heads": block.num_heads,
        "n_langs": layers["language_embedding"].input_dim,
        "use_lang_emb": True,
        "max_position_embeddings": layers["position_embedding"].max_sequence_length,
        "gelu_activation": activation == "gelu",
        "layer_norm_eps": block.layer_norm_epsilon,
        "dropout": layers["embeddings_dropout"].rate,
        "attention_dropout": block.attention_dropout,
    }
    if _find_task(model) == "classifier":
        config["summary_first_dropout"] = layers["classifier_dropout"].rate
    return config


def _weights(model) -> list[Weight]:
    layers, prefix = layers_by_name(model), "transformer."
    named = {
        "token_embedding": f"{prefix}embeddings.weight",
        "position_embedding": f"{prefix}position_embeddings.weight",
        "language_embedding": f"{prefix}lang_embeddings.weight",
    }
    weights = mapping.tables(layers, named)
    weights += mapping.norm(f"{prefix}layer_norm_emb", layers["embeddings_norm"])
    for index, name in enumerate(numbered_names(layers, "block_")):
        block, key = layers[name], f"{prefix}attentions.{index}"
        weights += [
            *mapping.query_key_value(key, block.attention, ("q_lin", "k_lin", "v_lin")),
            *mapping.attention_output(f"{key}.out_lin", block.attention),
            *mapping.norm(f"{prefix}layer_norm1.{index}", block.attention_norm),
            *mapping.dense(f"{prefix}ffns.{index}.lin1", block.feed_forward.expand),
            *mapping.dense(f"{prefix}ffns.{index}.lin2", block.feed_forward.contract),
            *mapping.norm(f"{prefix}layer_norm2.{index}", block.feed_forward_norm),
        ]
    is_tagger = _find_task(model) == "token_classifier"
    named = {
        "masked_lm_logits": "pred_layer.proj.bias",
        # transformers has no such class: always newly initialized and never saved.
        "next_sentence": "seq_relationship",
        "classifier": "classifier" if is_tagger else "sequence_summary.summary",
        "span": "qa_outputs",
    }
    return weights + mapping.head_weights(model, named)


XLM = tasks.text_family(
    "xlm",
    _CLASSES,
    (builders.build_xlm, _encoder_arguments),
    _HEADS,
    _head_arguments,
    prefix="transformer.",
    head_keys=(
        "pred_layer.",
        "sequence_summary.",
        "classifier.",
        "qa_outputs.",
        "seq_relationship.",
        # Of multiple choice, which we don't build.
        "logits_proj.",
    ),
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=(r"transformer\.position_ids",),
    tied={"masked_lm": {"pred_layer.proj.weight": "transformer.embeddings.weight"}},
)
