"""Images and texts that describe them, for CLIP: readers and a pipeline.

Legend: B batch, H and W pixels of the processed images, T tokens.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_attn.data.images.coco import check_image, get_entries
from keras_attn.data.images.geometry import Augmentation
from keras_attn.data.images.image_files import (
    ZippedFile,
    check_folder,
    find_pictures,
    read_image,
)
from keras_attn.data.images.unused_files import unused_files
from keras_attn.data.pipelines.bad_files import FileData, Skipped
from keras_attn.data.pipelines.epochs import Epoch
from keras_attn.data.pipelines.examples import (
    check_batches,
    example_dataset,
    image_loader,
)
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.files.reading import MIB, read_json, read_text, shown

# `captions_train2017.json` has 92 MB and about 5 million entries.
_MAX_BYTES = 512 * MIB
_MAX_ENTRIES = 50_000_000


@dataclass(frozen=True)
class ImageTextExample:
    """An image and the texts that describe it.

    Attributes:
        name: Name of the image, as in the annotations.
        image_path: The file, also one in a ZIP archive.
        texts: The texts, at least one.
    """

    name: str
    image_path: Path | ZippedFile
    texts: tuple[str, ...]


@dataclass(frozen=True)
class ImageTextData(FileData):
    """Images with texts.

    Attributes:
        examples: One per image.
        skipped: What was left out, with reasons. Corrupt images are added when they
            are first read.
        notes: What is in the folder or the archive and not in the data set, counted.
    """

    examples: list[ImageTextExample]
    skipped: Skipped = field(default_factory=partial(Skipped, "raise"))
    notes: Sequence[str] = ()

    def read(self, number: int) -> np.ndarray:
        """The image of an example, uint8 (h, w, 3).

        Args:
            number: Its index.
        """
        return read_image(self.examples[number].image_path)


def read_coco_captions(
    annotations: str | os.PathLike,
    image_folder: str | os.PathLike,
    *,
    on_error: str = "raise",
) -> ImageTextData:
    """Reads an annotation file of COCO's captions.

    Args:
        annotations: The JSON file, such as `captions_val2017.json`.
        image_folder: The folder with the images that the file names.
        on_error: "raise" refuses a bad image or caption, and an image without captions.
            "skip" leaves it out; a warning counts them, `data.skipped` lists them.

    Returns:
        The data set: every image once, with all its captions in the order of the file.

    Raises:
        FileNotFoundError: If `annotations` does not exist.
        ValueError: If it is not such a file, if anything in it is bad and
            `on_error="raise"`, or if no image with a caption is left.

    Reference:
        Chen et al. 2015, "Microsoft COCO Captions" (arXiv:1504.00325).
    """
    skipped = Skipped(on_error)
    path = Path(annotations)
    folder = check_folder("image_folder", image_folder)
    content = read_json(path, _MAX_BYTES, _MAX_ENTRIES)
    images: dict[int, tuple] = {}
    known = set()
    for index, image in enumerate(get_entries(content, "images", path)):
        label = f"{path.name}, image {index}"
        known.add(shown(image.get("id")))
        with skipped.collecting(label):
            number, checked = check_image(image, folder, label)
            if number in images:
                raise ValueError(
                    f"{label} must have an `id` of its own. Received: id={number}"
                )
            images[number] = checked
    texts: dict[int, list[str]] = {number: [] for number in images}
    for index, entry in enumerate(get_entries(content, "annotations", path)):
        label = f"{path.name}, annotation {index}"
        number: Any = entry.get("image_id")
        with skipped.collecting(label):
            if type(number) is not int or number not in images:
                if shown(number) in known:
                    continue  # The image itself was left out.
                raise ValueError(
                    f"{label} must name an image. Received: image_id={shown(number)}"
                )
            texts[number].append(_check_text(entry.get("caption"), label))
    examples = []
    for number, (name, file, _) in images.items():
        if texts[number]:
            examples.append(ImageTextExample(name, file, tuple(texts[number])))
            continue
        error = ValueError(
            f"{path.name}: every image must have a caption. Received: {shown(name)} "
            "without one"
        )
        skipped.add(name, error)
    return _finished(examples, skipped, "annotations", path, image_folder)


def read_image_texts(
    table: str | os.PathLike,
    images: str | os.PathLike,
    *,
    image_column: str | int = 0,
    text_columns: Sequence[str | int] = (1,),
    on_error: str = "raise",
) -> ImageTextData:
    """Reads a table of images and texts: lines of fields with tabs between them.

    Args:
        table: The UTF-8 file, without quoting. Several lines may name one image.
        images: The folder, with subfolders, or the ZIP archive with the images.
        image_column: The column with the name of the image file, whose folder and
            suffix may be left out. A number, from 0, for a table without a header; a
            name for a table whose first line names its columns.
        text_columns: The columns with texts, by number or name like `image_column`.
            Empty fields are left out.
        on_error: "raise" refuses a bad line. "skip" leaves it out; a warning counts
            them, `data.skipped` lists them.

    Returns:
        The data set: every image once, in the order of the table.

    Raises:
        FileNotFoundError: If the table, folder or archive does not exist.
        ValueError: If a column is missing or negative, if a line is too short, has no
            text or names no image, or several, and `on_error="raise"`, or if no line is
            left.

    Example:
        Needs a table of texts, and images in a ZIP file or a folder:

        ```python
        from keras_attn import data

        emoji = data.read_image_texts(
            "emoji/emoji.tsv",
            "emoji/noto.zip",
            image_column="hexcode",
            text_columns=["name", "keywords"],
        )
        ```
    """
    skipped = Skipped(on_error)
    path = Path(table)
    found = _by_name(find_pictures("images", images).pictures, Path(images))
    lines = list(_rows(path))
    columns: list[str | int] = [image_column, *text_columns]
    if len(columns) < 2 or len({type(column) for column in columns}) > 1:
        raise ValueError(
            "`image_column` and `text_columns` must all be numbers or all be names, at "
            f"least one text. Received: image_column={image_column!r}, "
            f"text_columns={text_columns!r}"
        )
    indices = [column for column in columns if isinstance(column, int)]
    if any(index < 0 for index in indices):
        raise ValueError(
            "`image_column` and `text_columns` must count from 0. Received: "
            f"image_column={image_column!r}, text_columns={text_columns!r}"
        )
    if not indices:
        header = lines.pop(0)[1] if lines else []
        missing = [column for column in columns if column not in header]
        if missing:
            raise ValueError(
                f"{path.name} must name the columns {columns} in its first line. "
                f"Received: {str(path)!r} without {missing}, with {shown(header)}"
            )
        indices = [header.index(str(column)) for column in columns]
    texts: dict[str, list[str]] = {}
    files: dict[str, Path | ZippedFile] = {}
    for number, row in lines:
        label = f"{path.name}, line {number}"
        with skipped.collecting(label):
            if len(row) <= max(indices):
                raise ValueError(
                    f"{label} must have at least {max(indices) + 1} fields with tabs "
                    f"between them. Received: {shown(row)}"
                )
            name, *fields = (row[index].strip() for index in indices)
            files.setdefault(name, _get_file(name, found, label))
            kept = [text for text in fields if text]
            if not kept:
                raise ValueError(f"{label} must have a text. Received: {shown(row)}")
            texts.setdefault(name, []).extend(kept)
    examples = [
        ImageTextExample(name, files[name], tuple(texts[name])) for name in texts
    ]
    return _finished(examples, skipped, "table", path, images)


def read_named_pictures(images: str | os.PathLike) -> ImageTextData:
    """Pictures that are described by the names of their files.

    "red_heart.png" has the text "red heart". Other files are listed as `skipped`.

    Args:
        images: A folder, with subfolders, or a ZIP archive.

    Raises:
        FileNotFoundError: If there is neither.
        ValueError: If it has no images, or a name is nothing but "_".
    """
    examples, skipped = [], Skipped("raise")
    pictures, others = find_pictures("images", images)
    for name, reason in others.items():
        skipped.note(name, reason)
    for file in pictures:
        text = file.stem.replace("_", " ").strip()
        if not text:
            raise ValueError(
                "`images` must have files whose names describe them. "
                f"Received: {file.name!r}"
            )
        examples.append(ImageTextExample(file.name, file, (text,)))
    notes = unused_files(Path(images), [each.image_path for each in examples])
    return ImageTextData(examples, skipped, notes)


def image_text_dataset(
    data: ImageTextData,
    tokenizer: TextTokenizer,
    preprocessing: Callable[[tf.Tensor], tf.Tensor],
    *,
    batch_size: int,
    max_length: int | None = None,
    augmentations: Sequence[Augmentation] = (),
    seed: int = 0,
    shuffle: bool = False,
    epoch: Epoch = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of images, each with one of its texts, for `model.fit`.

    With `shuffle` the text is drawn anew in each epoch, as a function of the seed, the
    epoch and the number of the image; otherwise it is the first one.

    Args:
        data: From one of the readers.
        tokenizer: Encodes the texts.
        preprocessing: An `ImagePreprocessing` that returns images of a known size, or
            a function from float32 (1, h, w, 3), 0 to 255, to float32 (1, H, W, 3).
        batch_size: B.
        max_length: T, to which texts are truncated and padded. Default: the tokenizer's
            own maximum.
        augmentations: Functions of an example and a seed, such as
            `RandomColors()`, applied in this order before the preprocessing.
        seed: Seed of the order, the texts and the augmentations.
        shuffle: Whether each epoch has a new random order.
        epoch: Number of the epoch, or a `tf.Variable` that holds it, such as
            `training.BackupAndResume.epoch`. None counts the iterations.
        drop_remainder: Whether the last batch is left out if it is smaller.

    Returns:
        A dataset of known cardinality: a dictionary of `images` float32 (B, H, W, 3),
        and `token_ids` and `padding_mask` int32 (B, T).

    Raises:
        ValueError: If `data` has no images, or `max_length` is missing.
        tf.errors.InvalidArgumentError: If an image is corrupt, unless `data` was read
            with `on_error="skip"`. It is raised while the dataset is read, and names
            the file.
    """
    check_batches(data, batch_size)
    packed = tokenizer.encode_batch(
        [text for example in data.examples for text in example.texts],
        max_length=max_length,
        pad_to_max_length=True,
    )
    counts = np.array([len(example.texts) for example in data.examples])
    begins = np.cumsum(counts) - counts
    paths = [example.image_path for example in data.examples]
    load_image = image_loader(paths, data._names, data.skipped)

    def load(row):
        image, is_valid = load_image(row)
        return {"image": image, "row": row}, is_valid

    def choose(example, seed):
        share = tf.random.stateless_uniform([], seed) if shuffle else tf.constant(0.0)
        count = tf.gather(counts, example["row"])
        chosen = tf.cast(share * tf.cast(count, tf.float32), count.dtype)
        chosen = tf.minimum(chosen, count - 1)
        return {**example, "text": tf.gather(begins, example["row"]) + chosen}

    def finish(example):
        return {
            "images": preprocessing(example["image"][None])[0],
            "token_ids": tf.gather(packed["token_ids"], example["text"]),
            "padding_mask": tf.gather(packed["padding_mask"], example["text"]),
        }

    return example_dataset(
        load,
        finish,
        len(data),
        data.skipped,
        augmentations=[choose, *augmentations],
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        epoch=epoch,
        drop_remainder=drop_remainder,
    )


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the fields of each line that is not empty."""
    # Not `splitlines`: a text may have a Unicode line separator.
    text = read_text(path, _MAX_BYTES).removeprefix("\ufeff")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r").split("\t")


def _by_name(
    pictures: Sequence[Path | ZippedFile], root: Path
) -> dict[str, list[Path | ZippedFile]]:
    """The files by their name, with or without folder and suffix."""
    found: dict[str, list[Path | ZippedFile]] = {}
    for file in pictures:
        zipped = isinstance(file, ZippedFile)
        path = Path(file.member) if zipped else file.relative_to(root)
        for key in {str(path), str(path.with_suffix("")), path.name, path.stem}:
            found.setdefault(key, []).append(file)
    return found


def _get_file(
    name: str, found: Mapping[str, list[Path | ZippedFile]], label: str
) -> Path | ZippedFile:
    files = found.get(name, [])
    if len(files) != 1:
        raise ValueError(
            f"{label} must name one image of `images`. "
            f"Received: {shown(name)}, the name of {len(files)} images"
        )
    return files[0]


def _check_text(text: Any, label: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f"{label} must have a `caption`, a text. Received: caption={shown(text)}"
        )
    return text.strip()


def _finished(examples, skipped, name, path, images) -> ImageTextData:
    if not examples:
        raise ValueError(
            f"`{name}` must name images with texts. Received: {name}={str(path)!r}"
        )
    skipped.report(f"Images and texts in {str(path)!r}")
    used = [path, *(example.image_path for example in examples)]
    return ImageTextData(examples, skipped, unused_files(Path(images), used))
