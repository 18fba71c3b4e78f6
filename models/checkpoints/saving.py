"""From a model of ours to a checkpoint folder that transformers reads."""

import functools
import os

import keras
import numpy as np

from keras_attn.checks import check_choice, check_positive
from keras_attn.models.checkpoints.families import FAMILIES
from keras_attn.models.checkpoints.folder import write_folder
from keras_attn.models.checkpoints.loading import check_complete
from keras_attn.models.checkpoints.tensors import SAVED_AS, Tensor


def save_checkpoint(
    model: keras.Model,
    folder: str | os.PathLike,
    *,
    dtype: str | None = None,
    max_shard_size: int = 5_000_000_000,
) -> None:
    """Writes a model as `config.json` and `*.safetensors`, as transformers has them.

    Files are written aside and renamed when all of them are whole: a failure leaves
    everything as it was. What the folder holds of another checkpoint's config and
    weights is replaced; other files, such as a tokenizer's, stay. Weights are written
    one at a time.

    Args:
        model: From `build_bert`, `build_gpt`, … or with one of their heads. It is known
            by its layers and inputs, so a model loaded from a `.keras` file will do.
        folder: Made where it is missing.
        dtype: `"float32"`, `"float16"` or `"bfloat16"`. Default: the dtype that the
            model keeps each weight in.
        max_shard_size: Bytes of weights above which they are split into several files.

    Raises:
        ValueError: for a model that has no counterpart in transformers, or a weight
            that is too large for `dtype`.
        NotADirectoryError: where `folder` is a file.

    Example:
        ```python
        save_checkpoint(classifier, "my-classifier", dtype="bfloat16")
        ```
    """
    check_choice("dtype", dtype, (None, *SAVED_AS))
    check_positive("max_shard_size", max_shard_size)
    family, task = _family_of(model)
    if task not in family.saved_as:
        raise ValueError(
            f"`model` has no counterpart among the {family.model_type} classes of "
            f"transformers; save it by `model.save`. Received: a {task} model"
        )
    architecture = family.saved_as[task]
    weights = family.weights(model)
    check_complete(model, weights)
    tensors = {}
    for weight in weights:
        kept = dtype or keras.backend.standardize_dtype(weight.variable.dtype)
        for index, (key, shape) in enumerate(weight.shapes().items()):
            if architecture == family.bare:
                key = key.removeprefix(family.prefix)
            make = functools.partial(_array, weight, index)
            tensors[key] = Tensor(shape, SAVED_AS[kept], make)
    config = {
        **family.config(model),
        "architectures": [architecture],
        "model_type": family.model_type,
    }
    if dtype is not None:
        config["dtype"] = dtype
    write_folder(folder, config, tensors, max_shard_size)


def _family_of(model):
    for family in FAMILIES.values():
        task = family.task_of(model)
        if task is not None:
            return family, task
    raise ValueError(
        "`model` must be from a builder of a family that checkpoints are kept of: "
        f"{', '.join(FAMILIES)}. Received: model={getattr(model, 'name', model)!r}"
    )


def _array(weight, index) -> np.ndarray:
    array = keras.ops.convert_to_numpy(weight.variable)
    return weight.write(array)[index]
