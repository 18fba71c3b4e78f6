"""VLN-BERT checkpoints, and VLN-BERT from the weights of a ViLBERT.

The keys are ViLBERT's; keys of new terms, names of classes and the field
`max_path_length` of the configuration are ours.
"""

import dataclasses
from typing import Any

from keras_attn.models import vln_bert as builders
from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families import vilbert
from keras_attn.models.checkpoints.mapping import Weight, layers_by_name

_CLASSES = {
    "VLNBertModel": "encoder",
    "VLNBertForPreTraining": "pretrainer",
    "VLNBertForRanking": "scorer",
}
_HEADS = {
    "pretrainer": builders.build_vln_bert_pretrainer,
    "scorer": builders.build_vln_bert_scorer,
}
_EMBEDDINGS = "bert.v_embeddings"
_NEW = {
    "orientation_embedding": f"{_EMBEDDINGS}.image_orientation_embeddings",
    "next_heading_embedding": f"{_EMBEDDINGS}.image_next_heading_embeddings",
}
_VIEWPOINTS = f"{_EMBEDDINGS}.image_viewpoint_embeddings.weight"
_LONGEST = 8  # Of the paper's paths.


def _build(config, task, overrides):
    length = config.get_size("max_path_length", _LONGEST)
    arguments = {**vilbert.arguments(config), "max_path_length": length}
    calls: list = [(builders.build_vln_bert, arguments)]
    if task != "encoder":
        calls.append((_HEADS[task], vilbert.head_arguments(config, task)))
    return tasks.call_builders(calls, overrides)


def _find_task(model) -> str | None:
    layers = layers_by_name(model)
    if not {"co_attention_0", "next_heading_embedding"} <= set(layers):
        return None
    # A pre-trainer has both heads.
    if "masked_regions" in layers:
        return "pretrainer"
    return "scorer" if "scorer" in layers else "encoder"


def _config(model) -> dict[str, Any]:
    config = vilbert.make_config(model, _find_task(model))
    # The class says it.
    config.pop("finetuning_task", None)
    table = layers_by_name(model)["viewpoint_embedding"].embeddings
    return {**config, "max_path_length": table.shape[0]}


def _weights(model) -> list[Weight]:
    layers, weights = layers_by_name(model), vilbert.list_weights(model)
    for name, key in _NEW.items():
        weights += mapping.dense(key, layers[name])
    table = layers["viewpoint_embedding"].embeddings
    return [*weights, mapping.same(_VIEWPOINTS, table)]


VLN_BERT = mapping.Family(
    model_type="vln_bert",
    architectures=_CLASSES,
    tasks=("encoder", *_HEADS),
    prefix="bert.",
    heads=vilbert.HEAD_KEYS,
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    tied={"pretrainer": vilbert.TIES},
)

_FROM_VILBERT_TASKS = {
    "vln_bert": "encoder",
    "vln_bert_pretrainer": "pretrainer",
    "vln_bert_scorer": "scorer",
}
# A ViLBERT as the start: the new terms count as weights of a head, which may be missing
# and start at zero then, so that the model has ViLBERT's outputs.
FROM_VILBERT = dataclasses.replace(
    VLN_BERT,
    model_type="vilbert",
    tasks=tuple(_FROM_VILBERT_TASKS),
    heads=(*_NEW.values(), _VIEWPOINTS, *vilbert.HEAD_KEYS),
    build=lambda config, task, overrides: _build(
        config, _FROM_VILBERT_TASKS[task], overrides
    ),
    buffers=vilbert.VILBERT.buffers,
    tied={"vln_bert_pretrainer": vilbert.TIES},
    renames=vilbert.VILBERT.renames,
)
