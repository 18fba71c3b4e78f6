"""Loads a checkpoint folder as one of our models, with or without its weights.

Everything is checked before the first weight is allocated: no number in `config.json`
exceeds what the files contain; each key of the files is read by the model, belongs to a
head that the model does not have, or is known not to be learned; and each weight of the
model has a tensor of the right shape.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import get_hub_name, naming_hub_folders
from keras_attn.files.reading import shortened, shown
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.description import describe
from keras_attn.models.checkpoints.divided import assign_divided
from keras_attn.models.checkpoints.families import get_family
from keras_attn.models.checkpoints.folder import CONFIG, Folder, preview
from keras_attn.models.checkpoints.mapping import (
    Family,
    Joined,
    Weight,
    check_complete,
    get_variables,
)
from keras_attn.models.checkpoints.sentence import read_sentence_modules
from keras_attn.models.checkpoints.tensors import FLOATS
from keras_attn.models.parts.keras_state import allocate, undone, without_allocating


@naming_hub_folders()
def load_checkpoint(
    folder: str | os.PathLike, task: str | None = None, **overrides
) -> keras.Model:
    """Reads a checkpoint in the Hugging Face layout into one of our models.

    `config.json` determines the model; its weights are in `*.safetensors`, one file or
    several. Files that can contain code (`pytorch_model.bin`, …) are never opened.
    Weights are read one at a time, in float32, float16 or bfloat16, and cast to the
    dtype of the model's variables. Under a `keras.distribution`, on JAX, each process
    reads its devices' parts of them (docs/many_devices.md).

    ViT, its hybrid, DeiT, DeiT III, Swin and ConvNeXt may also use timm's naming,
    with an `architecture` in `config.json`, as its `save_for_hf` writes it. ResNet,
    VGG16, FCN, Faster R-CNN and Mask R-CNN on a ResNet use torchvision's:
    `model.state_dict()` saved as safetensors, and a `config.json` such as `{"library":
    "torchvision", "architecture": "fcn_resnet50", "num_classes": 21}`. For a detector,
    it counts the background as a class. A U-Net on a ResNet uses the naming of
    segmentation-models-pytorch, as `Unet.save_pretrained` writes it. CLIP may use
    open_clip's, with an `open_clip_config.json`, as its `save_for_hf` writes it.
    DALL·E's discrete VAE uses the keys of the package `dall-e`: its encoder's after
    `encoder.`, its decoder's after `decoder.`, and a `config.json` such as
    `{"library": "dall_e"}`, with `image_size` and the package's arguments if they
    differ from the published ones.

    ViLBERT uses the keys of the authors' code. Save the tensors of their pickled file
    as safetensors, and their `bert_base_6layer_6conect.json` as `config.json`; `task`
    says which of the heads is read. Two dense layers of each co-attention that their
    code never calls, `biOutput.q_dense1` and `biOutput.q_dense2`, are ignored, and
    not written. The tasks `"vilbert"` and `"vilbert_pretrainer"` read a BERT's folder
    into a ViLBERT: the words, the first with BERT's head for masked words. A warning
    names all that is new, and the sizes of the regions are overrides.

    The task `"sentence_encoder"` reads the modules of a sentence-transformers' folder:
    the pooling, dense layers after it, and whether vectors are scaled to length 1. A
    folder without `modules.json` gets the mean, scaled.

    An adapter of PEFT in the folder is not applied, and a warning says so: pass the
    model and the folder to `load_lora`.

    If the folder has them, the model gets the names of its classes as `class_names`,
    and the preprocessing of its images as `preprocessing`; `save_checkpoint` and
    `model.save` keep both, and the name with the commit, `source`, of a folder from the
    hub.

    Args:
        folder: A folder with `config.json` and `*.safetensors`, or its name on the hub,
            `hf://owner/name[@revision]` (docs/hub.md).
        task: What to build: `"encoder"`, `"masked_lm"`, `"pretrainer"`,
            `"next_sentence"`, `"classifier"`, `"token_classifier"`, `"span_qa"`,
            `"sentence_encoder"`, `"causal_lm"`, `"captioner"` (a ViT with GPT-2),
            `"similarity"` (CLIP, SigLIP), `"scorer"` or `"referring"` (ViLBERT) or
            `"autoencoder"` (a discrete VAE), if the family has it; for an image model,
            `"encoder"` is the model without its top, and `"segmenter"` an FCN; for an
            R-CNN, `"detector"` has no masks and `"instance_segmenter"` does. Default:
            the task of `architectures` or `architecture` in `config.json`.
        **overrides: Arguments of the builders, such as `dropout` or `num_classes`,
            which take precedence over `config.json`. `dropout` applies to the encoder
            and to its head.

    Returns:
        A model from `build_bert`, `build_bert_classifier`, … with the weights of the
        checkpoint. Heads in the files that the task does not need are ignored. If
        `task` is given and the files lack its head, or if `num_classes` is given and
        differs from the files', the head is newly initialized, with a warning that
        names its layers. For a different `image_size`, the positions in the files are
        resized by cubic splines.

    Raises:
        FileNotFoundError: If the folder, its `config.json` or its weights are missing;
            the hub has no such repository or revision.
        PermissionError: If a repository is not public and the token may not read it.
        ConnectionError: If the hub cannot be reached and the cache lacks a file.
        ValueError: If a model type, class or value in `config.json` is not supported; a
            file is corrupt; a weight is NaN or infinite; a key is unknown, missing,
            duplicated or of a different shape than `config.json` implies; or weights
            that our model ties differ in the file.
        TypeError: If an override is not an argument of the builders.

    Example:
        Needs folders of checkpoints:

        ```python
        from keras_attn import models

        encoder = models.load_checkpoint("all-MiniLM-L6-v2")
        tagger = models.load_checkpoint("bert-base", "token_classifier", num_classes=9)
        ```
    """
    opened = Folder(local_folder(folder))
    with undone(only_on_error=True):
        try:
            model, fresh = _load(opened, task, overrides)
        except (TypeError, ValueError) as error:
            raise _naming_folder(error, folder, overrides) from error
    model.source = get_hub_name(opened.path)
    if opened.has_adapter:
        warnings.warn(
            "The folder also has an adapter of PEFT, which is not applied: "
            "`models.load_lora(model, folder)` reads it. "
            f"Received: folder={str(folder)!r}",
            stacklevel=3,
        )
    if fresh:
        warnings.warn(
            f"The checkpoint has no weights for {preview(fresh)}: they are newly "
            "initialized and must be trained. "
            f"Received: task={task!r}, folder={str(folder)!r}",
            stacklevel=3,
        )
    return model


@naming_hub_folders()
def build_from_checkpoint(
    folder: str | os.PathLike, task: str | None = None, **overrides
) -> keras.Model:
    """The model of `load_checkpoint`, built without reading its weights.

    Its sizes come from `config.json`, checked against the headers of the weight files.
    The variables are new: call this where they take no memory, in a `tf.Graph` or
    `without_allocating`.

    Args:
        folder: As of `load_checkpoint`.
        task: As of `load_checkpoint`.
        **overrides: As of `load_checkpoint`.

    Raises:
        FileNotFoundError, TypeError, ValueError: As in `load_checkpoint`.
    """
    opened = Folder(local_folder(folder))
    try:
        return _build(opened, task, overrides).model
    except (TypeError, ValueError) as error:
        raise _naming_folder(error, folder, overrides) from error


def _load(
    opened: Folder, task: str | None, overrides: dict
) -> tuple[keras.Model, set[str]]:
    """The model, and the names of its layers that are newly initialized."""
    # Before the checks, nothing is allocated or initialized only to be overwritten.
    with without_allocating():
        built = _build(opened, task, overrides)
    if keras.distribution.distribution() is not None:
        # Zeros are divided as they are made; each device then reads its part.
        for weight in built.read:
            for variable in get_variables(weight):
                variable._initializer = keras.initializers.Zeros()
        allocate()
        for weight in built.read:
            assign_divided(weight, built.keys, opened)
    else:
        initializers = [_FileInitializer(x, built.keys, opened) for x in built.read]
        for initializer in initializers:
            if not isinstance(initializer.weight.variable, Joined):
                initializer.weight.variable._initializer = initializer
        allocate()
        for initializer in initializers:
            if not initializer.was_called:
                # Joined variables, and any if Keras changes its private `_initializer`.
                initializer.weight.variable.assign(initializer.value())
    describe(built.model, opened, overrides)
    return built.model, {_layer(weight) for weight in built.fresh}


class _Built(NamedTuple):
    """A model, full key to key in the file, and which weights the files have."""

    model: keras.Model
    keys: dict[str, str]
    read: list[Weight]
    fresh: list[Weight]


def _build(opened: Folder, task: str | None, overrides: dict) -> _Built:
    """Builds the model and checks that the files have its weights."""
    family = get_family(opened.config, task).for_keys(opened.shapes)
    chosen = _choose_task(family, opened.config, task)
    _check_tying(family, chosen, opened.config)
    if chosen == "sentence_encoder":
        arguments, files = read_sentence_modules(opened.path)
        if "projections" in overrides:
            files = {}
        for prefix, path in files.items():
            opened.add_file(path, prefix)
        overrides = {**arguments, **overrides}
    keys = _full_keys(family, opened, family.unread(opened.config, chosen))
    _untie(family, chosen, keys, opened)
    opened.config.require({"quantization_config": (None,)})
    model = family.build(opened.config, chosen, overrides)
    weights = family.weights(model)
    check_complete(model, weights)
    fresh = _check_keys(family, keys, weights, may_be_fresh=task is not None)
    if overrides.get("num_classes") is not None:
        fresh |= _resized_heads(family, keys, weights, opened)
    read = [weight for weight in weights if weight.keys[0] not in fresh]
    _check_tensors(family, read, keys, opened, may_resize="image_size" in overrides)
    new = [weight for weight in weights if weight.keys[0] in fresh]
    return _Built(model, keys, read, new)


def _naming_folder(error, folder, overrides) -> Exception:
    """The error, with the folder in its message."""
    # Without overrides, an argument of the wrong type comes from the file.
    kind = TypeError if overrides and isinstance(error, TypeError) else ValueError
    return kind(f"{shortened(error)}, folder={str(folder)!r}")


class _FileInitializer:
    """Initializes a variable with its weight in the files."""

    def __init__(self, weight: Weight, keys: Mapping[str, str], opened: Folder):
        self.weight = weight
        self._keys = keys
        self._opened = opened
        self.was_called = False

    def __call__(self, shape, dtype=None):
        value = keras.ops.convert_to_tensor(self.value(), dtype=dtype)
        self.was_called = True
        return value

    def value(self) -> np.ndarray:
        """Reads the array from the files."""
        arrays = [self._opened.read(self._keys[key]) for key in self.weight.keys]
        return self.weight.read(*arrays)


def _choose_task(family: Family, config: Config, task: str | None) -> str:
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
            f"{', '.join(family.architectures)}; otherwise pass a `task`, one of "
            f"{', '.join(family.tasks)}. Received: architectures={shown(classes)}"
        )
    return family.architectures[classes[0]]


def _full_keys(
    family: Family, opened: Folder, unread: tuple[str, ...]
) -> dict[str, str]:
    """Full key to the key in the file, for every tensor that may be learned.

    Args:
        family: The family.
        opened: The folder.
        unread: Prefixes of full keys to leave out.
    """
    keys: dict[str, str] = {}
    for key in opened.shapes:
        full = family.full_key(key)
        if family.is_buffer(full) or full.startswith(unread):
            continue
        if full in keys:
            raise ValueError(
                "Each weight in the checkpoint must have only one key. "
                f"Received: {keys[full]} and {key}, two keys of the same weight"
            )
        keys[full] = key
    return keys


def _check_tying(family: Family, task: str, config: Config) -> None:
    """Raises if the output layer is not tied to the token table, as ours is."""
    config.require({"tie_word_embeddings": (True, False)})
    is_tied = config.get("tie_word_embeddings", True)
    # Of a captioner, the field of the decoder counts.
    if task in family.tied and task != "captioner" and not is_tied:
        raise ValueError(
            f"`tie_word_embeddings` in {CONFIG} must be True for {task!r}: the table "
            "of the token embedding is our output layer, too. Load the body with "
            "another `task`, such as 'encoder' or 'classifier'. Received: "
            f"tie_word_embeddings=False, task={task!r}"
        )


def _untie(family: Family, task: str, keys: dict[str, str], opened: Folder) -> None:
    """Removes copies of tied weights from `keys`, after checking that they agree."""
    for copies in family.tied.values():
        for copy, original in copies.items():
            # If two tensors share memory, a file may contain either one.
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
                f"`{one}` and `{other}` must be equal: our model ties them, and this "
                "checkpoint was trained without tying. Load it with a different "
                "`task`. Received: "
                f"shapes {opened.shapes[one]} and {opened.shapes[other]}"
            )


def _check_keys(
    family: Family,
    keys: Mapping[str, str],
    weights: Sequence[Weight],
    may_be_fresh: bool,
) -> set[str]:
    """The first key of each weight to initialize newly; raises for any other gap."""
    wanted = {key for weight in weights for key in weight.keys}
    _check_unknown(family, keys, wanted)
    missing = wanted - set(keys)
    fresh = set()
    if may_be_fresh:
        for layer_weights in _by_layer(weights).values():
            layer_keys = {key for weight in layer_weights for key in weight.keys}
            # A head's layer may be missing entirely, but not in part.
            if layer_keys <= missing and all(map(family.is_head, layer_keys)):
                fresh.update(weight.keys[0] for weight in layer_weights)
                missing -= layer_keys
    if missing:
        fix = ""
        if not may_be_fresh and all(map(family.is_head, missing)):
            fix = " If `task` is given, a missing head is newly initialized."
        raise ValueError(
            f"The checkpoint lacks keys of this model.{fix} "
            f"Received: {preview(missing)}"
        )
    return fresh


def _check_unknown(family: Family, keys: Mapping[str, str], wanted: set[str]) -> None:
    """Raises for keys in the files that the model does not read."""
    layers = {key.rpartition(".")[0] for key in wanted}
    unknown = [
        original
        for full, original in keys.items()
        # A head may be ignored entirely; a part of a head that is read may not.
        if full not in wanted
        and (not family.is_head(full) or full.rpartition(".")[0] in layers)
    ]
    if not unknown:
        return

    def without_numbers(key):
        return re.sub(r"\d+", "#", key)

    known = set(map(without_numbers, wanted))
    hint = ""
    if all(without_numbers(family.full_key(key)) in known for key in unknown):
        hint = f" The files have more blocks than {CONFIG} says."
    raise ValueError(
        f"The checkpoint has keys that this model does not have.{hint} "
        f"Received: {preview(unknown)}"
    )


def _resized_heads(
    family: Family, keys: Mapping[str, str], weights: Sequence[Weight], opened: Folder
) -> set[str]:
    """The first keys of heads whose number of classes differs from the files'.

    A layer is newly initialized as a whole.
    """

    def is_resized(weight):
        return any(
            family.is_head(key) and key in keys and opened.shapes[keys[key]] != shape
            for key, shape in weight.shapes().items()
        )

    layers = {_layer(weight) for weight in weights if is_resized(weight)}
    return {weight.keys[0] for weight in weights if _layer(weight) in layers}


def _layer(weight: Weight) -> str:
    return weight.variable.path.split("/")[0]


def _by_layer(weights: Sequence[Weight]) -> dict[str, list[Weight]]:
    layers: dict[str, list[Weight]] = {}
    for weight in weights:
        layers.setdefault(_layer(weight), []).append(weight)
    return layers


def _check_tensors(
    family: Family,
    weights: Sequence[Weight],
    keys: Mapping[str, str],
    opened: Folder,
    may_resize: bool,
) -> None:
    """Raises unless each tensor has its weight's shape and a floating-point dtype.

    Positions may be for a different image size if the caller asked for this one.
    """
    wrong = []
    for weight in weights:
        for key, expected in weight.shapes().items():
            found, dtype = opened.shapes[keys[key]], opened.dtypes[keys[key]]
            fits = found == expected or weight.accepts(found)
            if not fits and not (may_resize and weight.resizes(found)):
                config = opened.config
                if family.is_head(key):
                    # The only field that determines the shape of a head.
                    config = {"id2label": config.get("id2label")}
                wrong.append(_contradiction(keys[key], found, expected, config))
            elif dtype not in FLOATS:
                raise ValueError(
                    f"`{keys[key]}` must have a floating-point dtype, one of "
                    f"{', '.join(FLOATS)}. Received: dtype={dtype}"
                )
    if wrong:
        raise ValueError(
            f"The weights must have the shapes that {CONFIG} and the overrides imply. "
            "To replace a head, load the body with a `task` and build the new head on "
            "it. Received: "
            + "; ".join(wrong[:4])
            + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        )


def _contradiction(key, found, expected, config) -> str:
    """A key with both shapes, and the fields that the wrong axis may come from."""
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
    fields = f" ({', '.join(suspects)})" if suspects else ""
    return f"{key} is {found}, expected {expected}{fields}"
