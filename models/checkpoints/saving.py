"""`save_checkpoint`: from one of our models to a folder in public naming."""

import functools
import os
from typing import Literal

import keras
import numpy as np

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.models.checkpoints.description import with_description
from keras_attn.models.checkpoints.families import WRITTEN, WRITTEN_BY_DEFAULT
from keras_attn.models.checkpoints.folder import write_folder
from keras_attn.models.checkpoints.mapping import Weight, check_complete, get_variables
from keras_attn.models.checkpoints.sentence import sentence_files, weights_file
from keras_attn.models.checkpoints.tensors import SAVED_AS, Tensor
from keras_attn.ops.weight_products import kernel_value


def save_checkpoint(
    model: keras.Model,
    folder: str | os.PathLike,
    *,
    dtype: str | None = None,
    max_shard_size: int = 5_000_000_000,
    library: Literal[
        "transformers",
        "timm",
        "torchvision",
        "segmentation_models_pytorch",
        "open_clip",
        "dall_e",
    ]
    | None = None,
) -> None:
    """Writes a model as `config.json` and `*.safetensors`, in transformers' naming.

    ResNet, VGG, FCN and R-CNN on a ResNet use torchvision's naming: the
    `load_state_dict` of the model that `architecture` names in `torchvision.models`
    accepts the tensors. A U-Net on a ResNet uses the naming of
    segmentation-models-pytorch, whose `from_pretrained` reads the folder. A CLIP with a
    ResNet uses open_clip's, whose `create_model("local-dir:my-folder")` reads it, in
    one file of any size. ViLBERT uses the keys of its authors' code, which has two more
    layers in each co-attention and never calls them. DALL·E's discrete VAE uses the
    keys of `dall-e`, after `encoder.` and `decoder.`. Image models that transformers
    lacks, such as DeiT III, use timm's naming:
    `timm.create_model("local-dir:my-folder", pretrained=True)`.

    `model.class_names` and `model.preprocessing` are written as well, and the name on
    the hub that the weights began as, `model.source`, as `_base_model`. Kernels with
    LoRA weights (`training.enable_lora`) are written with what they have learned,
    quantized weights as the numbers that they stand for.

    Files are written to a temporary folder and renamed once all are complete, so a
    failure leaves everything unchanged. The config and weights of a previous checkpoint
    in the folder are replaced; other files, such as a tokenizer's, are kept. Weights
    are written one at a time.

    Args:
        model: From `build_bert`, `build_gpt`, … or with one of their heads. It is
            identified by its layers and inputs, so a model loaded from a `.keras` file
            works too.
        folder: Where to write; created if it is missing.
        dtype: `"float32"`, `"float16"` or `"bfloat16"`. Default: the dtype of each of
            the model's variables.
        max_shard_size: Maximum size of a weight file in bytes; larger weights are split
            into several files, except open_clip's.
        library: The library whose naming is used. Default: the first of the libraries
            above that has the model.

    Raises:
        ValueError: If `model` has no counterpart in these libraries, or in `library`;
            the number of `model.class_names` differs from the number of classes; or a
            weight is too large for `dtype`.
        NotADirectoryError: If `folder` is a file.

    Example:
        ```python
        from keras_attn import models

        encoder = models.build_bert("tiny", vocabulary_size=100)
        classifier = models.build_bert_classifier(encoder, num_classes=3)
        models.save_checkpoint(classifier, "my-classifier", dtype="bfloat16")
        same = models.load_checkpoint("my-classifier")
        ```
    """
    check_choice("dtype", dtype, (None, *SAVED_AS))
    check_positive("max_shard_size", max_shard_size)
    check_choice("library", library, (None, *WRITTEN))
    family, task = find_family(model, library)
    if task not in family.saved_as:
        raise ValueError(
            f"`model` has no counterpart among the {family.model_type} classes of "
            f"transformers; save it with `model.save`. Received: a {task} model"
        )
    architecture = family.saved_as[task]
    weights = family.weights(model)
    check_complete(model, weights)
    tensors: dict[str, Tensor] = {}
    apart: dict[str, dict[str, Tensor]] = {}
    for weight in weights:
        kept = dtype or keras.backend.standardize_dtype(weight.variable.dtype)
        for index, (key, shape) in enumerate(weight.shapes().items()):
            if architecture == family.bare:
                key = key.removeprefix(family.prefix)
            compute = functools.partial(make_array, weight, index)
            file = weights_file(key)
            part = tensors if file is None else apart.setdefault(file, {})
            name = key if file is None else key.partition(".")[2]
            part[name] = Tensor(shape, SAVED_AS[kept], compute)
    config = {**family.config(model), **family.identity(task)}
    if dtype is not None and family.library in (None, "torchvision"):
        # The others accept the fields of their configurations as arguments.
        config["dtype"] = dtype
    config, others = with_description(model, config, family.library)
    if source := getattr(model, "source", None):
        config = {**config, "_base_model": source}
    others = {**others, **sentence_files(model)}
    write_folder(folder, config, tensors, max_shard_size, others, family.files, apart)


def can_be_saved(model: keras.Model) -> bool:
    """Whether `save_checkpoint` has a naming for a model."""
    found = _first_family(model, WRITTEN_BY_DEFAULT)
    return found is not None and found[1] in found[0].saved_as


def find_family(model: keras.Model, library: str | None):
    """The family and the task of a model.

    Args:
        model: The model.
        library: The library with the family's names; None = the first that has it.

    Raises:
        ValueError: If it has no counterpart.
    """
    families = WRITTEN[library] if library else WRITTEN_BY_DEFAULT
    found = _first_family(model, families)
    if found is not None:
        return found
    if _ends_rescaled(model):
        raise ValueError(
            "`model` must not end with a `Rescaling` layer, which a checkpoint cannot "
            "hold; save it with `model.save`. "
            f"Received: model={model.name!r} with the layer {model.layers[-1].name!r}"
        )
    types = dict.fromkeys(family.model_type for family in families)
    raise ValueError(
        "`model` must be from a builder of a family that has checkpoints: "
        f"{', '.join(types)}. Received: model={getattr(model, 'name', model)!r}"
        + (f", library={library!r}" if library else "")
    )


def _ends_rescaled(model) -> bool:
    """Whether the outputs come from a `Rescaling` layer."""
    layers = getattr(model, "layers", None)
    return bool(layers) and isinstance(layers[-1], keras.layers.Rescaling)


def _first_family(model, families):
    """The first family that a model belongs to, and its task; None without one."""
    if _ends_rescaled(model):
        return None  # No layout has a place for it, and without it outputs differ.
    for family in families:
        task = family.find_task(model)
        if task is not None:
            return family, task
    return None


def make_array(weight: Weight, index: int) -> np.ndarray:
    """The value of a weight in a file.

    Args:
        weight: The weight.
        index: Which of its keys.
    """
    kernels = map(kernel_value, get_variables(weight))
    arrays = [keras.ops.convert_to_numpy(each) for each in kernels]
    array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
    return weight.write(array)[index]
