"""Elastic deformation and quarter turns, for images with a label for each pixel.

Legend: H and W pixels, C channels, G points of a coarse grid along each axis.
"""

import tensorflow as tf

from keras_attn.checks.arguments import check_fraction
from keras_attn.data.images.geometry import Example, image_size
from keras_attn.data.pipelines.epochs import fold_in

# A bicubic curve needs this many points.
_SMALLEST_GRID = 2


class ElasticDeformation:
    """Deforms images and labels smoothly, by random displacements on a coarse grid.

    Each point of a G × G grid over the image is moved by a normally distributed number
    of pixels; in between, displacements are interpolated by cubic splines. Images are
    sampled linearly, labels at the nearest pixel. Beyond the border the image is
    mirrored, as U-Net does when it tiles an image.

    Args:
        sigma: Standard deviation of the displacements in pixels.
        grid: G, at least 2.
        max_turn: Maximum rotation around the center, as a share of a full turn,
            in [0, 1).

    Raises:
        ValueError: If `sigma` is negative, `grid` is too coarse or `max_turn` is out of
            range; or, when called, if the example has boxes.

    Reference:
        Ronneberger et al. 2015, section 3.1: 10 pixels on a 3 × 3 grid
        (arXiv:1505.04597).
    """

    def __init__(self, sigma: float = 10.0, grid: int = 3, max_turn: float = 0.0):
        if not sigma >= 0:
            raise ValueError(f"`sigma` must be at least 0. Received: sigma={sigma!r}")
        if not isinstance(grid, int) or grid < _SMALLEST_GRID:
            raise ValueError(
                f"`grid` must be an integer of at least {_SMALLEST_GRID}. "
                f"Received: grid={grid!r}"
            )
        self.sigma = float(sigma)
        self.grid = grid
        self.max_turn = check_fraction("max_turn", max_turn)

    def __call__(self, example: Example, seed: tf.Tensor) -> Example:
        """Returns the example, deformed."""
        _refuse_boxes(example, "ElasticDeformation")
        height, width = image_size(example)
        numbers = tf.random.stateless_normal([1, self.grid, self.grid, 2], seed)
        displacements = tf.raw_ops.ResizeBicubic(
            images=numbers * self.sigma,
            size=tf.stack([height, width]),
            align_corners=True,
        )[0]
        rows, columns = tf.meshgrid(
            tf.range(height, dtype=tf.float32),
            tf.range(width, dtype=tf.float32),
            indexing="ij",
        )
        if self.max_turn:
            share = tf.random.stateless_uniform([], fold_in(seed, 1), -1.0, 1.0)
            angle = share * self.max_turn * 6.2831853
            rows, columns = _turned(rows, columns, angle)
        rows, columns = rows + displacements[..., 0], columns + displacements[..., 1]
        moved = {**example, "image": sample(example["image"], rows, columns)}
        if "labels" in example:
            labels = example["labels"]
            moved["labels"] = tf.ensure_shape(
                _gather(labels, tf.round(rows), tf.round(columns)), labels.shape
            )
        return moved


class RandomQuarterTurns:
    """Turns images and labels by 0, 90, 180 or 270 degrees, with equal probability.

    With `RandomMirror(0.5)` before, these are the eight symmetries of a square, for
    images without an upright direction. Images that are not square change their size;
    resize them afterwards.
    """

    def __call__(self, example: Example, seed: tf.Tensor) -> Example:
        """Returns the example, turned."""
        _refuse_boxes(example, "RandomQuarterTurns")
        turns = tf.random.stateless_uniform([], seed, 0, 4, tf.int32)
        turned = {**example, "image": tf.image.rot90(example["image"], turns)}
        if "labels" in example:
            labels = tf.image.rot90(example["labels"][..., None], turns)
            turned["labels"] = labels[..., 0]
        return turned


def sample(image: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Values between the pixels of an image, interpolated linearly.

    Args:
        image: (H, W, C), mirrored beyond its border.
        rows: Where to sample, float32, of any shape; 0 is the center of the first row.
        columns: The same.

    Returns:
        float32, the shape of `rows` followed by C.
    """
    top, left = tf.floor(rows), tf.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    upper = _gather(image, top, left) * (1 - right)
    upper += _gather(image, top, left + 1) * right
    lower = _gather(image, top + 1, left) * (1 - right)
    lower += _gather(image, top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def _gather(values: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Values (H, W, …) at whole rows and columns, mirrored beyond the border."""
    shape = tf.shape(values)
    rows = _mirrored(tf.cast(rows, tf.int32), shape[0])
    columns = _mirrored(tf.cast(columns, tf.int32), shape[1])
    flat = tf.reshape(values, tf.concat([[-1], shape[2:]], 0))  # (H·W, …)
    return tf.gather(flat, rows * shape[1] + columns)


def _mirrored(index: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Indices in [0, size), mirrored without repeating the border: 2 1 0 1 2 1 0."""
    period = tf.maximum(2 * size - 2, 1)
    index = tf.math.floormod(index, period)
    return tf.minimum(index, period - index)


def _turned(rows, columns, angle):
    """Coordinates turned around the center of the image."""
    middle = [tf.reduce_max(each) / 2 for each in (rows, columns)]
    down, right = rows - middle[0], columns - middle[1]
    cosine, sine = tf.cos(angle), tf.sin(angle)
    rows = middle[0] + cosine * down - sine * right
    return rows, middle[1] + sine * down + cosine * right


def _refuse_boxes(example: Example, name: str) -> None:
    if "boxes" in example:
        raise ValueError(
            f"`{name}` is for images with labels: a box would no longer fit its "
            f"object. Received: an example of {sorted(example)}"
        )
