"""Images as the inputs of a model, whole or in tiles, and its outputs.

Legend: h and w pixels of a file, H and W pixels of an input.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import parse_sides
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.terminal import counting
from keras_attn.data.images.geometry import fit_into, fitting_scale, normalization
from keras_attn.data.images.image_files import read_image
from keras_attn.ops.tiles import Tile, cut_into_tiles

_OVERLAP = 0.25


@dataclass(frozen=True)
class Tiling:
    """Sizes of the tiles into which images are cut.

    Attributes:
        size: h and w of a tile.
        overlap: Smallest share of its side that neighbors have in common.
        batch_size: Tiles per step.
    """

    size: tuple[int, int]
    overlap: float
    batch_size: int


class Output(NamedTuple):
    """The output of a model for an image or a tile.

    Attributes:
        found: Its outputs, without the axis of the batch: an array or arrays by name.
        size: Rows and columns of the image or the tile in the input, where padding
            follows; None = all of it, in its own size.
    """

    found: Any
    size: tuple[int, int] | None


class Outputs(NamedTuple):
    """An image, and the outputs of a model for its tiles.

    Attributes:
        path: The file.
        image: uint8 (h, w, C).
        tiles: Where each tile is; one that is the image if it is not cut.
        outputs: Of each tile, as they are predicted.
    """

    path: Path
    image: np.ndarray
    tiles: list[Tile]
    outputs: Iterator[Output]


def make_tiling(
    network: Network, size: str | None, overlap: float | None, batch_size: int
) -> Tiling | None:
    """The tiles that the options ask for.

    Args:
        network: The model.
        size: `--tiles`: a size, or "model" for the size of the model's input.
        overlap: `--tile-overlap`; None = a quarter.
        batch_size: `--batch-size`.

    Raises:
        ValueError: If there is an overlap without tiles, or no size.
    """
    if size is None:
        if overlap is None:
            return None
        raise ValueError(
            f"--tile-overlap needs --tiles. Received: --tile-overlap {overlap}"
        )
    if size == "model":
        known = network.result.image_size or network.shapes[network.image_input][1:3]
        rows, columns = known
        if rows is None or columns is None:
            raise ValueError(
                "--tiles must be rows and columns, such as 512 or 480x640, for a model "
                "of images of any size. Received: --tiles model"
            )
        sides = rows, columns
    else:
        sides = parse_sides("--tiles", size)
    return Tiling(sides, _OVERLAP if overlap is None else overlap, batch_size)


def predict_images(
    network: Network, files: Sequence[Path], tiling: Tiling | None = None
) -> Iterator[Outputs]:
    """Yields each image with the model's outputs, with a progress bar.

    The outputs of an image are to be read before the next image.

    Args:
        network: The model.
        files: The images.
        tiling: How they are cut; None = they are not.
    """
    with counting("Predicting") as report:
        for number, path in enumerate(files):
            report(number, len(files))
            image = read_image(path, network.result.channels)
            height, width = image.shape[:2]
            tiles = [Tile(0, 0, height, width)]
            rows = 1
            if tiling is not None:
                tiles = cut_into_tiles((height, width), tiling.size, tiling.overlap)
                rows = network.choose_batch_size(tiling.batch_size)

            def outputs(number=number, image=image, tiles=tiles, rows=rows):
                for first in range(0, len(tiles), rows):
                    yield from _predict(network, image, tiles[first : first + rows])
                    report(number + (first + rows) / len(tiles), len(files))

            yield Outputs(path, image, tiles, outputs())


def _predict(
    network: Network, image: np.ndarray, tiles: Sequence[Tile]
) -> Iterator[Output]:
    """The outputs of a model for tiles of one size, in one step."""
    inputs, size = [], None
    for top, left, bottom, right in tiles:
        fitted, size = fitted_image(network.result, image[top:bottom, left:right])
        inputs.append(fitted)
    found = network({network.image_input: np.stack(inputs)})
    for row in range(len(tiles)):
        if isinstance(found, Mapping):
            named = {name: np.asarray(value)[row] for name, value in found.items()}
            yield Output(named, size)
        else:
            yield Output(np.asarray(found)[row], size)


def fitted_image(
    result: Result, image: np.ndarray
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """An image as an input, (H, W, C), and its own size in it.

    As in training: the aspect ratio is kept, and the rest is padded.

    Args:
        result: What the model was fine-tuned to: its size and normalization.
        image: Pixels 0 to 255, (h, w, C).
    """
    mean, deviation = normalization(result.normalize, result.channels)
    example = {"image": image.astype(np.float32)}
    size = None
    if result.image_size is not None:
        wanted = (result.image_size[0], result.image_size[1])
        scale = np.asarray(fitting_scale(image.shape[:2], wanted, True))
        height, width = np.rint(scale * image.shape[:2]).astype(int).tolist()
        size = (height, width)
        example = fit_into(example, wanted, True, fill=mean)
    inputs = (np.asarray(example["image"]) - mean) / deviation
    return np.asarray(inputs, np.float32), size
