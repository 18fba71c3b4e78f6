"""What image processors of other libraries make of a picture, for many settings.

`python tests/parity/preprocessing_references.py` writes `preprocessing.json`, the
fields of each case, and `preprocessing.npz`, the pixels: of transformers 5.23 as its
classes with Pillow compute them, of timm 1.0 and of open_clip 3.3. Fields are those
that the libraries write, and those of old files, which transformers still reads.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision_shim import load_torchvision

FIELDS = Path(__file__).with_name("preprocessing.json")
PIXELS = Path(__file__).with_name("preprocessing.npz")
# Rows and columns: wide, high, and smaller than what is cropped.
SHAPES = ((31, 50), (47, 23), (9, 12))
MODULES = {
    "Beit": "beit",
    "Bit": "bit",
    "Blip": "blip",
    "CLIP": "clip",
    "ChineseCLIP": "chinese_clip",
    "ConvNext": "convnext",
    "DeiT": "deit",
    "EfficientNet": "efficientnet",
    "Levit": "levit",
    "MobileNetV1": "mobilenet_v1",
    "MobileNetV2": "mobilenet_v2",
    "Pvt": "pvt",
    "Segformer": "segformer",
    "Siglip": "siglip",
    "ViT": "vit",
}
SIDES = {"height": 11, "width": 14}
# Settings of transformers: the class, and fields that differ from its defaults. One
# number, as in old files, means another size in each class.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"size": 13, "crop_size": 11}) for kind in MODULES),
    (
        "ViT",
        {"size": SIDES, "do_center_crop": True, "crop_size": {**SIDES, "width": 9}},
    ),
    ("ViT", {"size": SIDES, "do_rescale": False, "do_normalize": False}),
    ("ViT", {"size": [11, 14], "rescale_factor": 1 / 127.5, "do_normalize": False}),
    ("ViT", {"do_resize": False, "do_center_crop": True, "crop_size": 11}),
    ("ViT", {"size": {"shortest_edge": 11}, "resample": 1}),
    ("DeiT", {"size": SIDES, "crop_size": 8, "do_center_crop": True}),
    ("DeiT", {"size": SIDES, "do_center_crop": False, "image_mean": 0.25}),
    ("Bit", {"size": SIDES, "crop_size": 11, "resample": 2}),
    ("CLIP", {"size": 13, "crop_size": 11, "default_to_square": True}),
    ("CLIP", {"size": {"shortest_edge": 12}, "crop_size": SIDES}),
    ("ConvNext", {"size": 13, "crop_pct": 0.75, "resample": 2}),
    ("ConvNext", {"size": 384, "crop_pct": 0.75}),
    ("ConvNext", {"size": {"shortest_edge": 17}}),
    ("Levit", {"size": SIDES, "crop_size": 9}),
    (
        "EfficientNet",
        {"size": SIDES, "rescale_offset": True, "rescale_factor": 1 / 127},
    ),
    ("EfficientNet", {"size": SIDES, "include_top": False, "do_normalize": False}),
    (
        "EfficientNet",
        {"size": SIDES, "do_normalize": False, "image_std": [0.5, 1, 2.0]},
    ),
]
TIMM: list[dict[str, Any]] = [
    {"input_size": [3, 14, 14], "crop_pct": 0.9},
    {"input_size": [3, 14, 21], "crop_pct": 0.8, "interpolation": "bilinear"},
    {"input_size": [3, 14, 13], "crop_pct": 0.9, "crop_mode": "squash"},
    {"input_size": [3, 13, 13], "mean": [0.5] * 3, "std": [0.25] * 3},
]
OPEN_CLIP: list[dict[str, Any]] = [
    {"size": 14},
    {"size": [14, 21], "interpolation": "bilinear"},
    {"size": 13, "interpolation": "bilinear", "resize_mode": "squash"},
    {"size": [13, 9], "mean": [0.5] * 3, "std": [0.25] * 3, "resize_mode": "squash"},
]


def pictures():
    """Noise of each of the shapes, uint8."""
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, (*shape, 3)).astype("uint8") for shape in SHAPES]


def thinned(image):
    """Every other pixel or fewer, so that the file is small."""
    step = max(2, image.shape[0] // 16)
    return image[::step, ::step]


def processor_class(kind: str) -> Any:
    """A class of transformers that computes with Pillow."""
    name = MODULES[kind]
    module = importlib.import_module(
        f"transformers.models.{name}.image_processing_pil_{name}"
    )
    return getattr(module, f"{kind}ImageProcessorPil")


def _of_transformers(kind, fields):
    processor = processor_class(kind)(**fields)
    found = []
    for picture in pictures():
        (pixels,) = processor(Image.fromarray(picture))["pixel_values"]
        found.append(np.moveaxis(pixels, 0, -1))
    return found


def _of_timm(fields):
    data: Any = importlib.import_module("timm.data")
    config = data.resolve_data_config(pretrained_cfg=fields)
    return _transformed(data.create_transform(**config, is_training=False))


def _of_open_clip(fields):
    transform: Any = importlib.import_module("open_clip.transform")
    config = transform.PreprocessCfg(**fields)
    return _transformed(transform.image_transform_v2(config, is_train=False))


def _transformed(transform):
    images = [transform(Image.fromarray(picture)) for picture in pictures()]
    return [np.moveaxis(image.numpy(), 0, -1) for image in images]


def references():
    """The fields and the pixels of each case, by its name."""
    load_torchvision()
    fields: dict[str, Any] = {}
    found: dict[str, np.ndarray] = {}
    cases = [
        *(("transformers", kind, each) for kind, each in SETTINGS),
        *(("timm", None, each) for each in TIMM),
        *(("open_clip", None, each) for each in OPEN_CLIP),
    ]
    for number, (library, kind, each) in enumerate(cases):
        name = f"{library}_{number}"
        if kind is not None:
            images = _of_transformers(kind, each)
            # As transformers saves them, and only what an old file has.
            saved = json.loads(processor_class(kind)(**each).to_json_string())
            fields[f"{name}_saved"] = saved
            fields[name] = {"feature_extractor_type": f"{kind}FeatureExtractor", **each}
        else:
            images = (_of_timm if library == "timm" else _of_open_clip)(each)
            fields[name] = each
        for index, image in enumerate(images):
            found[f"{name}_{index}"] = thinned(image).astype("float32")
    return fields, found


if __name__ == "__main__":
    settings, pixels = references()
    lines = [f"{json.dumps(x)}: {json.dumps(y)}" for x, y in settings.items()]
    FIELDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    arrays: dict[str, Any] = pixels
    np.savez_compressed(PIXELS, **arrays)
