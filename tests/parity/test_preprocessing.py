"""Preprocessings as other libraries compute them: the same fields, the same pixels."""

import importlib
import json
from typing import Any

import numpy as np
import pytest
from parity import preprocessing_references as theirs
from parity.torchvision_shim import is_installed, load_torchvision

from keras_attn.models import image_preprocessing
from keras_attn.models.checkpoints import description
from keras_attn.models.parts.preprocessing_fields import (
    FIELDS,
    OPEN_CLIP_FIELDS,
    PROCESSOR_OF_MODELS,
    PROCESSORS,
    TIMM_FIELDS,
)

CASES = json.loads(theirs.FIELDS.read_text())
# Standardized by a deviation of 0.25, a rounding of 6e-8 counts four times.
TOLERANCE = 2e-6
WITHOUT_TRANSFORMERS = pytest.mark.skipif(
    not is_installed("transformers"), reason="transformers is not installed"
)


def layer_of(name, fields):
    """Our layer for the fields of a case."""
    library = name.rsplit("_", 1)[0].removesuffix("_saved")
    config = {"timm": "pretrained_cfg", "open_clip": "preprocess_cfg"}
    for key, field in config.items():
        if library.startswith(key):
            nowhere = theirs.FIELDS.parent / "none"
            given = {field: fields, "model_cfg": None}
            fields = description._preprocessing(nowhere, given)
    return image_preprocessing(fields)


@pytest.mark.parametrize("name", CASES)
def test_fields_give_the_pixels_of_their_library(name):
    layer = layer_of(name, CASES[name])
    with np.load(theirs.PIXELS) as pixels:
        for index, picture in enumerate(theirs.pictures()):
            expected = pixels[f"{name.removesuffix('_saved')}_{index}"]
            found = theirs.thinned(np.asarray(layer(picture[None]))[0])
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * scale)


def test_every_role_is_one_of_three():
    for table in (FIELDS, TIMM_FIELDS, OPEN_CLIP_FIELDS):
        assert set(table.values()) <= {"applied", "ignored", "refused"}
    assert set(PROCESSOR_OF_MODELS.values()) <= set(PROCESSORS)
    assert set(theirs.MODULES) == set(PROCESSORS)


@pytest.mark.parity
@WITHOUT_TRANSFORMERS
def test_the_references_are_what_the_libraries_compute():
    for package in ("torchvision", "timm", "open_clip"):
        if not is_installed(package):
            pytest.skip(f"{package} is not installed")
    fields, found = theirs.references()
    assert fields == CASES
    with np.load(theirs.PIXELS) as pixels:
        assert set(pixels) == set(found)
        for name, image in found.items():
            np.testing.assert_allclose(pixels[name], image, rtol=0, atol=1e-6)


@pytest.mark.parity
@WITHOUT_TRANSFORMERS
@pytest.mark.parametrize("kind", PROCESSORS)
def test_no_field_and_no_default_of_transformers_is_unknown(kind):
    load_torchvision()
    made, ours = theirs.processor_class(kind), PROCESSORS[kind]
    known = set(made.valid_kwargs.__annotations__) | set(made().to_dict())
    assert not known - set(FIELDS)
    assert dict(made.size) == ours.size
    assert (list(made.image_mean), list(made.image_std)) == ours.normalization
    assert made.resample == ours.resample
    assert made.default_to_square == ours.is_square
    assert bool(getattr(made, "do_center_crop", False)) == (ours.crop is not None)
    if ours.crop is not None:
        assert made.crop_size == {"height": ours.crop, "width": ours.crop}


@pytest.mark.parity
@WITHOUT_TRANSFORMERS
def test_models_have_the_processors_of_transformers():
    load_torchvision()
    auto: Any = importlib.import_module(
        "transformers.models.auto.image_processing_auto"
    )
    for model_type, kind in PROCESSOR_OF_MODELS.items():
        names = auto.IMAGE_PROCESSOR_MAPPING_NAMES[model_type]
        assert names["pil"] == f"{kind}ImageProcessorPil", model_type


@pytest.mark.parity
def test_no_field_of_timm_or_open_clip_is_unknown():
    for package, module, name, table in (
        ("timm", "timm.models", "PretrainedCfg", TIMM_FIELDS),
        ("open_clip", "open_clip.transform", "PreprocessCfg", OPEN_CLIP_FIELDS),
    ):
        if not is_installed(package):
            pytest.skip(f"{package} is not installed")
        load_torchvision()
        made: Any = getattr(importlib.import_module(module), name)
        assert set(made.__dataclass_fields__) == set(table)
