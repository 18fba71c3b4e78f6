"""Pictures and captions as embeddings: sizes, batches, padding, and what is refused."""

import numpy as np
import pytest
from model_cases import create, numpy, tiny
from test_clip import CLIP, tokenize

from keras_attn.models import (
    caption_encoder,
    image_preprocessing,
    picture_encoder,
    zero_shot_classifier,
)

CAPTIONS = ["a cat", "a photo of a cat", "of"]


@pytest.fixture(scope="module")
def clip():
    model = create(CLIP)
    rows, columns = model.input["images"].shape[1:3]
    model.preprocessing = {
        "size": {"height": rows, "width": columns},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.4],
    }
    return model


def test_pictures_of_any_size(clip):
    random = np.random.default_rng(0)
    sizes = [(31, 17), (5, 90), (31, 17)]
    pictures = [random.integers(0, 256, (*size, 3), "uint8") for size in sizes]
    found = picture_encoder(clip, batch_size=2)(pictures)
    layer, encoder = image_preprocessing(clip), clip.image_encoder()
    expected = [numpy(encoder(layer(picture[None])))[0] for picture in pictures]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert picture_encoder(clip)([]).shape == (0, found.shape[1])


def test_captions(clip):
    found = caption_encoder(clip, tokenize, batch_size=2)(CAPTIONS)
    expected = numpy(clip.text_encoder()(tokenize(CAPTIONS)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert caption_encoder(clip, tokenize)([]).shape == (0, found.shape[1])
    classifier = zero_shot_classifier(clip, tokenize, CAPTIONS, ["{}"])
    images = np.random.default_rng(1).normal(size=(2, *clip.input["images"].shape[1:]))
    images = images.astype("float32")
    logits = clip.logits(numpy(clip.image_encoder()(images)), found)
    np.testing.assert_allclose(numpy(classifier(images)), logits, atol=1e-4)


def test_what_cannot_be_encoded_is_named(clip):
    for make in (picture_encoder, lambda x, **k: caption_encoder(x, tokenize, **k)):
        with pytest.raises(TypeError, match="`clip` must be a model from `build_clip`"):
            make(tiny("vit_base_patch16"))
        with pytest.raises(ValueError, match="`batch_size` must be .*batch_size=0"):
            make(clip, batch_size=0)
    other = create(CLIP)
    with pytest.raises(ValueError, match="`model` must have a `preprocessing`"):
        picture_encoder(other)
    other.preprocessing = {**clip.preprocessing, "size": {"height": 3, "width": 4}}
    with pytest.raises(ValueError, match=r"the size that the model takes.*\(3, 4, 3\)"):
        picture_encoder(other)
