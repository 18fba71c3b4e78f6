"""Finds and opens files of pictures, with errors that name the file.

JPEG (also the MPO of drones and phones), PNG, BMP, TIFF, WebP and GIF, whose first
image counts. Photos are turned upright as their cameras recorded. One channel of 16
bits is divided by 257 and rounded, so that 65535 becomes 255; of colors with 16 bits
Pillow keeps the upper 8, which differs by 1 at most.

Legend: H and W pixels.
"""

import functools
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from keras_attn.files.reading import MIB, read_bytes, read_text, shown

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".mpo", ".png", ".bmp")
IMAGE_SUFFIXES += (".tif", ".tiff", ".webp", ".gif")
# Pillow also reads formats whose decoders are rarely audited. MPO is one of JPEG.
_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF")
# Pages of a document or planes of a volume; of other formats the first image counts.
_STACKS = ("TIFF",)
# What file managers leave behind, besides names that begin with a dot.
_LITTER = ("thumbs.db", "desktop.ini")
# Of archives that macOS packed, of Synology's disks, of Windows and of Linux.
_SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found")
_MAX_BYTES = 512 * MIB
# Below the limit above which Pillow itself warns. A PNG of a few kB can claim any size.
_MAX_PIXELS = 80_000_000
_MODES_OF_LABELS = ("1", "L", "P", "I", "I;16", "I;16B")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")


@functools.lru_cache(maxsize=8)
def _opened(path: Path, mtime: int, size: int) -> zipfile.ZipFile:
    """An archive, whose directory is read once, until the file changes."""
    return zipfile.ZipFile(path)


class ZippedFile(NamedTuple):
    """A file in a ZIP archive, which is not unpacked."""

    archive: Path
    member: str

    @property
    def name(self) -> str:
        """The name of the file, for messages."""
        return f"{self.archive.name}/{self.member}"

    @property
    def stem(self) -> str:
        """The name without folder and suffix."""
        return Path(self.member).stem

    def checksum(self) -> list[int]:
        """Size and CRC-32 of the content, from the directory of the archive."""
        info = self._archive().getinfo(self.member)
        return [info.file_size, info.CRC]

    def read_bytes(self, max_bytes: int) -> bytes:
        """The content, of at most `max_bytes`."""
        try:
            archive = self._archive()
            size = archive.getinfo(self.member).file_size
            if size <= max_bytes:
                return archive.read(self.member)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            KeyError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise ValueError(
                f"{self.name} must be a whole file without encryption. "
                f"Received: {str(self.archive)!r}: {error}"
            ) from error
        raise ValueError(
            f"{self.name} must have at most {max_bytes} bytes. Received: {size}"
        )

    def _archive(self) -> zipfile.ZipFile:
        status = self.archive.stat()
        return _opened(self.archive, status.st_mtime_ns, status.st_size)


def read_image(
    path: Path | ZippedFile, channels: int = 3, *, size: tuple[int, int] | None = None
) -> np.ndarray:
    """Reads a picture, turned upright.

    Args:
        path: The file, also one in a ZIP archive.
        channels: 3 for red, green and blue; 1 for gray. Transparency is ignored.
        size: Height and width that annotations give the image. If only the stored image
            has this size, not the upright one, it is not turned: then boxes and masks
            refer to what is stored.

    Returns:
        uint8 (H, W, channels).

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a single complete image of at most 80 million pixels,
            with 8 or 16 bits per channel.
    """
    image = _open(path)
    turned = _turned(image)
    if size is None or _size_of(turned) == size or _size_of(image) != size:
        image = turned
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow would warn.
    if image.mode in _DEEP:
        # Half of 257 is not a whole number, so nothing lies in the middle.
        gray = (np.asarray(image).astype(np.int32) + 128) // 257
        pixels = np.repeat(gray.astype(np.uint8)[..., None], channels, axis=-1)
    else:
        pixels = np.asarray(_converted(image, "RGB" if channels == 3 else "L", path))
    return pixels.reshape(*pixels.shape[:2], channels)


def read_label_image(path: Path, *, as_colors: bool) -> np.ndarray:
    """Reads an image whose pixels are labels.

    Args:
        path: The file.
        as_colors: Whether to look indices up in the palette of the file.

    Returns:
        int32 (H, W), the numbers in the file; or uint8 (H, W, 3), colors.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a complete image, or has colors where numbers are
            expected.
    """
    image = _open(path)
    if as_colors:
        if "transparency" in image.info:
            image = image.convert("RGBA")
        colors = np.asarray(_converted(image, "RGB", path))
        _check_transparency(image, colors, path)
        return colors
    if image.mode not in _MODES_OF_LABELS:
        raise ValueError(
            f"{path.name} must have one number per pixel, as a gray or palette image "
            "has. Colors need `palette`, or on the command line --classes, a file with "
            "a line `name red green blue` per class. "
            f"Received: {str(path)!r} of mode {image.mode!r}"
        )
    return np.asarray(image).astype(np.int32)


def _check_transparency(image: Image.Image, colors: np.ndarray, path: Path) -> None:
    """Raises if labels are in the transparency, which is not read.

    Raises:
        ValueError: If transparent and opaque pixels have a color in common.
    """
    if "A" not in image.getbands():
        return
    is_opaque = np.asarray(image.getchannel("A")) > 127
    numbers = colors.astype(np.int64) @ [65536, 256, 1]
    if np.intersect1d(numbers[is_opaque], numbers[~is_opaque]).size:
        raise ValueError(
            f"{path.name} must say by its colors which class a pixel has; "
            "transparency is not read. Save it as gray, such as only its alpha "
            f"channel. Received: {str(path)!r}, where transparent and opaque pixels "
            "have the same color"
        )


def list_images(name: str, folder: str | os.PathLike) -> dict[str, Path]:
    """The images in a folder, sorted, by their names without suffix.

    Args:
        name: Name of the argument, for messages.
        folder: The folder.

    Raises:
        ValueError: If it is not a folder, or has no images or two of the same name.
    """
    found: dict[str, Path] = {}
    for path in sorted(check_folder(name, folder).iterdir()):
        if not is_picture(path.name):
            continue
        if path.stem in found:
            raise ValueError(
                f"`{name}` must have one image of each name. Received: "
                f"{found[path.stem].name} and {path.name} in {str(folder)!r}"
            )
        found[path.stem] = path
    if not found:
        raise ValueError(
            f"`{name}` must be a folder with images, {', '.join(IMAGE_SUFFIXES)}. "
            f"Received: {name}={str(folder)!r}, which has none"
        )
    return found


def check_folder(name: str, folder: str | os.PathLike) -> Path:
    """The path of a folder, which must exist."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(
            f"`{name}` must be an existing folder. Received: {name}={str(folder)!r}"
        )
    return path


def read_names(path: Path) -> list[str]:
    """The names of images in a split, such as `ImageSets/Main/train.txt`.

    Lines of VOC's one-class splits, "name 1" and "name -1", also count as names.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not UTF-8, names no image, names one twice, or names a path
            outside the folder.
    """
    lines = read_text(path).removeprefix("\ufeff").split("\n")
    names = [line.split()[0] for line in lines if line.strip()]
    if not names:
        raise ValueError(f"{path.name} must name images. Received: {str(path)!r}")
    check_names(names, path)
    return names


def check_names(names: Sequence[str], source: object) -> None:
    """Refuses names that occur twice, or that point outside the image folder."""
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(
                "Each image must be named once. "
                f"Received: {shown(name)} twice in {source}"
            )
        seen.add(name)
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise ValueError(
                "The name of an image must be a path inside the folder of images. "
                f"Received: {shown(name)} in {source}"
            )


class FoundFiles(NamedTuple):
    """The files of a folder or an archive.

    Attributes:
        pictures: The images, sorted.
        others: The files that are none, by path, with the reason.
    """

    pictures: list[Path | ZippedFile]
    others: dict[str, str]


def find_pictures(name: str, source: str | os.PathLike) -> FoundFiles:
    """The images in a folder and its subfolders, or in a ZIP archive, and what is none.

    Hidden files (`is_hidden`), and what file managers leave behind, are neither.

    Args:
        name: Name of the argument, for messages.
        source: The folder or the archive.

    Raises:
        FileNotFoundError: If there is neither.
        ValueError: If it has no images, or is a file that is not a ZIP archive.
    """
    path = Path(source)
    files: list[Path | ZippedFile]
    if path.is_dir():
        names = {each: each.relative_to(path).as_posix() for each in path.rglob("*")}
        # A folder that is named as a picture is one that cannot be read.
        files = [
            each
            for each in sorted(names)
            if not is_hidden(names[each])
            and (is_picture(each.name) or not each.is_dir())
        ]
    elif not path.exists():
        raise FileNotFoundError(
            f"`{name}` must be an existing folder or ZIP archive. "
            f"Received: {name}={str(path)!r}"
        )
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                members = sorted(archive.namelist())
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(
                f"`{name}` must be a folder with images or a whole ZIP archive of "
                f"them. Received: {name}={str(path)!r}: {error}"
            ) from error
        files = [
            ZippedFile(path, each)
            for each in members
            if not each.endswith("/") and not is_hidden(each)
        ]
    found = FoundFiles([], {})
    for each in files:
        if is_picture(each.name):
            found.pictures.append(each)
        elif not _is_litter(each.name):
            path_of = each.member if isinstance(each, ZippedFile) else str(each)
            found.others[path_of] = no_picture(each.name)
    if not found.pictures:
        count = len(found.others)
        none = f"which has none, but {count} other files" if count else "which has none"
        raise ValueError(
            f"`{name}` must have images, {', '.join(IMAGE_SUFFIXES)}. "
            f"Received: {name}={str(path)!r}, {none}"
        )
    return found


def is_picture(name: str) -> bool:
    """Whether a file is read as an image, by its suffix."""
    file = Path(name)
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder that it is in, is hidden, as by a dot.

    So are folders in which systems keep copies and small versions of pictures.

    Args:
        name: Path in the folder that is searched, with "/" between its parts.
    """
    return any(
        x in _SYSTEM_FOLDERS or (x.startswith(".") and x not in (".", ".."))
        for x in name.split("/")
    )


def from_windows(path: str) -> str:
    r"""A path with "/", as Windows' `images\a.jpg` is written elsewhere.

    Args:
        path: The path.
    """
    return path.replace("\\", "/")


def no_picture(name: str) -> str:
    """Why a file that is not a picture is left out."""
    return (
        f"{Path(name).name} must be a picture, {', '.join(IMAGE_SUFFIXES)}. "
        f"Received: the suffix {Path(name).suffix!r}"
    )


def _is_litter(name: str) -> bool:
    file = Path(name).name
    return file.startswith(".") or file.lower() in _LITTER


def _size_of(image: Image.Image) -> tuple[int, int]:
    return image.height, image.width


def _converted(image: Image.Image, mode: str, path: Path | ZippedFile) -> Image.Image:
    """An image of 8 bits per channel in another mode."""
    if image.mode[0] not in "IF":
        try:
            return image.convert(mode)
        except ValueError:
            pass  # A space of colors that Pillow cannot convert.
    raise ValueError(
        f"{path.name} must have gray or colors of 8 bits per channel, or of 16. "
        f"Received: {str(path)!r} of mode {image.mode!r}"
    )


def _turned(image: Image.Image) -> Image.Image:
    """An image with the orientation of its EXIF data applied."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Damaged EXIF data says nothing about the pixels.
        return image


def _open(path: Path | ZippedFile) -> Image.Image:
    """A decoded image."""
    if isinstance(path, ZippedFile):
        content = path.read_bytes(_MAX_BYTES)
    else:
        content = read_bytes(path, _MAX_BYTES)
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        pixels = image.width * image.height
        frames = getattr(image, "n_frames", 1)
        is_stack = frames != 1 and image.format in _STACKS
        if pixels <= _MAX_PIXELS and not is_stack:
            image.load()
    except Exception as error:  # Pillow's decoders raise errors of many types.
        # Pillow would name the bytes as an object in memory.
        is_unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image of these formats" if is_unknown else error
        raise ValueError(
            f"{path.name} must be a complete JPEG, PNG, BMP, TIFF, WebP or GIF file. "
            f"Received: {str(path)!r}, {len(content)} bytes: {reason}"
        ) from error
    if is_stack:
        raise ValueError(
            f"{path.name} must hold one image; save each image of a stack as a "
            f"separate file. Received: {str(path)!r} of {frames} images"
        )
    if pixels > _MAX_PIXELS:
        raise ValueError(
            f"{path.name} must have at most {_MAX_PIXELS} pixels. "
            f"Received: {str(path)!r} of {image.width} x {image.height}"
        )
    return image
