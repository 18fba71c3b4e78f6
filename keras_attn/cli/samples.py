"""The inputs on which `export` and `verify` compare: `--samples` and `--pixels`.

Legend: B batch, H and W pixels.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_attn.cli.opened_model import OpenedModel
from keras_attn.cli.terminal import say

if TYPE_CHECKING:
    import numpy as np

    from keras_attn.cli.finetuning.result import Result

_MAX_IMAGES = 256
# Tasks of runs whose images keep their aspect ratio and are padded.
_FITTED = ("segmentation", "detection", "instance_segmentation")
# Mean and standard deviation of pixels in [0, 1], by the value of --pixels.
NORMALIZATIONS = {
    "unit": (0.0, 1.0),
    "signed": (0.5, 0.5),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "bytes": (0.0, 1 / 255),
}


def read_samples(
    path: Path | None,
    opened: OpenedModel,
    shapes: Mapping[str, tuple[int | None, ...]],
    length: int | None,
    tokenizer: Any,
    pixels: str | None,
) -> Any:
    """Reads sample inputs.

    Args:
        path: An `.npz` of one array per input; a text file with one text per line; an
            image or a folder of images. None means no samples.
        opened: The model that the inputs are for.
        shapes: The shapes of the artefact's inputs by name, which fix sizes that the
            model leaves open; empty if there is no artefact yet.
        length: Tokens per row of inputs made from texts, or rows and columns of images
            of any size. Default: the longest; the size of the images.
        tokenizer: The value of `--tokenizer`; if given, the texts themselves are the
            inputs.
        pixels: The value range of images; a key of `NORMALIZATIONS`. None = the
            model's own preprocessing.

    Returns:
        Arrays by input name, or the only input.
    """
    if path is not None and (path.is_dir() or _is_image(path)):
        return _read_images(path, opened, shapes, length, pixels)
    if pixels is not None:
        raise ValueError(
            "--pixels requires an image or a folder of images as --samples. Received: "
            f"--pixels {pixels}, --samples {str(path) if path else None!r}"
        )
    if path is None:
        return None
    if tokenizer is not None:
        return {"text": path.read_text(encoding="utf-8").splitlines()}
    if path.suffix == ".npz":
        return _read_arrays(path)
    if not opened.has_tokenizer:
        raise ValueError(
            "--samples must be an `.npz` with one array per input, or images, if MODEL "
            f"is a `.keras` file. Received: {str(path)!r}"
        )
    # An artefact may take one number of tokens per row only.
    shape = shapes.get("token_ids", ())
    length = length or (shape[1] if len(shape) == 2 else None)
    lines = path.read_text(encoding="utf-8").splitlines()
    return opened.encode([line for line in lines if line.strip()], length)


def check_calibrated(quantization: str | None, samples: Path | None) -> None:
    """Raises if int8 is requested without samples.

    Raises:
        ValueError: If it is; the message names the options, not the arguments of
            `export`.
    """
    if quantization == "int8" and samples is None:
        raise ValueError(
            "--samples must be given for int8, which is accurate only for inputs "
            "similar to its calibration data: an `.npz`, texts, or a folder of "
            "images. Received: no --samples"
        )


def input_shapes(runner) -> dict[str, tuple[int | None, ...]]:
    """The shapes of the first signature's inputs, by name."""
    # The others take them too, or a state: `step` takes one token per row, (B,).
    names = [name for name in runner.signatures if name != "step"]
    inputs = runner.signatures[names[0]].inputs if names else {}
    return {name: info.shape for name, info in inputs.items()}


def _read_arrays(path: Path) -> "dict[str, np.ndarray]":
    import zipfile

    import numpy as np

    try:
        return dict(np.load(path))
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"--samples must be a valid `.npz` of plain arrays ({error}). "
            f"Received: {str(path)!r}"
        ) from error


def _is_image(path: Path) -> bool:
    from keras_attn.data.images.image_files import is_picture

    return is_picture(path.name)


def _read_images(
    path: Path,
    opened: OpenedModel,
    shapes: Mapping[str, tuple[int | None, ...]],
    length: int | None,
    pixels: str | None,
) -> "np.ndarray":
    """Images at the size of the model's input and in its value range, (B, H, W, C)."""
    import numpy as np

    from keras_attn.cli.finetuning.result import read_result
    from keras_attn.data.images.image_files import read_image

    height, width, channels = _image_shape(opened, shapes, length)
    result = read_result(opened.path) if opened.path.is_dir() else None
    prepare = _preparation(opened, result, height, width, pixels)
    files = _image_files(path)
    images: list[np.ndarray] = []
    for file in files:
        image = prepare(read_image(file, channels))
        if images and image.shape != images[0].shape:
            raise ValueError(
                "--samples must be images of one size if MODEL takes any size; to "
                "resize them, pass --sequence-length, the rows and columns to export. "
                f"Received: {files[0].name} of {images[0].shape[:2]} and {file.name} "
                f"of {image.shape[:2]} pixels"
            )
        images.append(image)
    return np.stack(images)


def _image_shape(
    opened: OpenedModel,
    shapes: Mapping[str, tuple[int | None, ...]],
    length: int | None,
) -> tuple[int | None, int | None, int]:
    """Rows, columns (None: as in the files) and channels of the model's images."""
    from keras import tree

    tensors = tree.flatten(opened.inputs)
    shape = tuple(tensors[0].shape)[1:]
    if len(tensors) != 1 or len(shape) != 3 or shape[-1] not in (1, 3):
        names = ", ".join(tensor.name for tensor in tensors)
        raise ValueError(
            "MODEL must take one input, images (B, H, W, 1 or 3), if --samples are "
            "images; for other inputs pass an `.npz` with one array per input. "
            f"Received: a model with the inputs {names} and the shape {shape}"
        )
    fixed = next(iter(shapes.values()), (None, *shape))[1:]
    height, width = (
        size or known or length for size, known in zip(shape[:2], fixed, strict=False)
    )
    return height, width, shape[-1]


def _preparation(
    opened: OpenedModel,
    result: "Result | None",
    height: int | None,
    width: int | None,
    pixels: str | None,
) -> "Callable[[np.ndarray], np.ndarray]":
    """A function from an image as it is in a file to an input, both (H, W, C).

    It is the preprocessing of the run or of the model, unless `--pixels` states a value
    range: then images are resized to `height` and `width`, None = as in the file.
    """
    import numpy as np

    fields = getattr(opened.model, "preprocessing", None)
    if result is not None:
        fields = result.preprocessing or fields
        if pixels is None and result.task in _FITTED:
            return _fitting(result, height, width)
    if pixels is not None:
        mean, deviation = NORMALIZATIONS[pixels]

        def resize_and_normalize(image):
            shares = _resized(image, height, width) / 255
            return ((shares - np.asarray(mean)) / deviation).astype("float32")

        return resize_and_normalize
    if fields is None:
        raise ValueError(
            "--pixels must be the value range in which MODEL takes images: "
            f"{', '.join(NORMALIZATIONS)}. `keras-attn describe` prints it for every "
            "published model; for your own model, use the range of its training "
            "images. Received: no --pixels"
        )
    from keras import ops

    from keras_attn.models import image_preprocessing

    try:
        layer = image_preprocessing(fields)
    except ValueError as error:
        raise ValueError(
            f"--pixels must be given, because MODEL's preprocessing is unknown: {error}"
        ) from error

    def preprocess(image):
        prepared = ops.convert_to_numpy(layer(image[None]))[0]
        for side, found in zip((height, width), prepared.shape, strict=False):
            if side not in (None, found):
                raise ValueError(
                    f"--pixels must be given for images of {height} × {width} pixels: "
                    "the preprocessing of MODEL returns a different size. "
                    f"Received: {prepared.shape[:2]}"
                )
        return prepared

    return preprocess


def _fitting(
    result: "Result", height: int | None, width: int | None
) -> "Callable[[np.ndarray], np.ndarray]":
    """The preprocessing of a run that learned from pixels or boxes."""
    from dataclasses import replace

    from keras_attn.cli.prediction.image_inputs import fitted_image

    if height is not None and width is not None:
        result = replace(result, image_size=[height, width])
    return lambda image: fitted_image(result, image)[0]


def _image_files(path: Path) -> list[Path]:
    """The images of a folder and its subfolders, or the one file; not too many."""
    if not path.is_dir():
        return [path]
    from keras_attn.data.images.image_files import is_hidden
    from keras_attn.data.images.unused_files import unused_files

    files = sorted(file for file in path.rglob("*") if _is_image(file))
    files = [x for x in files if not is_hidden(x.relative_to(path).as_posix())]
    for line in unused_files(path, files):
        say(f"--samples: {line}", "yellow")
    if not files:
        raise ValueError(
            "--samples must be a folder with images, such as .jpg or .png. "
            f"Received: {str(path)!r}, which has none"
        )
    if len(files) <= _MAX_IMAGES:
        return files
    say(f"--samples: {_MAX_IMAGES} of {len(files)} images are used.", "yellow")
    # Evenly spaced, because folders are commonly classes.
    return [files[i * len(files) // _MAX_IMAGES] for i in range(_MAX_IMAGES)]


def _resized(
    image: "np.ndarray", height: int | None, width: int | None
) -> "np.ndarray":
    """Pixels 0 to 255 of this size, (H, W, C)."""
    import numpy as np
    from PIL import Image

    rows, columns, channels = image.shape
    rows, columns = height or rows, width or columns
    if image.shape[:2] == (rows, columns):
        return image
    picture = Image.fromarray(image[..., 0] if channels == 1 else image)
    resized = picture.resize((columns, rows), Image.Resampling.BILINEAR)
    return np.asarray(resized).reshape(rows, columns, channels)
