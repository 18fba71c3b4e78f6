"""Images of all kinds that occur, and kinds that are refused."""

import numpy as np
import pytest
from PIL import Image

from keras_attn.data.images.image_files import read_image, read_label_image

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 11, 3), np.uint8)


def save(path, image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "tiff"])
def test_lossless_formats(tmp_path, suffix):
    path = save(tmp_path / f"größe 1.{suffix}", Image.fromarray(PIXELS))
    np.testing.assert_array_equal(read_image(path), PIXELS)
    gray = np.asarray(Image.fromarray(PIXELS).convert("L"))
    np.testing.assert_array_equal(read_image(path, 1)[..., 0], gray)


def test_the_content_decides_not_the_suffix(tmp_path):
    path = save(tmp_path / "a.jpg", Image.fromarray(PIXELS), format="PNG")
    np.testing.assert_array_equal(read_image(path), PIXELS)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_jpegs(tmp_path, mode):
    smooth = np.linspace(40, 200, 16 * 24).reshape(16, 24).astype(np.uint8)
    image = Image.fromarray(smooth).convert(mode)
    path = save(tmp_path / "a.jpg", image, quality=95)
    found = read_image(path)
    assert found.shape == (16, 24, 3)
    assert np.abs(found.astype(int) - smooth[..., None]).max() < 12


def test_transparency_is_ignored(tmp_path):
    alpha = np.full((7, 11, 1), 77, np.uint8)
    image = Image.fromarray(np.concatenate([PIXELS, alpha], -1))
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.png", image)), PIXELS)
    # With bytes of transparency for the colors of a palette, of which Pillow warns.
    indices = np.arange(77, dtype=np.uint8).reshape(7, 11) % 3
    image = Image.fromarray(indices).convert("P")
    image.putdata(indices.ravel().tolist())
    colors = [(9, 8, 7), (200, 0, 1), (3, 100, 5)]
    image.putpalette(np.array(colors, np.uint8).ravel().tolist())
    path = save(tmp_path / "b.png", image, transparency=b"\x00\xff\x10")
    expected = np.array(colors)[indices]
    np.testing.assert_array_equal(read_image(path), expected)
    np.testing.assert_array_equal(read_label_image(path, as_colors=True), expected)
    np.testing.assert_array_equal(read_label_image(path, as_colors=False), indices)


def test_the_orientation_of_the_camera_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees.
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS), exif=exif)
    assert read_image(path).shape == (7, 11, 3)


def test_labels_of_1_and_16_bits(tmp_path):
    bits = PIXELS[..., 0] > 100
    path = save(tmp_path / "a.png", Image.fromarray(bits))
    np.testing.assert_array_equal(read_label_image(path, as_colors=False), bits)
    large = PIXELS[..., 0].astype(np.uint16) * 200
    path = save(tmp_path / "b.png", Image.fromarray(large))
    np.testing.assert_array_equal(read_label_image(path, as_colors=False), large)


def test_a_stack_of_images_is_refused(tmp_path):
    image = Image.fromarray(PIXELS)
    path = tmp_path / "train-volume.tif"
    save(path, image, save_all=True, append_images=[image, image])
    with pytest.raises(
        ValueError, match=r"train-volume\.tif must hold one image.*of 3"
    ):
        read_image(path)


def test_one_pixel(tmp_path):
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS[:1, :1]))
    assert read_image(path).shape == (1, 1, 3)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PPM"])
def test_other_formats_are_refused(tmp_path, form):
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS), format=form)
    with pytest.raises(
        ValueError,
        match=r"a\.png must be a complete JPEG, PNG, BMP or.* bytes: no image",
    ):
        read_image(path)


def test_folders_and_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no a\.png"):
        read_image(tmp_path / "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ValueError, match=r"b\.png must be a regular file"):
        read_image(tmp_path / "b.png")
