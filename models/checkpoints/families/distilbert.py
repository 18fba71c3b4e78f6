"""DistilBERT checkpoints."""

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models import bert
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import ACTIVATIONS, activation_name
from keras_attn.models.checkpoints.families.bert import body_weights
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.parts.backbones.distilbert import (
    distilbert,
    distilbert_classifier,
)
from keras_attn.models.parts.functional import numbered_names

_EPSILON = 1e-12  # Not a field of the format.
# From BERT's keys to DistilBERT's.
_KEYS = (
    (r"encoder\.layer", "transformer.layer"),
    (r"attention\.self\.(q|k|v)\w+", r"attention.\1_lin"),
    (r"attention\.output\.dense", "attention.out_lin"),
    (r"attention\.output\.LayerNorm", "sa_layer_norm"),
    (r"intermediate\.dense", "ffn.lin1"),
    (r"output\.dense", "ffn.lin2"),
    (r"output\.LayerNorm", "output_layer_norm"),
)


def _arguments(config):
    config.require({"pruned_heads": ({}, None)})
    return {
        "vocabulary_size": config.get_size("vocab_size", 30_522),
        "max_sequence_length": config.get_size("max_position_embeddings", 512),
        "num_layers": config.get_num_blocks("n_layers", 6),
        "hidden_dim": config.get_size("dim", 768),
        "num_heads": config.get_size("n_heads", 12),
        "mlp_dim": config.get_size("hidden_dim", 3072),
        "activation": config.get_choice("activation", ACTIVATIONS, "gelu"),
        "layer_norm_epsilon": _EPSILON,
        "dropout": config.get_probability("dropout", 0.1),
        "attention_dropout": config.get_probability("attention_dropout", 0.1),
    }


def _head_arguments(config, task):
    arguments = {"name": f"distilbert_{task}"}
    if task == "classifier":
        return arguments | tasks.label_arguments(config, "seq_classif_dropout")
    if task == "token_classifier":
        return arguments | tasks.label_arguments(config, "dropout")
    if task == "span_qa":
        return arguments | {"dropout": config.get_probability("qa_dropout", 0.1)}
    return arguments


def _find_task(model) -> str | None:
    layers = layers_by_name(model)
    block, others = layers.get("block_0"), {"segment_embedding", "language_embedding"}
    if not isinstance(block, TransformerEncoderBlock) or others & set(layers):
        return None
    is_text = {"token_embedding", "position_embedding"} <= set(layers)
    is_equal = not block.norm_first and block.layer_norm_epsilon == _EPSILON
    return tasks.head_task(model) if is_text and is_equal else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    block = layers["block_0"]
    config = {
        **tasks.classifier_fields(layers),
        "vocab_size": layers["token_embedding"].input_dim,
        "max_position_embeddings": layers["position_embedding"].embeddings.shape[0],
        "n_layers": len(numbered_names(layers, "block_")),
        "n_heads": block.num_heads,
        "dim": layers["token_embedding"].output_dim,
        "hidden_dim": block.mlp_dim,
        "activation": activation_name(block.activation),
        "dropout": layers["embeddings_dropout"].rate,
        "attention_dropout": block.attention_dropout,
    }
    if "classifier_hidden" in layers:
        config["seq_classif_dropout"] = layers["classifier_dropout"].rate
    if "span" in layers:
        config["qa_dropout"] = layers["span_dropout"].rate
    return config


def _weights(model) -> list[Weight]:
    named = {
        "masked_lm_transform": "vocab_transform",
        "masked_lm_norm": "vocab_layer_norm",
        "masked_lm_logits": "vocab_projector.bias",
        "classifier_hidden": "pre_classifier",
        "classifier": "classifier",
        "span": "qa_outputs",
    }
    body = mapping.with_keys(body_weights(model, "distilbert."), _KEYS)
    return body + mapping.head_weights(model, named)


# All but the classifier are BERT's.
_HEADS = {
    "masked_lm": bert.build_bert_masked_lm,
    "classifier": distilbert_classifier,
    "token_classifier": bert.build_bert_token_classifier,
    "span_qa": bert.build_bert_span_qa,
    "sentence_encoder": bert.build_bert_sentence_encoder,
}
_CLASSES = {
    "DistilBertModel": "encoder",
    "DistilBertForMaskedLM": "masked_lm",
    "DistilBertForSequenceClassification": "classifier",
    "DistilBertForTokenClassification": "token_classifier",
    "DistilBertForQuestionAnswering": "span_qa",
}

DISTILBERT = tasks.text_family(
    "distilbert",
    _CLASSES,
    (distilbert, _arguments),
    _HEADS,
    _head_arguments,
    prefix="distilbert.",
    head_keys=(
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "pre_classifier.",
        "classifier.",
        "qa_outputs.",
    ),
    find_task=_find_task,
    config=_config,
    weights=_weights,
    buffers=(r"distilbert\.embeddings\.position_ids",),
    tied={
        "masked_lm": {
            "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"
        }
    },
)
