"""BERT and RoBERTa checkpoints.

Both bodies are named alike, and their heads are not. The biases of a tied output have
two keys in a file, of which one is read.
"""

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models import bert, roberta
from keras_attn.models.checkpoints.mapping import (
    ACTIVATIONS,
    Family,
    Weight,
    activation_name,
    call_builders,
    dense,
    fused,
    get_choice,
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
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "tie_word_embeddings": (True,),
}
# RoBERTa's positions begin behind the id of the padding.
_ROBERTA_PADDING = 1
_ROBERTA_FIRST_POSITION = _ROBERTA_PADDING + 1


def _encoder_arguments(config):
    require(config, _SUPPORTED)
    return {
        "vocabulary_size": get_size(config, "vocab_size", 30_522),
        "num_layers": get_num_blocks(config, "num_hidden_layers", 12),
        "hidden_dim": get_size(config, "hidden_size", 768),
        "num_heads": get_size(config, "num_attention_heads", 12),
        "mlp_dim": get_size(config, "intermediate_size", 3072),
        "activation": get_choice(config, "hidden_act", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": get_epsilon(config, "layer_norm_eps", 1e-12),
        "dropout": get_probability(config, "hidden_dropout_prob", 0.1),
        "attention_dropout": get_probability(
            config, "attention_probs_dropout_prob", 0.1
        ),
    }


def _bert_arguments(config):
    return {
        **_encoder_arguments(config),
        "max_sequence_length": get_size(config, "max_position_embeddings", 512),
        "num_segments": get_size(config, "type_vocab_size", 2),
    }


def _roberta_arguments(config):
    require(config, {"pad_token_id": (_ROBERTA_PADDING,), "type_vocab_size": (1, None)})
    positions = get_size(config, "max_position_embeddings", 512)
    if positions <= _ROBERTA_FIRST_POSITION:
        raise ValueError(
            "`max_position_embeddings` in config.json must be above "
            f"{_ROBERTA_FIRST_POSITION}, where RoBERTa's positions begin. "
            f"Received: max_position_embeddings={positions}"
        )
    return {
        **_encoder_arguments(config),
        "max_sequence_length": positions - _ROBERTA_FIRST_POSITION,
    }


def _head_arguments(config, task):
    if task not in ("classifier", "token_classifier"):
        return {}
    rate = "classifier_dropout"
    if config.get(rate) is None:
        rate = "hidden_dropout_prob"
    return {
        "num_classes": get_num_labels(config),
        "dropout": get_probability(config, rate, 0.1),
    }


def _builder(encoder_builder, encoder_arguments, heads):
    """The `build` of a family, from its builders."""

    def build(config, task, overrides):
        chosen, arguments = [encoder_builder], [encoder_arguments(config)]
        if task != "encoder":
            chosen.append(heads[task])
            arguments.append(_head_arguments(config, task))
        return call_builders(chosen, arguments, overrides)

    return build


def _is_encoder(model) -> bool:
    names = {layer.name for layer in getattr(model, "layers", ())}
    if not {"token_embedding", "segment_embedding", "position_embedding"} <= names:
        return False
    return "block_0" in names and isinstance(
        model.get_layer("block_0"), TransformerEncoderBlock
    )


def _input_names(model):
    inputs = model.input
    return set(inputs) - {"masked_positions"} if isinstance(inputs, dict) else set()


def _task_of(model) -> str | None:
    names = {layer.name for layer in model.layers}
    both = {"masked_lm_logits", "next_sentence"} <= names
    return "pretrainer" if both else head_task(model)


def _bert_task(model):
    with_segments = {"token_ids", "padding_mask", "segment_ids"}
    if _is_encoder(model) and _input_names(model) == with_segments:
        return _task_of(model)
    return None


def _roberta_task(model):
    if _is_encoder(model) and _input_names(model) == {"token_ids", "padding_mask"}:
        return _task_of(model)
    return None


def _config(model) -> dict:
    part = model.get_layer
    block, tokens = part("block_0"), part("token_embedding")
    layers = [layer for layer in model.layers if layer.name.startswith("block_")]
    config = {
        "vocab_size": tokens.input_dim,
        "hidden_size": tokens.output_dim,
        "num_hidden_layers": len(layers),
        "num_attention_heads": block.num_heads,
        "intermediate_size": block.mlp_dim,
        "hidden_act": activation_name(block.activation),
        "layer_norm_eps": block.layer_norm_epsilon,
        "hidden_dropout_prob": part("embeddings_dropout").rate,
        "attention_probs_dropout_prob": block.attention_dropout,
        "max_position_embeddings": part("position_embedding").embeddings.shape[0],
        "type_vocab_size": part("segment_embedding").input_dim,
    }
    if _task_of(model) in ("classifier", "token_classifier"):
        config.update(label_fields(part("classifier").units))
        config["classifier_dropout"] = part("classifier_dropout").rate
    return config


def _roberta_config(model) -> dict:
    ids = {"pad_token_id": _ROBERTA_PADDING, "bos_token_id": 0, "eos_token_id": 2}
    return {**_config(model), **ids}


def _body(model, prefix) -> list[Weight]:
    part = model.get_layer
    names = {layer.name for layer in model.layers}
    start = f"{prefix}embeddings"
    weights = [
        same(f"{start}.word_embeddings.weight", part("token_embedding").embeddings),
        same(
            f"{start}.position_embeddings.weight",
            part("position_embedding").embeddings,
        ),
        same(
            f"{start}.token_type_embeddings.weight",
            part("segment_embedding").embeddings,
        ),
        *norm(f"{start}.LayerNorm", part("embeddings_norm")),
    ]
    index = 0
    while f"block_{index}" in names:
        block, start = part(f"block_{index}"), f"{prefix}encoder.layer.{index}"
        attention, feed_forward = block.attention, block.feed_forward
        weights += [
            *fused(
                f"{start}.attention.self",
                ("query", "key", "value"),
                attention.query_key_value_kernel,
                attention.query_key_value_bias,
            ),
            *linear(
                f"{start}.attention.output.dense",
                attention.output_kernel,
                attention.output_bias,
            ),
            *norm(f"{start}.attention.output.LayerNorm", block.attention_norm),
            *dense(f"{start}.intermediate.dense", feed_forward.expand),
            *dense(f"{start}.output.dense", feed_forward.contract),
            *norm(f"{start}.output.LayerNorm", block.feed_forward_norm),
        ]
        index += 1
    if "pooler" in names:
        weights += dense(f"{prefix}pooler.dense", part("pooler"))
    return weights


def _bert_weights(model):
    named = {
        "masked_lm_transform": "cls.predictions.transform.dense",
        "masked_lm_norm": "cls.predictions.transform.LayerNorm",
        "masked_lm_logits": "cls.predictions.bias",
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
        "span": "qa_outputs",
    }
    return _body(model, "bert.") + head_weights(model, named)


def _roberta_weights(model):
    names = {layer.name for layer in model.layers}
    has_hidden = "classifier_hidden" in names
    named = {
        "masked_lm_transform": "lm_head.dense",
        "masked_lm_norm": "lm_head.layer_norm",
        "masked_lm_logits": "lm_head.bias",
        # No class of transformers has it: always fresh, and never saved.
        "next_sentence": "seq_relationship",
        "classifier_hidden": "classifier.dense",
        "classifier": "classifier.out_proj" if has_hidden else "classifier",
        "span": "qa_outputs",
    }
    return _body(model, "roberta.") + head_weights(model, named)


_BERT_HEADS = {
    "masked_lm": bert.build_bert_masked_lm,
    "pretrainer": bert.build_bert_pretrainer,
    "next_sentence": bert.build_bert_next_sentence,
    "classifier": bert.build_bert_classifier,
    "token_classifier": bert.build_bert_token_classifier,
    "span_qa": bert.build_bert_span_qa,
    "sentence_encoder": bert.build_bert_sentence_encoder,
}
_ROBERTA_HEADS = {
    "masked_lm": roberta.build_roberta_masked_lm,
    "next_sentence": roberta.build_roberta_next_sentence,
    "classifier": roberta.build_roberta_classifier,
    "token_classifier": roberta.build_roberta_token_classifier,
    "span_qa": roberta.build_roberta_span_qa,
    "sentence_encoder": roberta.build_roberta_sentence_encoder,
}
_RENAMES = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
)
_BERT_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_ROBERTA_TIES = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
_BERT_CLASSES = {
    "BertModel": "encoder",
    "BertForMaskedLM": "masked_lm",
    "BertForPreTraining": "pretrainer",
    "BertForNextSentencePrediction": "next_sentence",
    "BertForSequenceClassification": "classifier",
    "BertForTokenClassification": "token_classifier",
    "BertForQuestionAnswering": "span_qa",
}
_ROBERTA_CLASSES = {
    "RobertaModel": "encoder",
    "RobertaForMaskedLM": "masked_lm",
    "RobertaForSequenceClassification": "classifier",
    "RobertaForTokenClassification": "token_classifier",
    "RobertaForQuestionAnswering": "span_qa",
}

BERT = Family(
    model_type="bert",
    architectures=_BERT_CLASSES,
    saved_as={
        **{task: name for name, task in _BERT_CLASSES.items()},
        "sentence_encoder": "BertModel",
    },
    tasks=("encoder", *_BERT_HEADS),
    bare="BertModel",
    prefix="bert.",
    heads=("bert.pooler.", "cls.", "classifier.", "qa_outputs."),
    build=_builder(bert.build_bert, _bert_arguments, _BERT_HEADS),
    task_of=_bert_task,
    config=_config,
    weights=_bert_weights,
    buffers=(r"bert\.embeddings\.position_ids",),
    tied={"masked_lm": _BERT_TIES, "pretrainer": _BERT_TIES},
    renames=_RENAMES,
)
ROBERTA = Family(
    model_type="roberta",
    architectures=_ROBERTA_CLASSES,
    saved_as={
        **{task: name for name, task in _ROBERTA_CLASSES.items()},
        "sentence_encoder": "RobertaModel",
    },
    tasks=("encoder", *_ROBERTA_HEADS),
    bare="RobertaModel",
    prefix="roberta.",
    heads=(
        "roberta.pooler.",
        "lm_head.",
        "classifier.",
        "qa_outputs.",
        "seq_relationship.",
    ),
    build=_builder(roberta.build_roberta, _roberta_arguments, _ROBERTA_HEADS),
    task_of=_roberta_task,
    config=_roberta_config,
    weights=_roberta_weights,
    buffers=(r"roberta\.embeddings\.(position_ids|token_type_ids)",),
    tied={"masked_lm": _ROBERTA_TIES},
    renames=_RENAMES,
)
