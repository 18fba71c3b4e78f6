"""Preprocessing from the fields of a folder, in the graph of a model, and of bytes."""

import io
import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_cases import create
from PIL import Image
from variations import in_turn

from keras_attn import models
from keras_attn.data import decode_images
from keras_attn.data.images.image_files import read_image
from keras_attn.layers import ImagePreprocessing
from keras_attn.models.checkpoints import description
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.preprocessing_sizes import fields_for_size

CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 16},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 16, "width": 16},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.25, 1.0],
    "image_std": [0.5, 2.0, 1.0],
}
BARE = {"image_processor_type": None}
BOTH = {"height": 16, "width": 16}
EDGE = {"shortest_edge": 20}
CONVNEXT = {"image_processor_type": "ConvNextImageProcessor"}


def photo(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, columns, 3)).astype("uint8")


def small_model(sides=(16, 16)):
    images = keras.Input((*sides, 3), name="images")
    pooled = keras.layers.GlobalAveragePooling2D()(images)
    model = Functional(images, keras.layers.Dense(5)(pooled), name="tower")
    model.preprocessing = CLIP
    model.class_names = list("abcde")
    return model


def check_config(preprocessing, expected):
    """Asserts these fields of the layer of a preprocessing; returns all."""
    config = models.image_preprocessing(preprocessing).get_config()
    assert {key: config[key] for key in expected} == expected
    return config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"size": 16, "crop_size": [16, 16], "resample": "bicubic"}),
        ({"size": 16, "crop_size": 16}, {"size": 16, "crop_size": [16, 16]}),
        ({"image_processor_type": "ViTImageProcessor", "size": 16}, {"size": [16, 16]}),
        (
            {"size": {"height": 7, "width": 9}, "do_center_crop": False},
            {"size": [7, 9]},
        ),
        ({"do_center_crop": False}, {"crop_size": None}),
        ({"resample": 2}, {"resample": "bilinear"}),
        ({"resample": 1}, {"resample": "lanczos"}),
        ({"do_resize": False, "resample": None}, {"size": None}),
        ({"do_rescale": False}, {"scale": 1.0}),
        ({"do_normalize": False}, {"mean": 0.0, "std": 1.0}),
        ({"crop_offset": "round"}, {"crop_offset": "round"}),
        ({"passes": "columns_first"}, {"passes": "columns_first"}),
        ({**CONVNEXT, "crop_pct": 0.875}, {"size": 18, "crop_size": [16, 16]}),
        (
            {**CONVNEXT, "size": {"shortest_edge": 384}, "do_center_crop": False},
            {"size": [384, 384], "crop_size": None},
        ),
    ],
)
def test_the_fields_give_the_layer(changes, expected):
    check_config({**CLIP, **changes}, expected)


def test_old_fields_of_clip_take_its_defaults():
    fields = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 16}
    fields |= {"crop_size": 12, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    expected = {"size": 16, "crop_size": [12, 12], "resample": "bicubic"}
    check_config(fields, {**expected, "scale": 1 / 255})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"size": {"longest_edge": 3}}, "`size` of a preprocessing must be a number"),
        ({"size": 16, **BARE}, "`size` .* must be shortest_edge, or height and width"),
        ({"crop_size": None, **BARE}, "`crop_size` of a preprocessing must be a num"),
        ({"crop_size": [16, 1.5]}, "`crop_size` .* must be a whole number of pixels"),
        ({"resample": 0}, r"`resample` of .* must be 1, 2 or 3 .*resample=0"),
        ({"image_mean": None, **BARE}, "`image_mean` of a preprocessing must be the n"),
        ({"image_std": ["a"]}, "`image_std` of a preprocessing must be the numbers"),
        ({"do_pad": True}, "`do_pad` of a preprocessing must be false"),
        ({"do_flip_channel_order": True}, "`do_flip_channel_order` .* must be false"),
        ({"sharpen": 2}, "`sharpen` .* must be one of the known fields"),
        ({"do_resize": "false"}, "`do_resize` .* must be true or false"),
        ({"crop_mode": "border"}, "`crop_mode` .* must be 'center' or 'squash'"),
        ({"resize_mode": "longest"}, "`resize_mode` .* must be 'shortest' or 'squash'"),
        ({"crop_pct": 1.5}, "`crop_pct` of a preprocessing must be a share from"),
        ({"include_top": True}, "`include_top` .* must be false, or EfficientNet's"),
        ({"size": {"shortest_edge": 9, "longest_edge": 9}}, "`size` of a preproc"),
        (
            {"image_processor_type": "DetrImageProcessor"},
            "`image_processor_type` .* must be one of Beit, .*'DetrImageProcessor'",
        ),
        ({**CONVNEXT, "size": BOTH}, "`size` .* number or shortest_edge for ConvNeXt"),
        ({**CONVNEXT, "crop_size": 9}, "`crop_size` .* as `size` for ConvNeXt"),
    ],
)
def test_fields_that_ask_for_other_steps_are_named(changes, match):
    with pytest.raises(ValueError, match=match):
        models.image_preprocessing({**CLIP, **changes})


def test_a_model_without_preprocessing_is_refused():
    model = small_model()
    model.preprocessing = None
    with pytest.raises(ValueError, match="`model` must have a `preprocessing`"):
        models.with_preprocessing(model)


def test_the_layer_travels_with_the_model(tmp_path):
    model = small_model()
    served = models.with_preprocessing(model)
    assert served.name == "tower" and served.class_names == tuple("abcde")
    image = photo(31, 45)[None]
    expected = model(models.image_preprocessing(CLIP)(image))
    np.testing.assert_array_equal(served(image), expected)
    served.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(image), expected)
    fixed = models.with_preprocessing(model, image_size=(31, 45), name="fixed")
    assert fixed.input_shape == (None, 31, 45, 3) and fixed.name == "fixed"
    np.testing.assert_allclose(fixed(image), expected, atol=1e-6)


def test_other_models_and_sizes_are_refused():
    with pytest.raises(ValueError, match="take the images|images of the size .*16, 16"):
        models.with_preprocessing(small_model(), ImagePreprocessing(16, crop_size=12))
    tokens = keras.Input((7,))
    other = keras.Model(tokens, tokens * 2.0)
    with pytest.raises(ValueError, match="`model` must take one input, images"):
        models.with_preprocessing(other, ImagePreprocessing(3))


@pytest.mark.parametrize(
    ("change", "received"),
    [
        (lambda image: image / 255, "from 0 to 1"),
        (lambda image: image / 127.5 - 1, "from -1 to 1"),
        (lambda image: image + 0.5, "from 0.5 to 255.5"),
        (lambda image: 2 * image.astype("int32"), "from 0 to 510"),
        (lambda image: image > 99, "of dtype bool"),
    ],
)
def test_pixels_of_another_range_are_refused(change, received):
    served = models.with_preprocessing(small_model())
    image = photo(31, 45)[None]
    image[0, 0, :2, 0] = 0, 255
    for same in (image.astype("float32"), image.astype("int64")):
        np.testing.assert_array_equal(served(same), served(image))
    for call in (served, served.predict):
        with pytest.raises(ValueError, match=rf"`images` must be whole .*{received}"):
            call(change(image))


def test_towers_keep_the_preprocessing_of_their_model():
    clip = create("clip_vit_base_patch32")
    clip.preprocessing = {**CLIP, "crop_size": {"height": 14, "width": 21}}
    encoder = models.build_clip_image_encoder(clip)
    assert encoder.preprocessing == clip.preprocessing
    served = models.with_preprocessing(encoder)
    layer = models.image_preprocessing(clip)
    image = photo(31, 45)[None]
    np.testing.assert_array_equal(served(image), encoder(layer(image)))


def test_the_processor_of_images_and_texts_says_it_too(tmp_path):
    """transformers' `CLIPProcessor` saves no `preprocessor_config.json`."""
    clip = create("clip_vit_base_patch32", image_size=14)
    clip.preprocessing = None
    models.save_checkpoint(clip, tmp_path)
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": CLIP, "processor_class": "CLIPProcessor"})
    )
    assert models.load_checkpoint(tmp_path).preprocessing == CLIP
    # Older ones have other fields there.
    (tmp_path / "processor_config.json").write_text('{"processor_class": "CLIP"}')
    assert models.load_checkpoint(tmp_path).preprocessing is None
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP))
    assert models.load_checkpoint(tmp_path).preprocessing == CLIP


def encoded(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def files():
    """Files of each kind, and what Pillow reads in them."""
    image = Image.fromarray(photo(23, 31))
    alpha = image.copy()
    alpha.putalpha(Image.fromarray(photo(23, 31, 1)[..., 0]))
    palette = image.quantize(37)
    found = {
        "png": encoded(image, "PNG"),
        "alpha": encoded(alpha, "PNG"),
        "gray": encoded(image.convert("L"), "PNG"),
        "gray_alpha": encoded(alpha.convert("LA"), "PNG"),
        "palette": encoded(palette, "PNG"),
        "palette_transparent": encoded(palette, "PNG", transparency=3),
        "bits": encoded(image.convert("1"), "PNG"),
        "jpeg": encoded(image, "JPEG"),
        "gray_jpeg": encoded(image.convert("L"), "JPEG"),
        "bmp": encoded(image, "BMP"),
        "palette_bmp": encoded(palette, "BMP"),
        "gray_bmp": encoded(image.convert("L"), "BMP"),
        "alpha_bmp": encoded(alpha, "BMP"),
        "webp": encoded(image, "WEBP", lossless=True),
        "mpo": encoded(image, "MPO", save_all=True, append_images=[image]),
        "gif": encoded(palette, "GIF", save_all=True, append_images=[palette]),
    }
    return found


@pytest.mark.parametrize("kind", files())
def test_bytes_are_decoded_as_by_pillow(kind):
    content = files()[kind]
    image = Image.open(io.BytesIO(content))
    if "transparency" in image.info:
        image = image.convert("RGBA")
    expected = np.asarray(image.convert("RGB"))
    layer = ImagePreprocessing((23, 31), scale=1.0)
    found = decode_images(tf.constant([content]), layer)
    # Different versions of the JPEG library round differently.
    tolerance = 1 if "jpeg" in kind or kind == "mpo" else 0
    np.testing.assert_allclose(found[0], expected, atol=tolerance)


@pytest.mark.parametrize("form", in_turn(["JPEG", "PNG", "WEBP", "MPO"]))
def test_photos_are_upright_as_files_are_read(tmp_path, form):
    """All eight orientations, in both orders of bytes, and damaged blocks."""
    # One graph for all: the preprocessing makes images of one size.
    layer = ImagePreprocessing((23, 31), scale=1.0)
    serve = tf.function(
        lambda contents: decode_images(contents, layer),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    smooth = Image.fromarray(photo(5, 7)).resize((31, 23), Image.Resampling.BICUBIC)
    contents, expected = [], []
    for value in range(10):
        exif = Image.Exif()
        if value % 2:
            exif.endian = "<"
        exif[0x010F] = "a camera"
        exif[0x0112] = value
        options: dict[str, Any] = {"lossless": True} if form == "WEBP" else {}
        content = encoded(smooth, form, exif=exif, **options)
        contents.append(content)
        path = tmp_path / str(value)
        path.write_bytes(content)
        upright = read_image(path)
        assert upright.shape[:2] == ((31, 23) if 5 <= value <= 8 else (23, 31))
        expected.append(layer(upright[None])[0])
    found = serve(tf.constant(contents))
    tolerance = 1 if form in ("JPEG", "MPO") else 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
    block = contents[6].find(b"MM\0*")
    assert block > 0
    if form == "PNG":  # Its checksums are checked.
        return
    for cut in (4, 8, 12):
        damaged = (
            contents[6][: block + cut] + b"\xff" * 6 + contents[6][block + cut + 6 :]
        )
        assert serve(tf.constant([damaged])).shape == (1, 23, 31, 3)


def test_deep_gray_and_bitmaps_of_other_kinds():
    layer = ImagePreprocessing((3, 4), scale=1.0)
    deep = (np.arange(12).reshape(3, 4) * 5957).astype("uint16")
    content = encoded(Image.fromarray(deep), "PNG")
    found = decode_images(tf.constant([content]), layer)[0]
    expected = np.rint(deep / 257)
    np.testing.assert_array_equal(found, np.repeat(expected[..., None], 3, -1))
    image = Image.fromarray(photo(3, 4))
    compressed = bytearray(encoded(image.quantize(4), "BMP"))
    compressed[30] = 1
    for bad, match in (
        (bytes(compressed), "must be uncompressed"),
        (encoded(image.convert("1"), "BMP"), "(?i)bits per pixel|channels"),
        (b"BM", "must be uncompressed"),
        (encoded(image, "TIFF"), "(?i)unknown image"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            decode_images(tf.constant([bad]), layer)


def test_bytes_in_a_saved_model(tmp_path):
    model = small_model()
    layer = models.image_preprocessing(model)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(image_bytes):
        return {"vectors": model(decode_images(image_bytes, layer))}

    module = tf.Module()
    module.model, module.serve = model, serve
    tf.saved_model.save(module, str(tmp_path), {"serve": serve})
    images = [photo(31, 45), photo(45, 31), photo(16, 16)]
    contents = [encoded(Image.fromarray(image), "PNG") for image in images]
    loaded: object = tf.saved_model.load(str(tmp_path))
    found = loaded.signatures["serve"](tf.constant(contents))["vectors"]
    expected = np.concatenate([model(layer(image[None])) for image in images])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)image"):
        loaded.signatures["serve"](tf.constant([b"no image"]))


def test_bad_contents_and_unknown_sizes_are_refused():
    layer = ImagePreprocessing(16)
    for bad in (tf.constant(b"a"), tf.constant([1])):
        with pytest.raises(ValueError, match=r"`contents` must be strings of shape"):
            decode_images(bad, layer)
    with pytest.raises(ValueError, match="`preprocessing` must return images of a kn"):
        decode_images(tf.constant([b"a"]), layer)


def preprocessing_of(path, **config) -> Any:
    """What is read from a folder with this configuration."""
    return description._preprocessing(path, config)


OPEN_CLIP = {"mean": [0.5, 0.25, 1.0], "std": [0.5, 2.0, 1.0]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"size": 21, "crop_size": [21, 21], "resample": "bicubic"}),
        (
            {"resize_mode": "squash", "interpolation": "bilinear"},
            {"size": [21, 21], "crop_size": None, "resample": "bilinear"},
        ),
        ({"size": [17, 17]}, {"size": 17, "crop_size": [17, 17]}),
    ],
)
def test_folders_of_open_clip(tmp_path, changes, expected):
    vision = {"model_cfg": {"vision_cfg": {"image_size": 21}}}
    fields = {**OPEN_CLIP, "resize_mode": "shortest", **changes}
    found = preprocessing_of(tmp_path, preprocess_cfg=fields, **vision)
    same = {"crop_offset": "round", "mean": OPEN_CLIP["mean"]}
    check_config(found, {**expected, **same})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"resize_mode": "longest"}, "`resize_mode` .* must be 'shortest' or 'squash'"),
        ({"interpolation": "area"}, "`resample` .* must be 1, 2 or 3 .*'area'"),
    ],
)
def test_folders_of_open_clip_with_other_steps_are_refused(tmp_path, changes, match):
    fields = {**OPEN_CLIP, "size": 21, **changes}
    found = preprocessing_of(tmp_path, preprocess_cfg=fields, model_cfg=None)
    with pytest.raises(ValueError, match=match):
        models.image_preprocessing(found)
    fields["size"] = "large"
    assert preprocessing_of(tmp_path, preprocess_cfg=fields, model_cfg=None) is None


def test_a_size_that_is_not_square_is_covered_in_open_clip(tmp_path):
    fields = {**OPEN_CLIP, "size": [17, 19], "interpolation": "bilinear"}
    found = preprocessing_of(tmp_path, preprocess_cfg=fields, model_cfg=None)
    expected = {"covers": True, "size": [17, 19], "crop_size": [17, 19]}
    check_config(found, {**expected, "resample": "bicubic"})


def test_old_files_name_no_processor_and_timms_has_its_own_fields(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    old = {"size": 20, "crop_pct": 0.8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    file.write_text(json.dumps(old))
    for model_type, size, crop_size in (
        ("resnet", 25, [20, 20]),
        ("convnext", 25, [20, 20]),
        ("swin", [20, 20], None),
        ("clip", 20, [224, 224]),
    ):
        found = preprocessing_of(tmp_path, model_type=model_type)
        check_config(found, {"size": size, "crop_size": crop_size})
    assert preprocessing_of(tmp_path) == old
    kind = {"image_processor_type": "TimmWrapperImageProcessor"}
    file.write_text(json.dumps({**kind, "pretrained_cfg": {"input_size": [3, 20, 20]}}))
    expected = {"size": 22, "crop_size": [20, 20]}  # 20 / 0.875
    check_config(
        preprocessing_of(tmp_path), {**expected, "mean": [0.485, 0.456, 0.406]}
    )


@pytest.mark.parametrize(
    ("changes", "sides", "expected"),
    [
        ({"size": EDGE}, [32, 32], {"size": 40}),
        ({"size": EDGE}, [24, 48], {"size": [30, 60], "covers": True}),
        ({"image_processor_type": "LevitImageProcessor"}, [32, 32], {"size": 36}),
        ({**CONVNEXT, "do_center_crop": False}, [32, 32], {"size": 36}),
    ],
)
def test_images_of_another_size_are_cropped_by_the_same_share(changes, sides, expected):
    found = fields_for_size({**CLIP, **changes}, sides)
    check_config(found, {**expected, "crop_size": sides, "mean": CLIP["image_mean"]})


def test_images_of_another_size_without_a_crop_or_a_known_filter():
    fields = {**CLIP, "do_center_crop": False, "size": BOTH}
    check_config(fields_for_size(fields, [7, 9]), {"size": [7, 9]})
    fields = {**CLIP, "resample": 0}
    assert fields_for_size(fields, [7, 9]) == fields


def test_images_that_cover_a_size_have_the_same_pixels_at_unknown_sizes():
    layer = ImagePreprocessing([11, 17], crop_size=[11, 17], covers=True)
    for rows, columns in ((31, 45), (45, 31), (12, 90)):
        image = photo(rows, columns)
        unknown = tf.function(
            layer, input_signature=[tf.TensorSpec([1, None, None, 3])]
        )
        found = unknown(image[None].astype("float32"))
        np.testing.assert_allclose(found, layer(image[None]), atol=1e-6)
    with pytest.raises(ValueError, match="`covers` must be False without a `crop_si"):
        ImagePreprocessing(11, crop_size=11, covers=True)
