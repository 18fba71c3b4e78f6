"""CLIP as it is served: texts and files of images in, vectors and classes out."""

import io
from pathlib import Path

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from model_cases import build, create

from keras_attn import models

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
skip_module_without_tensorflow("exporters need TensorFlow")

from PIL import Image  # noqa: E402

from keras_attn.data import SentencePieceTokenizer  # noqa: E402
from keras_attn.export import ExportError, export, load_runner, verify  # noqa: E402

pytestmark = pytest.mark.shipped
CLIP = "clip_vit_base_patch32"
REFERENCES = Path(__file__).parent.parent / "data" / "references" / "clip"
PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"height": 14, "width": 21},
    "do_center_crop": False,
    "image_mean": [0.5, 0.25, 1.0],
    "image_std": [0.5, 2.0, 1.0],
}


@pytest.fixture(scope="module")
def clip():
    """A CLIP with the preprocessing of a checkpoint."""
    model = create(CLIP, end_token_id=3)
    model.preprocessing = PREPROCESSING
    return model


def photo(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, columns, 3)).astype("uint8")


def file_of(pixels, format="png"):
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, format)
        return file.getvalue()


def only(outputs):
    (value,) = outputs.values()
    return value


def test_a_large_batch_is_verified(clip, tmp_path):
    encoder = models.build_clip_image_encoder(clip)
    export(encoder, tmp_path / "image", image_bytes=True, batch_size=30)
    serve = load_runner(tmp_path / "image").signatures["serve"]
    assert tuple(serve.inputs["image_bytes"].shape) == (30,)


def test_files_of_images_become_vectors(clip, tmp_path):
    encoder = models.build_clip_image_encoder(clip)
    report = export(encoder, tmp_path / "image", image_bytes=True)
    assert report.inputs == {"serve": {"image_bytes": "string (?)"}}
    assert report.tolerance == 1e-4
    photos = photo(31, 45), photo(50, 20, seed=1)
    layer = models.image_preprocessing(PREPROCESSING)
    expected = [np.asarray(encoder(layer(pixels[None])))[0] for pixels in photos]
    runner = load_runner(tmp_path / "image")
    files = [file_of(photos[0]), file_of(photos[1], "bmp")]
    found = only(runner({"image_bytes": files}))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    # Zeros at the end of a file are kept.
    sample = np.array([file_of(photo(20, 30)) + b"\0\0"], object)
    # `verify` raises if the outputs differ.
    verify(
        encoder,
        tmp_path / "image",
        image_bytes=True,
        sample_inputs={"image_bytes": sample},
    )
    with pytest.raises(
        ValueError, match=r"`inputs\['image_bytes'\]` must be the bytes"
    ):
        runner({"image_bytes": ["photo.png"]})
    with pytest.raises(ExportError, match="cannot run `serve`"):
        runner({"image_bytes": [b"no image"]})


def test_texts_of_siglip_have_full_length(tmp_path):
    # It attends to the padding.
    texts = ["a red heart", "a photo of a small blue sea"]
    tokenizer = SentencePieceTokenizer.train(texts * 9, 40, "siglip")
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "max_sequence_length": 32}
    siglip = create("siglip_base_patch16_224", **sizes)
    export(siglip.text_encoder(), tmp_path / "text", tokenizer=tokenizer)
    found = only(load_runner(tmp_path / "text")({"text": texts}))
    expected = models.caption_encoder(siglip, tokenizer)(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    packed = tokenizer.encode_batch(texts)["token_ids"]
    assert packed.shape[1] < 32
    short = np.asarray(siglip.text_encoder()(packed))
    assert np.abs(short - expected).max() > 1e-4


def test_a_zero_shot_classifier_reads_files(clip, tmp_path):
    def tokenize(captions):
        return np.array([[1 + ord(caption[-2]) % 7, 3] for caption in captions])

    classifier = models.zero_shot_classifier(clip, tokenize, ["cat", "dog"])
    export(classifier, tmp_path / "classes", image_bytes=True)
    pixels = photo(31, 45)
    layer = models.image_preprocessing(PREPROCESSING)
    expected = np.asarray(classifier(layer(pixels[None])))
    runner = load_runner(tmp_path / "classes")
    found = only(runner({"image_bytes": [file_of(pixels)]}))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_what_cannot_be_exported_so_is_named(clip, tmp_path):
    encoder = models.build_clip_image_encoder(clip)

    def refuses(message, model=encoder, path="m", error=ValueError, **options):
        with pytest.raises(error, match=message):
            export(model, tmp_path / path, **{"image_bytes": True, **options})
        assert not list(tmp_path.iterdir())

    for path, format in (("m.tflite", "litert"), ("m.onnx", "onnx")):
        refuses(f"`image_bytes` is only for SavedModels.*format='{format}'", path=path)
    refuses("`tokenizer` must be None if `image_bytes` is True", tokenizer=object())
    refuses("`sequence_length` must be None if", sequence_length=3)
    refuses("`image_bytes` must be .*image_bytes=1", image_bytes=1)
    refuses("`model` must take one input, images", models.build_clip_text_encoder(clip))
    refuses("`model` must take one input, images", clip)
    unknown = build("vit_base_patch16")
    unknown.preprocessing = None
    refuses("`model` must have a `preprocessing`", unknown)
    encoder.preprocessing = {**PREPROCESSING, "size": {"height": 14, "width": 14}}
    refuses("images", encoder)
