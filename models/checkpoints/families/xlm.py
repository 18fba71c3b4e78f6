"""XLM checkpoints.

Layers of one kind are in a list of their own in a file: all attentions, then all first
norms, and so on. A file may name a position for each place; here they are counted.
"""

from keras_attn.models import xlm as builders
from keras_attn.models.checkpoints.mapping import (
    Family,
    Weight,
    call_builders,
    dense,
    fused,
    get_bool,
    get_epsilon,
    get_num_blocks,
    get_num_labels,
    get_probability,
    get_size,
    head_task,
    head_weights,
    label_fields,
    linear,
    norm,
    require,
    same,
)

# What our encoder computes; anything else would give other outputs, silently.
_SUPPORTED = {
    "is_encoder": (True,),
    "causal": (False,),
    "asm": (False,),
    "use_lang_emb": (True,),
    "tie_word_embeddings": (True,),
}
_SUPPORTED_SUMMARY = {
    "summary_type": ("first",),
    "summary_use_proj": (True,),
    "summary_proj_to_labels": (True,),
    "summary_activation": (None,),
}
_HEADS = {
    "masked_lm": builders.build_xlm_masked_lm,
    "next_sentence": builders.build_xlm_next_sentence,
    "classifier": builders.build_xlm_classifier,
    "token_classifier": builders.build_xlm_token_classifier,
    "span_qa": builders.build_xlm_span_qa,
    "sentence_encoder": builders.build_xlm_sentence_encoder,
}
_CLASSES = {
    "XLMModel": "encoder",
    "XLMWithLMHeadModel": "masked_lm",
    "XLMForSequenceClassification": "classifier",
    "XLMForTokenClassification": "token_classifier",
    "XLMForQuestionAnsweringSimple": "span_qa",
}


def _encoder_arguments(config):
    require(config, _SUPPORTED)
    width = get_size(config, "emb_dim", 2048)
    if get_size(config, "n_langs", 1) == 1:
        raise ValueError(
            "`n_langs` in config.json must be above 1: a model of one language has no "
            "language embeddings. Received: n_langs=1"
        )
    # The published files are older than the name.
    size = "n_words" if "n_words" in config else "vocab_size"
    return {
        "vocabulary_size": get_size(config, size, 30_145),
        "num_languages": get_size(config, "n_langs", 1),
        "num_layers": get_num_blocks(config, "n_layers", 12),
        "hidden_dim": width,
        "num_heads": get_size(config, "n_heads", 16),
        "mlp_dim": 4 * width,
        "max_sequence_length": get_size(config, "max_position_embeddings", 512),
        "activation": "gelu" if get_bool(config, "gelu_activation", True) else "relu",
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_eps", 1e-12),
        "dropout": get_probability(config, "dropout", 0.1),
        "attention_dropout": get_probability(config, "attention_dropout", 0.1),
    }


def _head_arguments(config, task):
    if task == "token_classifier":
        return {
            "num_classes": get_num_labels(config),
            "dropout": get_probability(config, "dropout", 0.1),
        }
    if task != "classifier":
        return {}
    require(config, _SUPPORTED_SUMMARY)
    return {
        "num_classes": get_num_labels(config),
        "dropout": get_probability(config, "summary_first_dropout", 0.1),
    }


def _build(config, task, overrides):
    chosen, arguments = [builders.build_xlm], [_encoder_arguments(config)]
    if task != "encoder":
        chosen.append(_HEADS[task])
        arguments.append(_head_arguments(config, task))
    return call_builders(chosen, arguments, overrides)


def _task_of(model) -> str | None:
    names = {layer.name for layer in getattr(model, "layers", ())}
    if not {"language_embedding", "token_embedding", "block_0"} <= names:
        return None
    return head_task(model)


def _blocks(model):
    return [layer for layer in model.layers if layer.name.startswith("block_")]


def _config(model) -> dict:
    part = model.get_layer
    block, tokens = part("block_0"), part("token_embedding")
    activation = block.activation.__name__
    if block.mlp_dim != 4 * tokens.output_dim or activation not in ("gelu", "relu"):
        raise ValueError(
            "`model` has no counterpart among the xlm classes of transformers, whose "
            "`mlp_dim` is 4 times the width and whose activation is gelu or relu; save "
            "it by `model.save`. Received: "
            f"mlp_dim={block.mlp_dim}, width={tokens.output_dim}, "
            f"activation={activation!r}"
        )
    config = {
        "vocab_size": tokens.input_dim,
        "emb_dim": tokens.output_dim,
        "n_layers": len(_blocks(model)),
        "n_heads": block.num_heads,
        "n_langs": part("language_embedding").input_dim,
        "use_lang_emb": True,
        "max_position_embeddings": part("position_embedding").max_sequence_length,
        "gelu_activation": activation == "gelu",
        "layer_norm_eps": block.layer_norm_epsilon,
        "dropout": part("embeddings_dropout").rate,
        "attention_dropout": block.attention_dropout,
    }
    task = _task_of(model)
    if task in ("classifier", "token_classifier"):
        config.update(label_fields(part("classifier").units))
    if task == "classifier":
        config["summary_first_dropout"] = part("classifier_dropout").rate
    return config


def _weights(model) -> list[Weight]:
    part, prefix = model.get_layer, "transformer."
    weights = [
        same(f"{prefix}embeddings.weight", part("token_embedding").embeddings),
        same(
            f"{prefix}position_embeddings.weight", part("position_embedding").embeddings
        ),
        same(f"{prefix}lang_embeddings.weight", part("language_embedding").embeddings),
        *norm(f"{prefix}layer_norm_emb", part("embeddings_norm")),
    ]
    for index in range(len(_blocks(model))):
        block = part(f"block_{index}")
        attention, feed_forward = block.attention, block.feed_forward
        weights += [
            *fused(
                f"{prefix}attentions.{index}",
                ("q_lin", "k_lin", "v_lin"),
                attention.query_key_value_kernel,
                attention.query_key_value_bias,
            ),
            *linear(
                f"{prefix}attentions.{index}.out_lin",
                attention.output_kernel,
                attention.output_bias,
            ),
            *norm(f"{prefix}layer_norm1.{index}", block.attention_norm),
            *dense(f"{prefix}ffns.{index}.lin1", feed_forward.expand),
            *dense(f"{prefix}ffns.{index}.lin2", feed_forward.contract),
            *norm(f"{prefix}layer_norm2.{index}", block.feed_forward_norm),
        ]
    is_tagger = _task_of(model) == "token_classifier"
    named = {
        "masked_lm_logits": "pred_layer.proj.bias",
        # No class of transformers has it: always fresh, and never saved.
        "next_sentence": "seq_relationship",
        "classifier": "classifier" if is_tagger else "sequence_summary.summary",
        "span": "qa_outputs",
    }
    return weights + head_weights(model, named)


XLM = Family(
    model_type="xlm",
    architectures=_CLASSES,
    saved_as={
        **{task: name for name, task in _CLASSES.items()},
        "sentence_encoder": "XLMModel",
    },
    tasks=("encoder", *_HEADS),
    bare="XLMModel",
    prefix="transformer.",
    heads=(
        "pred_layer.",
        "sequence_summary.",
        "classifier.",
        "qa_outputs.",
        "seq_relationship.",
    ),
    build=_build,
    task_of=_task_of,
    config=_config,
    weights=_weights,
    buffers=(r"transformer\.position_ids",),
    tied={"masked_lm": {"pred_layer.proj.weight": "transformer.embeddings.weight"}},
)
