"""From a checkpoint folder to a model of ours.

Everything is checked before the first weight is allocated: no number of `config.json`
is beyond what the files hold; each key of the files is one that the model takes, a
head's that it does not have, or known to hold nothing learned; and each weight of the
model comes from a key of the right shape.
"""

import os
import re
import warnings
from collections.abc import Sequence

import keras
import numpy as np

from keras_attn.file_reading import shortened, shown
from keras_attn.models.checkpoints.families import family_of
from keras_attn.models.checkpoints.folder import CONFIG, Folder, some
from keras_attn.models.checkpoints.mapping import Weight, require
from keras_attn.models.checkpoints.tensors import FLOATS
from keras_attn.models.parts.keras_state import (
    allocate,
    undone,
    without_allocating,
)


def load_checkpoint(
    folder: str | os.PathLike, task: str | None = None, **overrides
) -> keras.Model:
    """Reads a checkpoint in the Hugging Face layout into a model of ours.

    ViT, its hybrid, DeiT, DeiT III, Swin and ConvNeXt may also be in timm's naming,
    with an `architecture` in `config.json`.

    `config.json` says what is built, `*.safetensors`, in one file or several, what its
    weights are. Files that can hold code (`pytorch_model.bin`, …) are never opened.
    Weights are read one at a time, in float32, float16 or bfloat16, and cast to what
    the model keeps them in.

    Args:
        folder: With `config.json` and `*.safetensors`.
        task: What to build: `"encoder"`, `"masked_lm"`, `"pretrainer"`,
            `"next_sentence"`, `"classifier"`, `"token_classifier"`, `"span_qa"`,
            `"sentence_encoder"` or `"causal_lm"`, as the family has it; an image
            model's `"encoder"` is without its top. Default: what
            `architectures` in `config.json` says.
        **overrides: Arguments of the builders, such as `dropout` or `num_classes`,
            instead of what `config.json` says. `dropout` goes to the encoder and to
            its head.

    Returns:
        A model from `build_bert`, `build_bert_classifier`, … with the weights of the
        checkpoint. Heads in the files that the task does not have are left out. A
        head that the files lack is fresh, if `task` asked for it, and so is one of
        another `num_classes`, if that was given; a warning names its layers. Positions
        of another `image_size` are read off those of the files by cubic splines.

    Raises:
        FileNotFoundError: where the folder, its `config.json` or its weights are not.
        ValueError: for a model type, class or value of `config.json` that we don't
            compute; for corrupt files; for a key that is unknown, missing, double or
            of another shape than `config.json` says; for weights that the model ties
            and the file does not.
        TypeError: for an override that the builders don't have.

    Example:
        ```python
        encoder = load_checkpoint("all-MiniLM-L6-v2")
        tagger = load_checkpoint("bert-base", task="token_classifier", num_classes=9)
        ```
    """
    opened = Folder(folder)
    with undone(only_on_error=True):
        try:
            model, fresh = _load(opened, task, overrides)
        except (TypeError, ValueError) as error:
            raise _naming_folder(error, folder, overrides) from error
    if fresh:
        warnings.warn(
            f"The checkpoint has no weights for {some(fresh)}: freshly initialised, "
            f"to be trained. Received: task={task!r}, folder={str(folder)!r}",
            stacklevel=2,
        )
    return model


def _load(opened, task, overrides) -> tuple[keras.Model, set[str]]:
    """The model, and the names of its layers that the files have no weights for."""
    family = family_of(opened.config).reading(opened.shapes)
    chosen = _task_of(family, opened.config, task)
    keys = _full_keys(family, opened)
    _untie(family, chosen, keys, opened)
    require(opened.config, {"quantization_config": (None,)})
    # Nothing is allocated, or drawn only to be written over, before all is checked.
    with without_allocating():
        model = family.build(opened.config, chosen, overrides)
    weights = family.weights(model)
    check_complete(model, weights)
    fresh = _check_keys(family, keys, weights, may_be_fresh=task is not None)
    if overrides.get("num_classes") is not None:
        fresh |= _other_classes(family, keys, weights, opened)
    read = [weight for weight in weights if weight.keys[0] not in fresh]
    _check_tensors(family, read, keys, opened, may_resize="image_size" in overrides)
    sources = [_Source(weight, keys, opened) for weight in read]
    for source in sources:
        source.weight.variable._initializer = source
    allocate()
    for source in sources:
        if not source.is_read:
            # The hook above is Keras' own: where it is not called, there is this way.
            source.weight.variable.assign(source.value())
    return model, {_layer(weight) for weight in weights if weight.keys[0] in fresh}


def _naming_folder(error, folder, overrides) -> Exception:
    """The error, which also says which folder it was found in."""
    # A builder that is given something of a wrong type has it from the file, or from
    # the caller if there are overrides.
    kind = TypeError if overrides and isinstance(error, TypeError) else ValueError
    return kind(f"{shortened(error)}, folder={str(folder)!r}")


class _Source:
    """A weight in the files, as the initializer of its variable."""

    def __init__(self, weight, keys, opened):
        self.weight = weight
        self._keys = keys
        self._opened = opened
        self.is_read = False

    def __call__(self, shape, dtype=None):
        value = keras.ops.convert_to_tensor(self.value(), dtype=dtype)
        self.is_read = True
        return value

    def value(self) -> np.ndarray:
        """The array, read now."""
        arrays = [self._opened.read(self._keys[key]) for key in self.weight.keys]
        return self.weight.read(*arrays)


def check_complete(model: keras.Model, weights: Sequence[Weight]) -> None:
    """Raises unless `weights` are those of the model, each once.

    Raises:
        ValueError: naming the variables that are not, or the keys that are double.
    """
    mapped = [id(weight.variable) for weight in weights]
    left = [
        variable.path for variable in model.weights if id(variable) not in set(mapped)
    ]
    if left or len(mapped) != len(set(mapped)):
        raise ValueError(
            "The model has weights that a checkpoint of its family has no place for, "
            f"or has two for. Received: {some(left) or 'a weight twice'}"
        )


def _task_of(family, config, task) -> str:
    if task is not None:
        if task not in family.tasks:
            raise ValueError(
                f"`task` must be one of {', '.join(family.tasks)} for "
                f"model_type={family.model_type!r}. Received: task={task!r}"
            )
        return task
    if family.default_task is not None:
        return family.default_task(config)
    classes = config.get("architectures")
    if not isinstance(classes, list) or classes[:1] not in (
        [name] for name in family.architectures
    ):
        raise ValueError(
            f"`architectures` in {CONFIG} must name one of "
            f"{', '.join(family.architectures)}; or say by `task` what to build, one "
            f"of {', '.join(family.tasks)}. Received: architectures={shown(classes)}"
        )
    return family.architectures[classes[0]]


def _full_keys(family, opened) -> dict[str, str]:
    """Full key to the key in the file, of all that may hold what was learned."""
    keys: dict[str, str] = {}
    for key in opened.shapes:
        full = family.full_key(key)
        if family.is_buffer(full):
            continue
        if full in keys:
            raise ValueError(
                "Two keys of the checkpoint name the same weight. "
                f"Received: {keys[full]} and {key}"
            )
        keys[full] = key
    return keys


def _untie(family, task, keys, opened) -> None:
    """Takes the copies of tied weights out of `keys`, once they are seen to be so."""
    for copies in family.tied.values():
        for copy, original in copies.items():
            # A writer keeps one of two tensors that share memory, no matter which.
            if copy in keys and original not in keys:
                keys[original] = keys.pop(copy)
    for copy, original in family.tied.get(task, {}).items():
        if copy not in keys:
            continue
        one, other = keys.pop(copy), keys[original]
        if opened.shapes[one] != opened.shapes[other] or not np.array_equal(
            opened.read(one), opened.read(other)
        ):
            raise ValueError(
                f"`{one}` and `{other}` are one weight in our model, and differ in "
                "this checkpoint, which was trained without tying them; it can be "
                "read for another `task`. Received: "
                f"shapes {opened.shapes[one]} and {opened.shapes[other]}"
            )


def _check_keys(family, keys, weights, may_be_fresh) -> set[str]:
    """The first keys of the weights that stay fresh; raises for any doubt."""
    wanted = {key for weight in weights for key in weight.keys}
    read = {key.rpartition(".")[0] for key in wanted}
    unknown = [
        original
        for full, original in keys.items()
        # A head may be left out, but nothing of one that is read.
        if full not in wanted
        and (not family.is_head(full) or full.rpartition(".")[0] in read)
    ]
    if unknown:
        shapes_of_blocks = {re.sub(r"\d+", "#", key) for key in wanted}
        hint = ""
        if all(
            re.sub(r"\d+", "#", family.full_key(key)) in shapes_of_blocks
            for key in unknown
        ):
            hint = f" The files have more blocks than {CONFIG} says."
        raise ValueError(
            f"The checkpoint has keys that this model does not know.{hint} "
            f"Received: {some(unknown)}"
        )
    missing = wanted - set(keys)
    # A layer is fresh as a whole, or it is damaged.
    by_layer: dict[str, list[Weight]] = {}
    for weight in weights:
        by_layer.setdefault(_layer(weight), []).append(weight)
    fresh = set()
    if may_be_fresh:
        for layer_weights in by_layer.values():
            layer_keys = {key for weight in layer_weights for key in weight.keys}
            if layer_keys <= missing and all(map(family.is_head, layer_keys)):
                fresh.update(weight.keys[0] for weight in layer_weights)
                missing -= layer_keys
    if missing:
        mend = ""
        if not may_be_fresh and all(map(family.is_head, missing)):
            mend = " Say by `task` what to build, and a head that is missing is fresh."
        raise ValueError(
            f"The checkpoint lacks keys of this model.{mend} Received: {some(missing)}"
        )
    return fresh


def _other_classes(family, keys, weights, opened) -> set[str]:
    """The first keys of the head, where the checkpoint's has another number of classes.

    A layer is fresh as a whole.
    """

    def is_other(weight):
        return any(
            family.is_head(key) and key in keys and opened.shapes[keys[key]] != shape
            for key, shape in weight.shapes().items()
        )

    layers = {_layer(weight) for weight in weights if is_other(weight)}
    return {weight.keys[0] for weight in weights if _layer(weight) in layers}


def _layer(weight) -> str:
    return weight.variable.path.split("/")[0]


def _check_tensors(family, weights, keys, opened, may_resize) -> None:
    """Raises unless each tensor is of its weight's shape, and of floats.

    Positions may be those of another image where the caller asked for this one's size.
    """
    wrong = []
    for weight in weights:
        for key, expected in weight.shapes().items():
            found, dtype = opened.shapes[keys[key]], opened.dtypes[keys[key]]
            fits = found == expected or weight.accepts(found)
            if not fits and not (may_resize and weight.resizes(found)):
                # Sizes of a head are classes alone.
                config = opened.config
                if family.is_head(key):
                    config = {"id2label": config.get("id2label")}
                wrong.append(_contradiction(keys[key], found, expected, config))
            elif dtype not in FLOATS:
                raise ValueError(
                    f"`{keys[key]}` must be of a floating-point dtype, one of "
                    f"{', '.join(FLOATS)}. Received: dtype={dtype}"
                )
    if wrong:
        raise ValueError(
            f"The weights contradict {CONFIG} (or the overrides). To give another head "
            "to a model, load its body by `task` and build the head on that. Received: "
            + "; ".join(wrong[:4])
            + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        )


def _contradiction(key, found, expected, config):
    """One key's two shapes, and the fields that the wrong axis may come from."""
    suspects = []
    if len(found) == len(expected):
        sizes = {
            want for have, want in zip(found, expected, strict=True) if have != want
        }
        suspects = [
            f"{name}={value}"
            for name, value in config.items()
            if isinstance(value, int) and not isinstance(value, bool) and value in sizes
        ]
        labels = config.get("id2label")
        if isinstance(labels, dict) and len(labels) in sizes:
            suspects.append(f"{len(labels)} entries of id2label")
    said = f" ({', '.join(suspects)})" if suspects else ""
    return f"{key} is {found}, expected {expected}{said}"
