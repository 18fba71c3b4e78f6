"""Images of all kinds that occur, and kinds that are refused."""

import zipfile

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from keras_attn.data.images.image_files import (
    find_pictures,
    read_image,
    read_label_image,
)

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


def test_photos_are_upright_unless_annotations_have_their_stored_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees.
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS), exif=exif)
    upright = np.rot90(PIXELS, -1)
    for size in (None, (11, 7), (5, 5)):
        np.testing.assert_array_equal(read_image(path, size=size), upright)
    np.testing.assert_array_equal(read_image(path, size=(7, 11)), PIXELS)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_one_channel_of_16_bits_becomes_8(tmp_path, form):
    deep = np.array([[0, 128, 129, 257, 32896, 65406, 65407, 65535]], np.uint16)
    path = save(tmp_path / "a", Image.fromarray(deep), format=form)
    expected = np.rint(deep / 257).astype("uint8")
    assert expected[0, -1] == 255
    np.testing.assert_array_equal(read_image(path, 1)[..., 0], expected)
    np.testing.assert_array_equal(read_image(path)[..., 2], expected)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_other_depths_are_refused_by_name(tmp_path, dtype):
    path = save(tmp_path / "depth.tif", Image.fromarray(PIXELS[..., 0].astype(dtype)))
    refuses(r"depth\.tif must have .* 8 bits .* mode '[FI]", read_image, path)


def test_the_first_image_of_several_counts(tmp_path):
    first, second = Image.fromarray(PIXELS), Image.fromarray(255 - PIXELS)
    several = {"save_all": True, "append_images": [second]}
    palette = first.quantize(64)
    gif = save(tmp_path / "a.gif", palette, **several)
    np.testing.assert_array_equal(read_image(gif), np.asarray(palette.convert("RGB")))
    for suffix in ("webp", "png"):
        options = {"lossless": True} if suffix == "webp" else {}
        path = save(tmp_path / f"a.{suffix}", first, **several, **options)
        np.testing.assert_array_equal(read_image(path), PIXELS)
    # Drones and phones write a JPEG with a preview after it.
    path = save(tmp_path / "a.jpg", first, format="MPO", quality=95, **several)
    with Image.open(path) as opened:
        assert opened.format == "MPO"
    plain = save(tmp_path / "b.jpg", first, format="JPEG", quality=95)
    np.testing.assert_array_equal(read_image(path), read_image(plain))


def test_palettes_of_bitmaps_are_looked_up(tmp_path):
    palette = Image.fromarray(PIXELS).quantize(16)
    path = save(tmp_path / "a.bmp", palette)
    np.testing.assert_array_equal(read_image(path), np.asarray(palette.convert("RGB")))


def test_what_is_no_picture_is_counted(tmp_path):
    for name in ("a/b.JPG", "c.webp", ".hidden.png", "Thumbs.db", "d.heic", "a/e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_pictures("folder", tmp_path)
    assert [path.name for path in found.pictures] == ["b.JPG", "c.webp"]
    assert set(found.others) == {str(tmp_path / "a/e"), str(tmp_path / "d.heic")}
    reason = found.others[str(tmp_path / "d.heic")]
    assert reason.startswith("d.heic must be a picture, .jpg") and "'.heic'" in reason
    archive = tmp_path / "f.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("g/h.gif", "g/i.txt", "__MACOSX/g/._h.gif"):
            file.writestr(name, b"")
    found = find_pictures("folder", archive)
    assert [path.stem for path in found.pictures] == ["h"]
    assert list(found.others) == ["g/i.txt"]
    (tmp_path / "j").mkdir()
    (tmp_path / "j/k.svg").write_bytes(b"")
    with pytest.raises(ValueError, match="must have images.* has none, but 1 other fi"):
        find_pictures("folder", tmp_path / "j")


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
    refuses(r"train-volume\.tif must hold one image.*of 3", read_image, path)


def test_one_pixel(tmp_path):
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS[:1, :1]))
    assert read_image(path).shape == (1, 1, 3)


def test_other_formats_are_refused(tmp_path):
    path = save(tmp_path / "a.png", Image.fromarray(PIXELS), format="PPM")
    message = r"a\.png must be a complete JPEG, PNG, BMP, .* bytes: no image"
    refuses(message, read_image, path)


def test_folders_and_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no a\.png"):
        read_image(tmp_path / "a.png")
    (tmp_path / "b.png").mkdir()
    refuses(r"b\.png must be a regular file", read_image, tmp_path / "b.png")
