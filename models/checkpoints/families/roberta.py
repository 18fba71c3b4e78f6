"""RoBERTa checkpoints: the body has BERT's keys, the heads have their own."""

from dataclasses import replace

from keras_attn.models import roberta as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families.bert import (
    OLD_NORM_KEYS,
    body_weights,
    encoder_arguments,
    head_arguments,
    make_config,
    make_find_task,
)
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name

# RoBERTa's positions begin after the id of the padding.
_PADDING = 1
_FIRST_POSITION = _PADDING + 1


def _arguments(config):
    config.require({"pad_token_id": (_PADDING,)})
    positions = config.get_size("max_position_embeddings", 512)
    if positions <= _FIRST_POSITION:
        expected = f"above {_FIRST_POSITION}, the first position of RoBERTa"
        raise config.error("max_position_embeddings", expected, positions)
    return {
        **encoder_arguments(config),
        "max_sequence_length": positions - _FIRST_POSITION,
    }


def _config(model) -> dict:
    ids = {"pad_token_id": _PADDING, "bos_token_id": 0, "eos_token_id": 2}
    return {**make_config(model), **ids}


def _weights(model):
    has_hidden = "classifier_hidden" in layers_by_name(model)
    named = {
        "masked_lm_transform": "lm_head.dense",
        "masked_lm_norm": "lm_head.layer_norm",
        "masked_lm_logits": "lm_head.bias",
        # transformers has no such class: always newly initialized and never saved.
        "next_sentence": "seq_relationship",
        "classifier_hidden": "classifier.dense",
        "classifier": "classifier.out_proj" if has_hidden else "classifier",
        "span": "qa_outputs",
    }
    body = map(_of_first_segment, body_weights(model, "roberta."))
    return [*body, *mapping.head_weights(model, named)]


def _of_first_segment(weight: Weight) -> Weight:
    """The same weight; if a file has several segments, the model has the first.

    transformers also uses the first segment unless it is given `token_type_ids`.
    """
    if not weight.keys[0].endswith(".token_type_embeddings.weight"):
        return weight
    _, width = weight.variable.shape
    return replace(
        weight,
        read=lambda table: table[:1],
        accepts=lambda shape: len(shape) == 2 and shape[0] > 0 and shape[1] == width,
    )


_HEADS = tasks.heads_of(builders, "roberta")
_CLASSES = {
    "RobertaModel": "encoder",
    "RobertaForMaskedLM": "masked_lm",
    "RobertaForSequenceClassification": "classifier",
    "RobertaForTokenClassification": "token_classifier",
    "RobertaForQuestionAnswering": "span_qa",
}
# The bias of a tied output has two keys in a file, one of which is read.
_TIES = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}

ROBERTA = tasks.text_family(
    "roberta",
    _CLASSES,
    (builders.build_roberta, _arguments),
    _HEADS,
    head_arguments,
    prefix="roberta.",
    head_keys=(
        "roberta.pooler.",
        "lm_head.",
        "classifier.",
        "qa_outputs.",
        "seq_relationship.",
    ),
    find_task=make_find_task({"token_ids", "padding_mask"}),
    config=_config,
    weights=_weights,
    buffers=(r"roberta\.embeddings\.(position_ids|token_type_ids)",),
    tied={"masked_lm": _TIES},
    renames=OLD_NORM_KEYS,
)
