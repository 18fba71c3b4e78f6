"""Class names and preprocessing of a model in a folder.

Libraries store the names of the classes and the preprocessing of images in different
places. Our models have both as attributes, `class_names` and `preprocessing`; the
latter has transformers' fields.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_attn.files.reading import read_json
from keras_attn.models.checkpoints.config import MAX_IMAGE_SIZE, label_fields
from keras_attn.models.checkpoints.folder import (
    FILES,
    OPEN_CLIP_FILES,
    Folder,
    read_config,
)
from keras_attn.models.checkpoints.mapping import layers_by_name
from keras_attn.models.parts.preprocessing_fields import (
    PROCESSOR_OF_MODELS,
    RESAMPLING,
    read_steps,
)
from keras_attn.models.parts.preprocessing_sizes import fields_for_size, get_share

PREPROCESSING = "preprocessor_config.json"
# Where transformers' processors of images and texts save the same fields.
_PROCESSOR, _OF_IMAGES = "processor_config.json", "image_processor"
# timm's processor in transformers, whose file has timm's fields.
_OF_TIMM = "TimmWrapperImageProcessor"
# As in timm and open_clip: resize, crop the center, rescale, normalize.
_AS_TORCHVISION = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    # A field of `ImagePreprocessing`: both crop as torchvision does.
    "crop_offset": "round",
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}


def describe(model: Any, opened: Folder, overrides: Mapping[str, Any]) -> None:
    """Gives a model the class names and the preprocessing of its folder.

    Args:
        model: The model.
        opened: The folder that it was built from.
        overrides: Arguments of its builder that took precedence over the folder's.
    """
    names, layers = get_class_names(opened.config), layers_by_name(model)
    if names and {"classifier", "class_logits"} & set(layers):
        # Another number of classes means other classes.
        if overrides.get("num_classes", len(names)) == len(names):
            model.class_names = names
    fields = _preprocessing(opened.path, opened.config)
    if fields is None or len(model.inputs[0].shape) != 4:
        return
    sides = model.inputs[0].shape[1:3]
    if "image_size" in overrides and None not in sides:
        fields = fields_for_size(fields, list(sides))
    model.preprocessing = fields


def get_class_names(config: Mapping[str, Any]) -> list[str] | None:
    """The names of the classes; None if they are missing, incomplete or generated."""
    for field in ("id2label", "label_names", "class_names", "_class_names"):
        names: Any = config.get(field)
        if isinstance(names, dict):
            names = [names.get(str(index)) for index in range(len(names))]
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            generated = list(label_fields(len(names))["label2id"])
            return None if names == generated else names
    return None


def read_preprocessing(folder: Path) -> dict[str, Any] | None:
    """The preprocessing of a folder, which need not have weights; None without one.

    Args:
        folder: The folder.
    """
    # A processor that was saved by itself names its class.
    is_alone = not any((folder / x.config).exists() for x in (FILES, OPEN_CLIP_FILES))
    return _preprocessing(folder, {} if is_alone else read_config(folder)[1])


def _preprocessing(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    if (folder / _PROCESSOR).exists():
        fields = read_json(folder / _PROCESSOR).get(_OF_IMAGES)
        if isinstance(fields, dict):
            return _with_type(fields, config)
    if (folder / PREPROCESSING).exists():
        return _with_type(read_json(folder / PREPROCESSING), config)
    for name, read in (("pretrained_cfg", _from_timm), ("preprocess_cfg", _from_clip)):
        fields = config.get(name)
        if isinstance(fields, dict):
            return read(fields, config)
    return None


def with_description(
    model: Any, config: dict[str, Any], library: str | None
) -> tuple[dict[str, Any], dict[str, dict]]:
    """The configuration with a model's class names, and files for the preprocessing.

    Args:
        model: Any model.
        config: The fields of `config.json` without them.
        library: As in `Family`.

    Returns:
        The fields of `config.json`; and the name of each further file to its content.

    Raises:
        ValueError: If the number of names differs from the number of classes.
    """
    names = getattr(model, "class_names", None)
    fields = getattr(model, "preprocessing", None)
    files = {}
    if fields is not None and library == "timm":
        known = {**config["pretrained_cfg"], **_to_timm(fields)}
        if config["pretrained_cfg"]["fixed_input_size"]:
            known["input_size"] = config["pretrained_cfg"]["input_size"]
        config = {**config, "pretrained_cfg": known}
    elif fields is not None and library == "open_clip":
        config = {**config, "preprocess_cfg": _to_clip(fields)}
    elif fields is not None:
        files[PREPROCESSING] = fields
    if not names:
        return config, files
    field = {None: "id2label", "timm": "label_names"}.get(library)
    count = len(config.get("id2label", ()))
    if library == "timm":
        count = config["num_classes"]
    if field is not None and not count:
        return config, files  # Without a head.
    if field is not None and count != len(names):
        raise ValueError(
            "`model.class_names` must have one name for each of the "
            f"{count} classes, or be None. Received: {len(names)} names"
        )
    if library is None:
        return {**config, **label_fields(count, names)}, files
    # segmentation-models-pytorch skips the fields that begin with "_".
    is_smp = library == "segmentation_models_pytorch"
    field = field or ("_class_names" if is_smp else "class_names")
    return {**config, field: list(names)}, files


def _with_type(
    fields: dict[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The fields, with the class of the processor, which old files do not name."""
    kind = fields.get("image_processor_type") or fields.get("feature_extractor_type")
    timm = fields.get("pretrained_cfg")
    if kind == _OF_TIMM and isinstance(timm, dict):
        return _from_timm(timm, config)
    known = PROCESSOR_OF_MODELS.get(str(config.get("model_type")))
    if kind or known is None:
        return fields
    return {**fields, "image_processor_type": f"{known}ImageProcessor"}


def _from_timm(fields: Mapping[str, Any], _) -> dict[str, Any] | None:
    """The preprocessing in timm's `pretrained_cfg`; None if there is none.

    What the fields leave out is timm's default, and what they ask for is refused, if it
    must be, by `image_preprocessing`.
    """
    size: Any = fields.get("input_size")
    if not _is_numbers(size, 3):
        return None
    sides, mode = size[1:], fields.get("crop_mode") or "center"
    share = fields.get("crop_pct") or 0.875
    # A share that is none is refused.
    divisor = share if _is_numbers([share], 1) and share > 0 else 1
    resized: Any = _by_name(int(side / divisor) for side in sides)
    covers = mode == "center" and len({*sides}) > 1
    if mode == "center" and not covers:
        resized = {"shortest_edge": resized["height"]}
    return {
        **_AS_TORCHVISION,
        "size": resized,
        "resample": _get_code(fields.get("interpolation") or "bicubic"),
        "do_center_crop": True,
        "crop_size": _by_name(sides),
        # Fields of timm that transformers does not read.
        "crop_pct": share,
        "crop_mode": mode,
        **({"covers": True} if covers else {}),
        "image_mean": fields.get("mean") or [0.485, 0.456, 0.406],
        "image_std": fields.get("std") or [0.229, 0.224, 0.225],
    }


def _from_clip(
    fields: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The preprocessing in open_clip's `preprocess_cfg`; None if the size is unknown.

    Args:
        fields: The `preprocess_cfg`.
        config: The configuration, which has the size of the images.
    """
    size: Any = config.get("model_cfg")
    for name in ("vision_cfg", "image_size"):
        size = size.get(name) if isinstance(size, dict) else None
    size = fields.get("size") or size
    pair = _sides(list(size) if isinstance(size, tuple) else size)
    if pair is None:
        return None
    mode = fields.get("resize_mode") or "shortest"
    sides = _by_name(pair)
    is_cropped, covers = mode == "shortest", len({*pair}) > 1 and mode == "shortest"
    code = _get_code(fields.get("interpolation") or "bicubic")
    return {
        **_AS_TORCHVISION,
        "size": {"shortest_edge": pair[0]} if is_cropped and not covers else sides,
        # It covers a size that is not square by its default, which is bicubic.
        "resample": 3 if covers else code,
        "do_center_crop": is_cropped,
        "crop_size": sides,
        **({"covers": True} if covers else {}),
        # A field of open_clip, of which "longest" is refused.
        "resize_mode": mode,
        **{
            name: fields[theirs]
            for name, theirs in (("image_mean", "mean"), ("image_std", "std"))
            if fields.get(theirs)
        },
    }


def _get_code(interpolation: Any) -> Any:
    """PIL's code; a name that has none as it is, to be refused by name."""
    codes = {name: code for code, name in RESAMPLING.items()}
    # Random in training, and bicubic afterwards, in both libraries.
    return 3 if interpolation == "random" else codes.get(interpolation, interpolation)


def _to_clip(fields: Mapping[str, Any]) -> dict[str, Any]:
    """open_clip's `preprocess_cfg`, as far as it follows from a preprocessing."""
    known = _to_timm(fields)
    found = {x: known[x] for x in ("mean", "std", "interpolation") if x in known}
    if "crop_mode" in known:
        is_squashed = known["crop_mode"] == "squash"
        found["resize_mode"] = "squash" if is_squashed else "shortest"
    return found


def _to_timm(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of timm's `pretrained_cfg` that follow from a preprocessing."""
    found: dict[str, Any] = {}
    if isinstance(code := fields.get("resample"), int) and code in RESAMPLING:
        found["interpolation"] = RESAMPLING[code]
    try:
        steps = read_steps({**fields, "resample": None, "do_normalize": False})
    except ValueError:
        return found
    found |= _statistics(fields)
    if steps.size is None:
        return found
    keeps_shape = isinstance(steps.size, int) or bool(fields.get("covers"))
    target = steps.crop_size or steps.size
    if isinstance(target, int):
        target = [target, target]
    return {
        **found,
        "input_size": [len(found.get("mean", "rgb")), *target],
        "crop_pct": get_share(fields, steps),
        "crop_mode": "center" if keeps_shape else "squash",
    }


def _statistics(fields: Mapping[str, Any]) -> dict[str, list[float]]:
    """Mean and deviation of pixels from 0 to 1; empty if they are missing."""
    try:
        steps = read_steps({**fields, "resample": None})
    except ValueError:
        return {}
    both = {"mean": steps.mean, "std": steps.std}
    counts = [len(each) for each in both.values() if isinstance(each, list)]
    return {
        name: (
            np.broadcast_to(each, max(counts, default=3)) / (steps.scale * 255)
        ).tolist()
        for name, each in both.items()
    }


def _by_name(sides: Iterable[int]) -> dict[str, int]:
    return dict(zip(("height", "width"), sides, strict=True))


def _sides(size: Any) -> tuple[int, int] | None:
    """Rows and columns of one number or two; None if they are not sizes."""
    size = [size, size] if isinstance(size, int) else size
    if not _is_numbers(size, 2) or not all(0 < x <= MAX_IMAGE_SIZE for x in size):
        return None
    return size[0], size[1]


def _is_numbers(values: Any, count: int | None = None) -> bool:
    """Whether `values` is a list of numbers, `count` of them if it is given."""
    return (
        isinstance(values, list)
        and count in (None, len(values))
        and all(type(value) in (int, float) for value in values)
    )
