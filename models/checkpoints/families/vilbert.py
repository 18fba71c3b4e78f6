"""ViLBERT checkpoints in the authors' naming, and its text stream from a BERT's.

The authors' files are pickled: read one with PyTorch, save its tensors as safetensors,
and put the authors' configuration beside it as `config.json`.
"""

import dataclasses
import functools
from typing import Any

import keras

from keras_attn.files.reading import shown
from keras_attn.models import vilbert as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import MAX_CLASSES
from keras_attn.models.checkpoints.families import bert
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names

_FUSIONS = {"mul": "multiply", "sum": "add"}
# What our model computes; other values would silently change the outputs.
_SUPPORTED = {
    "model": ("bert",),
    "task_specific_tokens": (False,),
    "dynamic_attention": (False,),
    "with_coattention": (True,),
    "use_co_attention_mask": (False,),
}
# The authors' class of a model for tasks has all heads at once.
_TASKS_CLASS = "VILBertForVLTasks"
_CLASSES = {
    "BertModel": "encoder",
    "BertForMultiModalPreTraining": "pretrainer",
    _TASKS_CLASS: "classifier",
}
_HEADS = tasks.heads_of(builders, "vilbert")
# The head of VQA of 2019, weight-normed.
_OLD_HEAD = "vil_prediction.main"
HEAD_KEYS = ("cls.", "vil_", "vision_logit.", "linguisic_")
# Dense layers that the authors' code has and never calls.
UNCALLED = r"bert\.encoder\.c_layer\.\d+\.biOutput\.q_dense[12]\.(weight|bias)"
TIES = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
_INPUTS = set(builders.CARDS["base"].inputs)
_ANSWERS = 3129  # Of VQA; the authors' configurations do not say it.


def is_vilbert(config) -> bool:
    """Whether a `config.json` is the authors', which names no `model_type`."""
    return "v_biattention_id" in config and "model_type" not in config


def arguments(config) -> dict[str, Any]:
    """The arguments that `build_vilbert` and `build_vln_bert` share."""
    config.require(_SUPPORTED)
    for text, region, default in (
        ("hidden_act", "v_hidden_act", "gelu"),
        ("hidden_dropout_prob", "v_hidden_dropout_prob", 0.1),
        ("attention_probs_dropout_prob", "v_attention_probs_dropout_prob", 0.1),
    ):
        one, other = config.get(text, default), config.get(region, default)
        if one != other:
            raise ValueError(
                f"`{text}` and `{region}` in config.json must be the same. Received: "
                f"{shown(one)} and {shown(other)}"
            )
    return {
        **bert.arguments(config),
        "feature_dim": config.get_size("v_feature_size", 2048),
        "region_dim": config.get_size("v_hidden_size", 1024),
        "num_region_layers": config.get_num_blocks("v_num_hidden_layers", 6),
        "num_region_heads": config.get_size("v_num_attention_heads", 8),
        "region_mlp_dim": config.get_size("v_intermediate_size", 1024),
        "co_attention_dim": config.get_size("bi_hidden_size", 1024),
        "num_co_attention_heads": config.get_size("bi_num_attention_heads", 8),
        "text_co_layers": _blocks(config, "t_biattention_id"),
        "region_co_layers": _blocks(config, "v_biattention_id"),
    }


def _blocks(config, name) -> tuple[int, ...]:
    """The blocks of a stream that co-attention precedes."""
    blocks = config.get(name)
    if not isinstance(blocks, list) or not all(
        isinstance(block, int) and not isinstance(block, bool) for block in blocks
    ):
        raise config.error(name, "a list of blocks, integers from 0", blocks)
    if len(blocks) > config.max_blocks:
        raise ValueError(
            f"`{name}` in config.json must be at most {config.max_blocks} blocks, as "
            f"the weight files have. Received: {len(blocks)} blocks"
        )
    return tuple(blocks)


def head_arguments(config, task) -> dict[str, Any]:
    """The arguments of the builders of the heads, after the encoder."""
    # Not the authors' field: their code has no other probability than the default.
    is_given = config.get("classifier_dropout") is not None
    rate = config.get_probability("classifier_dropout", 0.1) if is_given else 0.1
    arguments: dict[str, Any] = {"dropout": rate}
    if task == "referring":
        return arguments
    arguments["fusion"] = config.get_choice("fusion_method", _FUSIONS, "mul")
    if task == "pretrainer":
        classes = config.get_size("v_target_size", 1601, MAX_CLASSES)
        arguments["num_region_classes"] = classes
    if task == "classifier":
        has_labels = "id2label" in config or "num_labels" in config
        arguments["num_classes"] = config.get_num_labels() if has_labels else _ANSWERS
        arguments["hidden_dim"] = 2 * config.get_size("bi_hidden_size", 1024)
    return arguments


def _build(config, task, overrides, **of_classifier):
    options = of_classifier if task == "classifier" else {}
    return _called(arguments(config), config, task, overrides, **options)


def _fields_for(keys) -> dict[str, Any]:
    """The head of VQA has other layers in the authors' first code."""
    is_old = any(f"{_OLD_HEAD}.0." in key for key in keys)
    return {"build": functools.partial(_build, head="relu")} if is_old else {}


def _called(arguments, config, task, overrides, **options):
    calls: list = [(builders.build_vilbert, arguments)]
    if task != "encoder":
        calls.append((_HEADS[task], head_arguments(config, task) | options))
    return tasks.call_builders(calls, overrides)


def _unread(config, task) -> tuple[str, ...]:
    """After the last co-attention, regions do not depend on words."""
    if task != "referring":
        return ()
    last = max(_blocks(config, "t_biattention_id"), default=0)
    blocks = range(last, config.get_num_blocks("num_hidden_layers", 12))
    layers = (f"bert.encoder.layer.{index}." for index in blocks)
    return ("bert.t_pooler.", "bert.v_pooler.", *layers)


def _default_task(config) -> str:
    classes = config.get("architectures", ["BertForMultiModalPreTraining"])
    if not isinstance(classes, list) or classes[:1] not in ([x] for x in _CLASSES):
        raise ValueError(
            f"`architectures` in config.json must name one of {', '.join(_CLASSES)}; "
            "otherwise pass a `task`. Received: "
            f"architectures={shown(classes)}"
        )
    if classes[0] != _TASKS_CLASS:
        return _CLASSES[classes[0]]
    return config.get_choice(
        "finetuning_task", {task: task for task in _HEADS}, "classifier"
    )


def _find_task(model) -> str | None:
    layers = layers_by_name(model)
    if "co_attention_0" not in layers or set(model.input) != _INPUTS:
        return None
    for task, layer in (
        ("pretrainer", "masked_regions"),
        ("classifier", "classifier_hidden"),
        ("scorer", "scorer"),
        ("referring", "referring"),
    ):
        if layer in layers:
            return task
    return "encoder"


def _config(model) -> dict[str, Any]:
    return make_config(model, _find_task(model))


def make_config(model, task) -> dict[str, Any]:
    """The fields of `config.json` of ViLBERT and VLN-BERT."""
    layers = layers_by_name(model)
    if "block_0" not in layers:
        raise ValueError(
            "`model` must have a block of the words to be written: no region depends "
            "on one here, because all `text_co_layers` are 0. Write its encoder, or "
            f"use `model.save`. Received: {model.name}"
        )
    config = bert.body_config(model)
    region, co = layers["region_block_0"], layers["co_attention_0"]
    config |= {
        "v_feature_size": model.input["region_features"].shape[-1],
        "v_hidden_size": layers["region_embedding"].units,
        "v_num_hidden_layers": len(numbered_names(layers, "region_block_")),
        "v_num_attention_heads": region.num_heads,
        "v_intermediate_size": region.mlp_dim,
        "v_hidden_act": config["hidden_act"],
        "v_hidden_dropout_prob": config["hidden_dropout_prob"],
        "v_attention_probs_dropout_prob": config["attention_probs_dropout_prob"],
        "bi_hidden_size": co.attention_dim,
        "bi_num_attention_heads": co.num_heads,
        "t_biattention_id": _co_layers(layers, 1, "block_"),
        "v_biattention_id": _co_layers(layers, 0, "region_block_"),
    }
    if task == "pretrainer":
        config["v_target_size"] = layers["masked_regions"].units
    if task not in ("encoder", "pretrainer"):
        config["finetuning_task"] = task
    if task == "classifier":
        units = layers["classifier_hidden"].units
        if units != 2 * co.attention_dim:
            raise ValueError(
                "`hidden_dim` of the classifier must be twice `co_attention_dim` for a "
                "checkpoint: the authors' code has no other. Received: "
                f"hidden_dim={units}, co_attention_dim={co.attention_dim}"
            )
        config |= tasks.classifier_fields(layers)
    if task == "referring":
        config["classifier_dropout"] = layers["referring_dropout"].rate
    elif task != "encoder":
        config["classifier_dropout"] = layers["pair_dropout"].rate
        is_product = isinstance(layers["pair"], keras.layers.Multiply)
        config["fusion_method"] = "mul" if is_product else "sum"
    return config


def _co_layers(layers, stream: int, start: str) -> list[int]:
    """The blocks of a stream that co-attention precedes.

    Args:
        layers: The layers by name.
        stream: Its place among the inputs and outputs of co-attention.
        start: What the names of its blocks begin with.
    """
    found: list[int] = []
    for name in numbered_names(layers, "co_attention_"):
        hidden = layers[name].input[stream]
        before = found[-1] if found else 0
        # After a block, or directly after the last co-attention or the embeddings.
        for index, block in enumerate(numbered_names(layers, start)):
            if layers[block].output is hidden:
                before = index + 1
        found.append(before)
    return found


def list_weights(model) -> list[Weight]:
    """Every weight of a ViLBERT, and of a VLN-BERT every one that ViLBERT has, too."""
    layers = layers_by_name(model)
    weights = bert.body_weights(model, "bert.")
    regions = "bert.v_embeddings"
    weights += [
        *mapping.dense(f"{regions}.image_embeddings", layers["region_embedding"]),
        *mapping.dense(
            f"{regions}.image_location_embeddings", layers["location_embedding"]
        ),
        *mapping.norm(f"{regions}.LayerNorm", layers["region_norm"]),
    ]
    for index, name in enumerate(numbered_names(layers, "region_block_")):
        key = f"bert.encoder.v_layer.{index}"
        weights += bert.block_weights(layers[name], key)
    for index, name in enumerate(numbered_names(layers, "co_attention_")):
        weights += _co_attention(layers[name], f"bert.encoder.c_layer.{index}")
    named = {
        "text_pooler": "bert.t_pooler.dense",
        "region_pooler": "bert.v_pooler.dense",
        **bert.MASKED_LM,
        "masked_regions_transform": "cls.imagePredictions.transform.dense",
        "masked_regions_norm": "cls.imagePredictions.transform.LayerNorm",
        "masked_regions": "cls.imagePredictions.decoder",
        "alignment": "cls.bi_seq_relationship",
        "classifier_hidden": "vil_prediction.logit_fc.0",
        "classifier_norm": "vil_prediction.logit_fc.2",
        "classifier": "vil_prediction.logit_fc.3",
        "scorer": "vil_logit",
        "referring": "vision_logit",
    }
    if "classifier_hidden_dropout" in layers:
        for number, name in ((0, "classifier_hidden"), (3, "classifier")):
            del named[name]
            weights += mapping.weight_normed(f"{_OLD_HEAD}.{number}", layers[name])
    return weights + mapping.head_weights(model, named)


def _co_attention(block, key) -> list[Weight]:
    """The weights of a co-attention: 1 of the authors' names is regions, 2 is words."""
    weights = []
    for own, other, stream, name in ((1, 2, "v", "region"), (2, 1, "t", "text")):
        attention = getattr(block, f"{name}_attention")
        norm = getattr(block, f"{name}_attention_norm")
        feed_forward = getattr(block, f"{name}_feed_forward")
        last_norm = getattr(block, f"{name}_feed_forward_norm")
        for part, number in (("query", own), ("key", other), ("value", other)):
            projection = getattr(attention, part)
            weights += mapping.dense(f"{key}.biattention.{part}{number}", projection)
        weights += [
            *mapping.attention_output(f"{key}.biOutput.dense{own}", attention),
            *mapping.norm(f"{key}.biOutput.LayerNorm{own}", norm),
            *mapping.dense(f"{key}.{stream}_intermediate.dense", feed_forward.expand),
            *mapping.dense(f"{key}.{stream}_output.dense", feed_forward.contract),
            *mapping.norm(f"{key}.{stream}_output.LayerNorm", last_norm),
        ]
    return weights


VILBERT = mapping.Family(
    model_type="vilbert",
    architectures=_CLASSES,
    also_saved_as={task: _TASKS_CLASS for task in ("scorer", "referring")},
    tasks=("encoder", *_HEADS),
    prefix="bert.",
    heads=HEAD_KEYS,
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=list_weights,
    buffers=(UNCALLED,),
    tied={"pretrainer": TIES},
    renames=((r"^module\.", ""), *bert.OLD_NORM_KEYS),
    fields_for=_fields_for,
    unread=_unread,
    default_task=_default_task,
)


def _build_from_bert(config, task, overrides):
    return _called(bert.arguments(config), config, _FROM_BERT_TASKS[task], overrides)


_FROM_BERT_TASKS = {"vilbert": "encoder", "vilbert_pretrainer": "pretrainer"}
# A BERT checkpoint as the text stream: every other weight counts as one of a head,
# which may be missing, and is newly initialized then.
FROM_BERT = dataclasses.replace(
    VILBERT,
    model_type="bert",
    tasks=tuple(_FROM_BERT_TASKS),
    heads=(
        *("bert.v_embeddings.", "bert.encoder.v_layer.", "bert.encoder.c_layer."),
        *("bert.t_pooler.", "bert.v_pooler."),
        *bert.BERT.heads,
    ),
    build=_build_from_bert,
    buffers=bert.BERT.buffers,
    tied={"vilbert_pretrainer": bert.TIES},
    renames=bert.OLD_NORM_KEYS,
    fields_for=None,
    unread=lambda config, task: (),
)
