"""The steps of a preprocessing from its fields, as the library that wrote them.

The fields are from transformers' `preprocessor_config.json`. What a file leaves out is
a default of its class of processor, and so is the meaning of `"size": 224`: one side or
both. A field that changes pixels is applied, or refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from keras_attn.files.reading import shown

# PIL's codes, which transformers writes, and timm's names.
RESAMPLING = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
}
_AVAILABLE = (1, 2, 3)
# Up to this size ConvNeXt's processor crops; larger images are only resized.
_CROPPED_BELOW = 384
_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
_SIGNED = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
_CLIP = (
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
)


class Processor(NamedTuple):
    """The defaults of a class of image processors.

    Attributes:
        size: `size` if a file has none.
        normalization: `image_mean` and `image_std`.
        crop: `crop_size`, one number for both sides; None = no crop.
        resample: PIL's code.
        is_square: Whether a size of one number means both sides.
    """

    size: Mapping[str, int]
    normalization: tuple[list[float], list[float]]
    crop: int | None = None
    resample: int = 3
    is_square: bool = True


def _both(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


_224, _SHORTEST = _both(224), {"shortest_edge": 224}
# Classes whose steps `ImagePreprocessing` has, without "ImageProcessor". LeViT,
# ConvNeXt and EfficientNet have rules of their own, in the functions below.
PROCESSORS = {
    "Beit": Processor(_224, _SIGNED),
    "Bit": Processor(_SHORTEST, _CLIP, 224, is_square=False),
    "Blip": Processor(_both(384), _CLIP),
    "CLIP": Processor(_SHORTEST, _CLIP, 224, is_square=False),
    "ChineseCLIP": Processor(_SHORTEST, _CLIP, 224, is_square=False),
    "ConvNext": Processor({"shortest_edge": 384}, _SIGNED, is_square=False),
    "DeiT": Processor(_both(256), _SIGNED, 224),
    "EfficientNet": Processor(_both(346), _SIGNED),
    "Levit": Processor(_SHORTEST, _IMAGENET, 224, is_square=False),
    "MobileNetV1": Processor({"shortest_edge": 256}, _SIGNED, 224, 2, False),
    "MobileNetV2": Processor({"shortest_edge": 256}, _SIGNED, 224, 2, False),
    "Pvt": Processor(_224, _IMAGENET),
    "Segformer": Processor(_both(512), _IMAGENET, resample=2),
    "Siglip": Processor(_224, _SIGNED, is_square=False),
    "ViT": Processor(_224, _SIGNED, resample=2),
}
# The class that transformers takes for a type of model if a file names none, as the
# first ones did.
PROCESSOR_OF_MODELS = {
    "beit": "Beit",
    "bit": "Bit",
    "clip": "CLIP",
    "convnext": "ConvNext",
    "convnextv2": "ConvNext",
    "deit": "DeiT",
    "dinov2": "Bit",
    "levit": "Levit",
    "resnet": "ConvNext",
    "segformer": "Segformer",
    "siglip": "Siglip",
    "swin": "ViT",
    "swinv2": "ViT",
    "vit": "ViT",
    "vit_mae": "ViT",
    "vit_msn": "ViT",
}

Role = Literal["applied", "ignored", "refused"]


def _roles(*, applied: str, ignored: str, refused: str = "") -> dict[str, Role]:
    """The role of each field, from the names of the fields of each role."""
    return {
        **dict.fromkeys(applied.split(), "applied"),
        **dict.fromkeys(ignored.split(), "ignored"),
        **dict.fromkeys(refused.split(), "refused"),
    }


# Every field of these classes. "ignored" changes no pixel: what a file is made of (our
# readers make every file the channels of the model), the layout of what is returned,
# labels, and how the library computes. Any other field is refused unless it is off.
FIELDS = _roles(
    applied="image_processor_type feature_extractor_type "
    "do_resize size default_to_square resample "
    "do_center_crop crop_size crop_pct "
    "do_rescale rescale_factor rescale_offset "
    "do_normalize image_mean image_std include_top "
    # Of `ImagePreprocessing`.
    "crop_offset passes covers "
    # Of timm and open_clip: `center`, `squash` and `shortest` are said by `size`.
    "crop_mode resize_mode",
    ignored="do_convert_rgb input_data_format data_format return_tensors "
    "device disable_grouping image_seq_length "
    "do_reduce_labels reduce_labels ignore_index num_labels "
    "do_convert_annotations format transformers_version "
    "processor_class _processor_class _valid_processor_keys _valid_kwargs_names "
    # Without `do_pad`.
    "pad_size",
    refused="do_pad use_square_size do_flip_channel_order do_align_long_axis "
    "do_thumbnail size_divisor keep_aspect_ratio ensure_multiple_of "
    "max_size patch_size max_num_patches",
)
# The fields of timm's `pretrained_cfg` and of open_clip's `preprocess_cfg`. The sizes
# and shares for tests are from timm's own benchmarks, not its defaults.
TIMM_FIELDS = _roles(
    applied="input_size mean std crop_pct crop_mode interpolation",
    ignored="url file state_dict hf_hub_id hf_hub_filename source architecture tag "
    "custom_load test_input_size min_input_size fixed_input_size test_crop_pct "
    "num_classes label_offset label_names label_descriptions "
    "pool_size test_pool_size first_conv classifier "
    "license description origin_url paper_name paper_ids notes",
)
OPEN_CLIP_FIELDS = _roles(
    applied="size mean std interpolation resize_mode",
    ignored="fill_color",  # Without `resize_mode: longest`.
    refused="mode",
)


class Steps(NamedTuple):
    """The arguments of `ImagePreprocessing` that fields ask for."""

    size: int | list[int] | None
    crop_size: list[int] | None
    resample: str
    scale: float
    mean: Any
    std: Any

    @property
    def share(self) -> float:
        """The share of the shorter edge that the crop keeps, at most 1."""
        if self.size is None or self.crop_size is None:
            return 1.0
        resized = self.size if isinstance(self.size, int) else min(self.size)
        return compute_share(min(self.crop_size), resized)


def compute_share(side: int, resized: int) -> float:
    """The share `side / resized`, at most 1; `int(side / share)` is `resized`."""
    share = min(1.0, side / resized)
    return math.nextafter(share, 0) if int(side / share) < resized else share


def read_steps(fields: Mapping[str, Any]) -> Steps:
    """The steps that fields ask for.

    Args:
        fields: The content of a `preprocessor_config.json`.

    Raises:
        ValueError: If one asks for a step that `ImagePreprocessing` lacks, or none says
            what must be known. The message names the field.
    """
    for field, value in fields.items():
        is_off = value is None or value is False
        if FIELDS.get(field, "refused") == "refused" and not is_off:
            expected = "false" if field in FIELDS else "one of the known fields"
            raise _unsupported(field, fields, expected)
    _share(fields)  # Also where it is timm's, and said by `size`.
    kind, defaults = _processor(fields)
    size, crop_size = _geometry(fields, kind, defaults)
    code = _value(fields, "resample", defaults.resample if defaults else 2)
    if size is not None and code not in _AVAILABLE:
        raise _unsupported("resample", fields, "1, 2 or 3 (lanczos to bicubic)")
    scale, mean, std = _normalization(fields, kind, defaults)
    return Steps(size, crop_size, RESAMPLING.get(code, "bicubic"), scale, mean, std)


def make_fields(steps: Steps) -> dict[str, Any]:
    """Fields that ask for these steps, and leave nothing to the defaults of a class."""
    size: Any = steps.size
    if isinstance(size, int):
        size = {"shortest_edge": size}
    elif size is not None:
        size = dict(zip(("height", "width"), size, strict=True))
    fields: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": size is not None,
        "size": size,
        "resample": next(x for x, name in RESAMPLING.items() if name == steps.resample),
        "do_center_crop": steps.crop_size is not None,
        "do_rescale": True,
        "rescale_factor": steps.scale,
        "do_normalize": True,
        "image_mean": steps.mean,
        "image_std": steps.std,
    }
    if steps.crop_size is not None:
        crop_size = dict(zip(("height", "width"), steps.crop_size, strict=True))
        fields["crop_size"] = crop_size
    return fields


def _processor(fields: Mapping[str, Any]) -> tuple[str, Processor | None]:
    """The class of the processor without its suffixes, and its defaults."""
    name = "image_processor_type"
    if fields.get(name) is None:
        name = "feature_extractor_type"
    full = fields.get(name)
    if full is None:
        return "", None
    kind = full if isinstance(full, str) else ""
    for suffix in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(suffix)
    if kind not in PROCESSORS:
        expected = f"one of {', '.join(PROCESSORS)}, or left out"
        raise _unsupported(name, fields, expected)
    return kind, PROCESSORS[kind]


def _geometry(fields: Mapping[str, Any], kind: str, defaults: Processor | None) -> Any:
    """The size that an image is resized to, and the part of it that is kept."""
    for field, known in (
        ("crop_mode", ("center", "squash")),
        ("resize_mode", ("shortest", "squash")),
    ):
        if fields.get(field, known[0]) not in known:
            raise _unsupported(field, fields, " or ".join(map(repr, known)))
    size = crop_size = None
    if _is_on(fields, "do_center_crop", bool(defaults and defaults.crop)):
        crop = _value(fields, "crop_size", defaults.crop if defaults else None)
        crop_size = _sides(fields, "crop_size", crop)
    if not _is_on(fields, "do_resize", True):
        return None, crop_size
    size = _size(fields, defaults)
    if kind == "Levit" and isinstance(size, int):
        return int(256 / 224 * size), crop_size
    if kind != "ConvNext":
        return size, crop_size
    if not isinstance(size, int):
        raise _unsupported("size", fields, "a number or shortest_edge for ConvNeXt")
    if crop_size not in (None, [size, size]):
        raise _unsupported("crop_size", fields, "as `size` for ConvNeXt")
    if size >= _CROPPED_BELOW:
        return [size, size], crop_size
    return int(size / _share(fields)), [size, size]


def _size(fields: Mapping[str, Any], defaults: Processor | None) -> Any:
    """One number for the shorter edge, or two sides."""
    size = _value(fields, "size", defaults.size if defaults else None)
    if isinstance(size, Mapping) and _keys(size) == {"shortest_edge"}:
        return _side(fields, "size", size["shortest_edge"])
    if type(size) is not int:
        return _sides(fields, "size", size)
    is_square = _value(
        fields, "default_to_square", defaults.is_square if defaults else None
    )
    if is_square is None:
        expected = "shortest_edge, or height and width, without image_processor_type"
        raise _unsupported("size", fields, expected)
    return _sides(fields, "size", size) if is_square else _side(fields, "size", size)


def _share(fields: Mapping[str, Any]) -> float:
    share = _value(fields, "crop_pct", 224 / 256)
    if type(share) not in (int, float) or not 0.01 <= share <= 1:
        raise _unsupported("crop_pct", fields, "a share from 0.01 to 1")
    return share


def _normalization(
    fields: Mapping[str, Any], kind: str, defaults: Processor | None
) -> tuple[float, Any, Any]:
    """Scale, mean and deviation: `(pixels * scale - mean) / deviation`."""
    scale, offset, mean, std = 1.0, 0.0, 0.0, 1.0
    if _is_on(fields, "do_rescale", True):
        scale = _value(fields, "rescale_factor", 1 / 255)
        offset = float(_is_on(fields, "rescale_offset", False))
    known = defaults.normalization if defaults else (None, None)
    stated = _numbers(fields, "image_std", known[1])
    if _is_on(fields, "do_normalize", True):
        mean, std = _numbers(fields, "image_mean", known[0]), stated
        if mean is None or std is None:
            missing = "image_mean" if mean is None else "image_std"
            raise _unsupported(missing, fields, "the numbers of the channels")
    if offset:
        # Pixels from -1, of which the mean is subtracted.
        mean = [each + offset for each in mean] if isinstance(mean, list) else offset
    # EfficientNet's classifiers of TensorFlow were trained on images divided again.
    if _is_on(fields, "include_top", kind == "EfficientNet"):
        if kind != "EfficientNet" or not isinstance(stated, list):
            raise _unsupported("include_top", fields, "false, or EfficientNet's")
        by = std if isinstance(std, list) else [1.0] * len(stated)
        std = [first * second for first, second in zip(by, stated, strict=True)]
    return scale, mean, std


def _value(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value


def _is_on(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = _value(fields, name, default)
    if not isinstance(value, bool):
        raise _unsupported(name, fields, "true or false")
    return value


def _keys(size: Mapping[str, Any]) -> set[str]:
    return {key for key, value in size.items() if value is not None}


def _side(fields: Mapping[str, Any], name: str, side: Any) -> int:
    if type(side) is not int or side < 1:
        raise _unsupported(name, fields, "a whole number of pixels")
    return side


def _sides(fields: Mapping[str, Any], name: str, size: Any) -> list[int]:
    if type(size) is int:
        size = [size, size]
    if isinstance(size, Mapping) and _keys(size) == {"height", "width"}:
        size = [size["height"], size["width"]]
    if not isinstance(size, list) or len(size) != 2:
        raise _unsupported(name, fields, "a number, shortest_edge, or height and width")
    return [_side(fields, name, side) for side in size]


def _numbers(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    """A number, or a list of them; None if it is unknown."""
    value = _value(fields, name, default)
    each = value if isinstance(value, list | tuple) else [value]
    if value is not None and not all(type(x) in (int, float) for x in each):
        raise _unsupported(name, fields, "the numbers of the channels")
    return list(value) if isinstance(value, list | tuple) else value


def _unsupported(name: str, fields: Mapping[str, Any], expected: str) -> ValueError:
    return ValueError(
        f"`{name}` of a preprocessing must be {expected}. "
        f"Received: {name}={shown(fields.get(name))}"
    )
