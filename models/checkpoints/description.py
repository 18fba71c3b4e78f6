"""What a folder says about a model besides its sizes: class names and preprocessing.

Libraries store the names of the classes and the preprocessing of images in different
places. Our models have both as attributes, `class_names` and `preprocessing`; the
latter has transformers' fields.
"""

from collections.abc import Mapping
from typing import Any

from keras_attn.file_reading import read_json
from keras_attn.models.checkpoints.config import MAX_IMAGE_SIZE, label_fields
from keras_attn.models.checkpoints.folder import Folder
from keras_attn.models.checkpoints.mapping import layers_of

PREPROCESSING = "preprocessor_config.json"
# Where transformers' processors of images and texts save the same fields.
_PROCESSOR, _OF_IMAGES = "processor_config.json", "image_processor"
# PIL's codes, which transformers writes, and timm's names.
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
# Up to this size ConvNeXt's processor crops; larger images are only resized.
_CROPPED_BELOW = 384


def describe(model: Any, opened: Folder, overrides: Mapping[str, Any]) -> None:
    """Gives a model the class names and the preprocessing of its folder.

    Args:
        model: The model.
        opened: The folder that it was built from.
        overrides: Arguments of its builder that took precedence over the folder's.
    """
    names, layers = class_names_of(opened.config), layers_of(model)
    if names and {"classifier", "class_logits"} & set(layers):
        # Another number of classes means other classes.
        if overrides.get("num_classes", len(names)) == len(names):
            model.class_names = names
    fields = _preprocessing(opened)
    if fields is None or len(model.inputs[0].shape) != 4:
        return
    sides = model.inputs[0].shape[1:3]
    if "image_size" in overrides and None not in sides:
        target = "crop_size" if fields.get("do_center_crop") else "size"
        fields[target] = dict(zip(("height", "width"), sides, strict=True))
    model.preprocessing = fields


def class_names_of(config: Mapping[str, Any]) -> list[str] | None:
    """The names of the classes; None if they are missing, incomplete or generated."""
    for field in ("id2label", "label_names", "class_names", "_class_names"):
        names: Any = config.get(field)
        if isinstance(names, dict):
            names = [names.get(str(index)) for index in range(len(names))]
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            generated = list(label_fields(len(names))["label2id"])
            return None if names == generated else names
    return None


def _preprocessing(opened: Folder) -> dict[str, Any] | None:
    if (opened.path / _PROCESSOR).exists():
        fields = read_json(opened.path / _PROCESSOR).get(_OF_IMAGES)
        if isinstance(fields, dict):
            return fields
    if (opened.path / PREPROCESSING).exists():
        return read_json(opened.path / PREPROCESSING)
    for name, read in (("pretrained_cfg", _from_timm), ("preprocess_cfg", _from_clip)):
        fields = opened.config.get(name)
        if isinstance(fields, dict):
            return read(fields, opened.config)
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


def _from_timm(fields: Mapping[str, Any], _) -> dict[str, Any] | None:
    """The preprocessing in timm's `pretrained_cfg`; None if it is incomplete."""
    mean, std = fields.get("mean"), fields.get("std")
    size: Any = fields.get("input_size")
    if not (_is_numbers(mean) and _is_numbers(std) and _is_numbers(size, 3)):
        return None
    sides = {"height": size[1], "width": size[2]}
    share = fields.get("crop_pct", 1.0)
    if not _is_numbers([share], 1) or not 0.01 <= share <= 1:
        return None
    codes = {name: code for code, name in _RESAMPLING.items()}
    if fields.get("crop_mode") == "squash":
        resized = {side: int(pixels / share) for side, pixels in sides.items()}
    else:
        resized = {"shortest_edge": int(min(sides.values()) / share)}
    return {
        # As in timm: resize, crop the center, rescale, normalize.
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": resized,
        "resample": codes.get(fields.get("interpolation", ""), 3),
        "do_center_crop": True,
        "crop_size": sides,
        # Fields of timm that transformers does not read.
        "crop_pct": share,
        "crop_mode": fields.get("crop_mode", "center"),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def _from_clip(
    fields: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The preprocessing in open_clip's `preprocess_cfg`; None if it is incomplete.

    Args:
        fields: The `preprocess_cfg`.
        config: The configuration, which has the size of the images.
    """
    mean, std = fields.get("mean"), fields.get("std")
    size: Any = config.get("model_cfg")
    for name in ("vision_cfg", "image_size"):
        size = size.get(name) if isinstance(size, dict) else None
    size = fields.get("size") or size
    pair = _sides(list(size) if isinstance(size, tuple) else size)
    mode = fields.get("resize_mode", "shortest")
    if not (_is_numbers(mean) and _is_numbers(std)) or pair is None:
        return None
    sides = dict(zip(("height", "width"), pair, strict=True))
    if mode not in ("shortest", "squash") or (mode == "shortest" and len({*pair}) > 1):
        return None
    codes = {name: code for code, name in _RESAMPLING.items()}
    is_cropped = mode == "shortest"
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": pair[0]} if is_cropped else sides,
        "resample": codes.get(fields.get("interpolation", "bicubic"), 3),
        "do_center_crop": is_cropped,
        "crop_size": sides,
        # A field of `ImagePreprocessing`: open_clip crops as torchvision does.
        "crop_offset": "round",
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


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
    for name, theirs in (("image_mean", "mean"), ("image_std", "std")):
        if _is_numbers(fields.get(name)):
            found[theirs] = fields[name]
    if isinstance(code := fields.get("resample"), int) and code in _RESAMPLING:
        found["interpolation"] = _RESAMPLING[code]
    resized = _sides(fields.get("size"))
    cropped = _sides(fields.get("crop_size")) if fields.get("do_center_crop") else None
    target = cropped or resized
    if resized is None or target is None:
        return found
    share = fields.get("crop_pct")
    if not _is_numbers([share], 1):
        share = min(1.0, min(target) / min(resized))
    keeps_shape = isinstance(fields["size"], dict) and "shortest_edge" in fields["size"]
    if fields.get("image_processor_type", "").startswith("ConvNext"):
        keeps_shape = min(target) < _CROPPED_BELOW
        share = share if keeps_shape else 1.0
    mode = fields.get("crop_mode", "center" if keeps_shape else "squash")
    return {
        **found,
        "input_size": [len(found.get("mean", "rgb")), *target],
        "crop_pct": share,
        "crop_mode": mode,
    }


def _sides(size: Any) -> tuple[int, int] | None:
    """Rows and columns of a size in transformers' forms."""
    if isinstance(size, dict):
        shortest = size.get("shortest_edge")
        size = [size.get("height", shortest), size.get("width", shortest)]
    elif isinstance(size, int):
        size = [size, size]
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
