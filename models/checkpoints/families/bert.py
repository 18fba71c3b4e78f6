"""BERT checkpoints; RoBERTa's have the same body (`roberta.py`)."""

from keras_attn.layers import TransformerEncoderBlock
from keras_attn.models import bert as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names

# What our encoder computes; other values would silently change the outputs.
_SUPPORTED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}


def encoder_arguments(config):
    """The arguments that `build_bert` and `build_roberta` share."""
    config.require(_SUPPORTED)
    return {
        **tasks.block_arguments(config),
        "vocabulary_size": config.get_size("vocab_size", 30_522),
        **tasks.dropout_arguments(config, 0.1),
    }


def arguments(config):
    """The arguments of `build_bert`."""
    return {
        **encoder_arguments(config),
        "max_sequence_length": config.get_size("max_position_embeddings", 512),
        "num_segments": config.get_size("type_vocab_size", 2),
    }


def head_arguments(config, task):
    """The arguments of the builders of BERT's and RoBERTa's heads."""
    if task not in ("classifier", "token_classifier"):
        return {}
    return tasks.label_arguments(config, "classifier_dropout", "hidden_dropout_prob")


def make_find_task(input_names):
    """The `find_task` of a family whose models have these inputs.

    Args:
        input_names: Names of the inputs; a model may also have `masked_positions`.
    """

    def find_task(model):
        layers = layers_by_name(model)
        embeddings = {"token_embedding", "segment_embedding", "position_embedding"}
        if not embeddings <= set(layers) or not isinstance(model.input, dict):
            return None
        is_encoder = isinstance(layers.get("block_0"), TransformerEncoderBlock)
        if not is_encoder or set(model.input) - {"masked_positions"} != input_names:
            return None
        return _find_task(model)

    return find_task


def _find_task(model) -> str | None:
    is_pretrainer = {"masked_lm_logits", "next_sentence"} <= set(layers_by_name(model))
    return "pretrainer" if is_pretrainer else tasks.head_task(model)


def body_config(model) -> dict:
    """The fields of `config.json` of an encoder."""
    layers = layers_by_name(model)
    return {
        **tasks.block_fields(layers),
        "attention_probs_dropout_prob": layers["block_0"].attention_dropout,
        "vocab_size": layers["token_embedding"].input_dim,
        "hidden_dropout_prob": layers["embeddings_dropout"].rate,
        "max_position_embeddings": layers["position_embedding"].embeddings.shape[0],
        "type_vocab_size": layers["segment_embedding"].input_dim,
    }


def make_config(model) -> dict:
    """The fields of `config.json` that BERT and RoBERTa share."""
    layers = layers_by_name(model)
    config = {**body_config(model), **tasks.classifier_fields(layers)}
    if "classifier" in layers:
        config["classifier_dropout"] = layers["classifier_dropout"].rate
    return config


def body_weights(model, prefix: str) -> list[Weight]:
    """The weights of the encoder, whose keys begin with `prefix`."""
    layers = layers_by_name(model)
    named = {
        "token_embedding": f"{prefix}embeddings.word_embeddings.weight",
        "position_embedding": f"{prefix}embeddings.position_embeddings.weight",
        "segment_embedding": f"{prefix}embeddings.token_type_embeddings.weight",
    }
    weights = mapping.tables(layers, named)
    weights += mapping.norm(f"{prefix}embeddings.LayerNorm", layers["embeddings_norm"])
    for index, name in enumerate(numbered_names(layers, "block_")):
        weights += block_weights(layers[name], f"{prefix}encoder.layer.{index}")
    if "pooler" in layers:
        weights += mapping.dense(f"{prefix}pooler.dense", layers["pooler"])
    return weights


def block_weights(block, key: str) -> list[Weight]:
    """The weights of a block, whose keys begin with `key`."""
    return [
        *mapping.query_key_value(f"{key}.attention.self", block.attention),
        *mapping.attention_output(f"{key}.attention.output.dense", block.attention),
        *mapping.norm(f"{key}.attention.output.LayerNorm", block.attention_norm),
        *mapping.dense(f"{key}.intermediate.dense", block.feed_forward.expand),
        *mapping.dense(f"{key}.output.dense", block.feed_forward.contract),
        *mapping.norm(f"{key}.output.LayerNorm", block.feed_forward_norm),
    ]


# The layers of the head for masked words, and their keys.
MASKED_LM = {
    "masked_lm_transform": "cls.predictions.transform.dense",
    "masked_lm_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm_logits": "cls.predictions.bias",
}


def _weights(model):
    named = {
        **MASKED_LM,
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
        "span": "qa_outputs",
    }
    return body_weights(model, "bert.") + mapping.head_weights(model, named)


_HEADS = tasks.heads_of(builders, "bert")
_CLASSES = {
    "BertModel": "encoder",
    "BertForMaskedLM": "masked_lm",
    "BertForPreTraining": "pretrainer",
    "BertForNextSentencePrediction": "next_sentence",
    "BertForSequenceClassification": "classifier",
    "BertForTokenClassification": "token_classifier",
    "BertForQuestionAnswering": "span_qa",
}
# The bias of a tied output has two keys in a file, one of which is read.
TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
OLD_NORM_KEYS = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
)

BERT = tasks.text_family(
    "bert",
    _CLASSES,
    (builders.build_bert, arguments),
    _HEADS,
    head_arguments,
    prefix="bert.",
    head_keys=("bert.pooler.", "cls.", "classifier.", "qa_outputs."),
    find_task=make_find_task({"token_ids", "padding_mask", "segment_ids"}),
    config=make_config,
    weights=_weights,
    buffers=(r"bert\.embeddings\.position_ids",),
    tied={"masked_lm": TIES, "pretrainer": TIES},
    renames=OLD_NORM_KEYS,
)
