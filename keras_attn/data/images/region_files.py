"""Regions of images from files, as a detector found them, for ViLBERT.

Legend: B batch, R region slots, r regions of one image, F features, K classes.
"""

import itertools
import os
import zipfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.data.images.image_files import check_folder
from keras_attn.data.pipelines.bad_files import FileData, Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import example_dataset, read_or_skip
from keras_attn.files.reading import MIB, check_file, naming

_SUFFIXES = (".npz", ".tfrecord")
_MAX_BYTES = 256 * MIB
_SUM_TOLERANCE = 1e-2
_REQUIRED = ("features", "boxes", "image_size")
_OPTIONAL = ("class_distributions", "scores")


@dataclass(frozen=True)
class RegionData(FileData):
    """Images of which the regions are in files.

    Attributes:
        names: Name of each image: the name of its file without suffix.
        paths: The files.
        feature_dim: F.
        num_classes: K; 0 if the files have no class distributions.
        skipped: What was left out, with reasons. Bad files are added when they are
            first read.
    """

    names: list[str]
    paths: list[Path]
    feature_dim: int
    num_classes: int
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))
    _lists = ("paths", "names")
    _what = "Files of regions"

    @property
    def _names(self) -> list[str]:
        return list(map(str, self.paths))

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The regions of an image.

        Args:
            number: Its index in `names`.

        Returns:
            A dictionary of `features` float32 (r, F), `boxes` float32 (r, 4),
            `image_size` int32 (2,), `class_distributions` float32 (r, K) and `scores`
            float32 (r,), 1 if the file has none.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is bad; the message names it.
        """
        path = self.paths[number]
        with naming(path):
            return _checked(_read(path), self.feature_dim, self.num_classes)


def read_regions(folder: str | os.PathLike, *, on_error: str = "raise") -> RegionData:
    """Finds the files of regions in a folder: one `.npz` or `.tfrecord` an image.

    A file has r regions, one or more, under these names:

    - `features`: float (r, F), such as the 2,048 numbers of a Faster R-CNN,
    - `boxes`: float (r, 4), left, top, right and bottom in pixels,
    - `image_size`: the height and width of the image, in pixels,
    - `class_distributions` (optional): (r, K), of which each row sums to 1,
    - `scores` (optional): (r,), how certain the detector is of each region.

    A `.tfrecord` has one `tf.train.Example` with the same names, arrays as flat lists
    of floats, row by row.

    Args:
        folder: The folder. The first file decides F, K, and whether there are class
            distributions.
        on_error: "raise" refuses a bad file when it is read. "skip" leaves it out and
            lists it in `data.skipped`.

    Raises:
        ValueError: If the folder does not exist, or lacks the file, has two of one
            name, or none that can be read.
    """
    skipped = Skipped(on_error)
    root = check_folder("folder", folder)
    paths = [path for path in sorted(root.iterdir()) if path.suffix in _SUFFIXES]
    if not paths:
        raise ValueError(
            f"`folder` must have files of regions, {' or '.join(_SUFFIXES)}. "
            f"Received: folder={str(folder)!r}, which has none"
        )
    names = [path.stem for path in paths]
    # Sorted, so equal names are neighbors.
    double = [one for one, next_ in itertools.pairwise(sorted(names)) if one == next_]
    if double:
        raise ValueError(
            "`folder` must have one file of each name. "
            f"Received: folder={str(folder)!r}, with {double[0]!r} twice"
        )
    for path in paths:
        try:
            first = _read(path)
            width = _width(first["features"])
            num_classes = _width(first.get("class_distributions"))
            _checked(first, width, num_classes)
        except (ValueError, OSError) as error:
            skipped.add(path.name, ValueError(f"{path}: {error}"))
        else:
            return RegionData(names, paths, width, num_classes, skipped)
    raise ValueError(
        "`folder` must have at least one file of regions that can be read. Received: "
        f"{len(paths)} bad ones{skipped.first}"
    )


def region_dataset(
    data: RegionData,
    *,
    num_regions: int,
    batch_size: int,
    overflow: Literal["raise", "best"] = "raise",
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of regions, padded to one number of slots.

    Args:
        data: From `read_regions`.
        num_regions: R, number of slots.
        batch_size: B.
        overflow: What becomes of an image with more regions than slots: "raise" is an
            error that names it; "best" keeps the regions of the highest scores, in
            their order.
        seed: Seed of the order.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it, such as
            `training.BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: a dictionary of the inputs of ViLBERT,
        `region_features` float32 (B, R, F), `region_boxes` float32 (B, R, 4), left,
        top, right and bottom as shares of the image, and `region_padding_mask` int32
        (B, R), 1 = a real region; of `scores` float32 (B, R); `class_distributions`
        float32 (B, R, K) if the files have them; `image_size` int32 (B, 2), in pixels;
        and `index` int32 (B,), the number of the image in `data`. Padding is 0.

    Raises:
        ValueError: If an argument is out of range.
        tf.errors.InvalidArgumentError: If a file is bad or has too many regions, unless
            `data` was read with `on_error="skip"`. It is raised while the dataset is
            read, and names the file.
    """
    check_positive("batch_size", batch_size)
    slots = check_positive("num_regions", num_regions)
    check_choice("overflow", overflow, ("raise", "best"))
    shapes = {
        "region_features": (slots, data.feature_dim),
        "region_boxes": (slots, 4),
        "region_padding_mask": (slots,),
        "scores": (slots,),
        "image_size": (2,),
    }
    if data.num_classes:
        shapes["class_distributions"] = (slots, data.num_classes)
    integers = ("region_padding_mask", "image_size")
    types = {name: np.int32 if name in integers else np.float32 for name in shapes}

    def read(row):
        found = data.read(row)
        count = len(found["boxes"])
        if count > slots and overflow == "raise":
            raise ValueError(
                f"`num_regions` must be at least {count}, the regions of "
                f'{data.paths[row]}; or pass overflow="best". '
                f"Received: num_regions={slots}"
            )
        best = np.argsort(-found["scores"], kind="stable")[:slots]
        kept = np.sort(best)
        height, width = found["image_size"]
        # A box may end a rounding error outside.
        shares = found.pop("boxes") / np.array([width, height] * 2, np.float32)
        found["region_boxes"] = np.clip(shares, 0, 1)
        found["region_features"] = found.pop("features")
        found["region_padding_mask"] = np.ones(count, np.int32)
        arrays = []
        for name, shape in shapes.items():
            array = np.zeros(shape, types[name])
            values = found[name] if name == "image_size" else found[name][kept]
            array[: len(values)] = values
            arrays.append(array)
        return tuple(arrays)

    blank = [np.zeros(shape, types[name]) for name, shape in shapes.items()]

    def load(row):
        values, is_valid = read_or_skip(row, read, data._names, data.skipped, blank)
        example = {
            name: tf.ensure_shape(value, shape)
            for (name, shape), value in zip(shapes.items(), values, strict=True)
        }
        return {**example, "index": tf.cast(row, tf.int32)}, is_valid

    return example_dataset(
        load,
        lambda example: example,
        len(data),
        data.skipped,
        folder=str(data.paths[0].parent),
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _width(array: np.ndarray | None) -> int:
    """The length of the last axis; 0 if there is none."""
    return np.shape(array)[-1] if array is not None and np.ndim(array) else 0


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name."""
    check_file(path, _MAX_BYTES)
    found = _read_npz(path) if path.suffix == ".npz" else _read_record(path)
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise ValueError(
            f"A file of regions must have {', '.join(_REQUIRED)}. Received: only "
            f"{', '.join(sorted(found)) or 'other names'}; {missing[0]} is missing"
        )
    return found


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(each.file_size for each in archive.infolist())
        if size > _MAX_BYTES:
            raise ValueError(f"at most {_MAX_BYTES} bytes, not {size}")
        with np.load(path, allow_pickle=False) as arrays:
            known = (*_REQUIRED, *_OPTIONAL)
            return {name: arrays[name] for name in known if name in arrays.files}
    except Exception as error:  # NumPy and zlib raise errors of many types.
        raise ValueError(
            f"A file of regions must be a whole `.npz` of numbers. Received: {error}"
        ) from error


def _read_record(path: Path) -> dict[str, np.ndarray]:
    try:
        (record,) = tf.data.TFRecordDataset(str(path)).take(2)
        values = tf.train.Example.FromString(record.numpy()).features.feature
    except Exception as error:  # One record too many or too few, a damaged one.
        raise ValueError(
            "A file of regions must be a whole TFRecord of one `tf.train.Example`. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
    found = {}
    for name in (*_REQUIRED, *_OPTIONAL):
        if name in values:
            kind = values[name].WhichOneof("kind")
            if kind not in ("float_list", "int64_list"):
                raise ValueError(f"`{name}` must be numbers. Received: a {kind}")
            found[name] = np.asarray(getattr(values[name], kind).value, np.float64)
    count = max(found["boxes"].size // 4, 1) if "boxes" in found else 1
    for name in ("features", "boxes", "class_distributions"):
        if name in found and found[name].size % count == 0:
            found[name] = found[name].reshape(count, -1)
    return found


def _checked(found, feature_dim: int, num_classes: int) -> dict[str, np.ndarray]:
    """The arrays with their final types."""
    boxes = np.asarray(found["boxes"], np.float32)
    count = len(boxes) if boxes.ndim == 2 else 0
    if boxes.shape != (count, 4) or not count:
        raise ValueError(
            "`boxes` must have the shape (regions, 4), with one region or more. "
            f"Received: boxes of shape {boxes.shape}"
        )
    expected = {
        "features": (count, feature_dim),
        "scores": (count,),
        "image_size": (2,),
    }
    found = {"scores": np.ones(count, np.float32), **found}
    if num_classes:
        expected["class_distributions"] = (count, num_classes)
    elif "class_distributions" in found:
        raise ValueError("`class_distributions` must be in every file or in none.")
    arrays: dict[str, np.ndarray] = {"boxes": boxes}
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"`{name}` must be in every file or in none.")
        kind = np.asarray(found[name]).dtype.kind
        array = np.asarray(found[name], np.float32) if kind in "fiu" else np.zeros(())
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(
                f"`{name}` must be finite numbers of shape {shape}, for {count} boxes. "
                f"Received: {name} of shape {np.shape(found[name])}"
            )
        arrays[name] = array
    height, width = arrays["image_size"]
    if min(height, width) < 1:
        raise ValueError(
            "`image_size` must be the height and width in pixels. "
            f"Received: image_size={[float(height), float(width)]}"
        )
    arrays["image_size"] = arrays["image_size"].astype(np.int32)
    left, top, right, bottom = boxes.T
    # A detector may give boxes that end a rounding error outside.
    inside = (left >= -1) & (top >= -1) & (right <= width + 1) & (bottom <= height + 1)
    is_good = (left < right) & (top < bottom) & inside
    if not is_good.all():
        bad = int(np.argmin(is_good))
        raise ValueError(
            "`boxes` must have left < right and top < bottom, inside of the image of "
            f"{height:.0f} x {width:.0f} pixels. Received: box {bad}: "
            f"{boxes[bad].tolist()}"
        )
    if num_classes:
        check_distributions(arrays["class_distributions"])
    return arrays


def check_distributions(shares: np.ndarray) -> None:
    """Raises unless the rows of `class_distributions` are probabilities that sum to 1.

    Args:
        shares: (regions, K).
    """
    sums = shares.sum(1)
    is_off = (np.abs(sums - 1) > _SUM_TOLERANCE) | (shares < 0).any(1)
    if is_off.any():
        bad = int(np.argmax(is_off))
        raise ValueError(
            "`class_distributions` must be probabilities that sum to 1 for each "
            f"region. Received: region {bad} with the sum {sums[bad]:.4f} and the "
            f"minimum {shares[bad].min():.4f}"
        )
