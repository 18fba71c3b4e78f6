"""DeiT checkpoints: a ViT with a second token, trained by distillation."""

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.families.vit import (
    MODULES,
    RENAMES,
    body_weights,
    build,
    is_vit,
    make_config,
)
from keras_attn.models.checkpoints.mapping import Family, layers_by_name

_WITH_TEACHER = "DeiTForImageClassificationWithTeacher"


def _build(config, task, overrides):
    classes = config.get("architectures") or ()
    has_two_heads = task == "classifier" and _WITH_TEACHER in classes
    distillation = "head" if has_two_heads else "token"
    return build(config, task, overrides, distillation=distillation)


def _find_task(model):
    if not is_vit(model, 2):
        return None
    if "distillation_classifier" in layers_by_name(model):
        return "distilled_classifier"
    return tasks.image_task(model)


def _weights(model):
    named = {"classifier": "classifier"}
    if "distillation_classifier" in layers_by_name(model):
        named = {
            "classifier": "cls_classifier",
            "distillation_classifier": "distillation_classifier",
        }
    return body_weights(model, "deit.") + mapping.head_weights(model, named)


DEIT = Family(
    model_type="deit",
    architectures={
        "DeiTModel": "encoder",
        "DeiTForImageClassification": "classifier",
        _WITH_TEACHER: "classifier",
    },
    also_saved_as={
        "classifier": "DeiTForImageClassification",
        "distilled_classifier": _WITH_TEACHER,
    },
    tasks=tasks.IMAGE_TASKS,
    prefix="deit.",
    heads=(
        "deit.pooler.",
        "classifier.",
        "cls_classifier.",
        "distillation_classifier.",
        "decoder.",
    ),
    build=_build,
    find_task=_find_task,
    config=make_config,
    weights=_weights,
    # Of masked image modeling, like the decoder.
    buffers=(r"deit\.embeddings\.mask_token",),
    renames=RENAMES,
    modules=MODULES,
)
