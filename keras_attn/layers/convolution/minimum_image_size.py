"""The smallest image that a model with a variable image size accepts."""

import keras

from keras_attn.checks.arguments import check_pair, check_rank
from keras_attn.layers.base import BaseLayer


def is_smaller(size, minimum) -> bool:
    """Whether there are fewer rows or columns than the minimum; None = any number."""
    sides = zip(size, minimum, strict=True)
    return any(side is not None and side < least for side, least in sides)


@keras.saving.register_keras_serializable("keras_attn")
class MinimumImageSize(BaseLayer):
    """Returns images unchanged, and raises an error for images that are too small.

    In a model with a variable image size, the last feature map of an image that is too
    small would be empty. The error raised here names the image; the error of a later
    layer would name a feature map.

    Args:
        minimum_size: Minimum height and width in pixels, one number or two.
        step: Height and width may exceed the minimum only by multiples of this number
            of pixels, one number or two. For networks in which every map that is halved
            must have even sides.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, H, W, C).

    Returns:
        (B, H, W, C), the same tensor.

    Raises:
        ValueError: If an image is smaller than the minimum, or its size is between two
            steps. This is checked if H and W are known: in eager calls, and when a
            function is traced for one size. A function that is traced for any size does
            not check.
    """

    def __init__(
        self,
        minimum_size: int | tuple[int, int],
        step: int | tuple[int, int] = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.minimum_size = check_pair("minimum_size", minimum_size)
        self.step = check_pair("step", step)

    def build(self, inputs_shape):
        self._check(inputs_shape)

    def call(self, inputs):
        self._check(inputs.shape)
        return inputs

    def _check(self, inputs_shape):
        meaning = "(batch, height, width, channels)"
        check_rank("inputs", inputs_shape, 4, meaning)
        if is_smaller(inputs_shape[1:3], self.minimum_size):
            raise ValueError(
                f"The images must have at least {self.minimum_size} pixels, rows "
                "first: the last feature map of smaller ones would be empty. Resize or "
                "pad them, or build the model with fewer stages. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        sides = zip(inputs_shape[1:3], self.minimum_size, self.step, strict=True)
        if any(side is not None and (side - least) % by for side, least, by in sides):
            raise ValueError(
                f"The images must have {self.minimum_size} pixels, rows first, plus "
                f"multiples of {self.step}: at other sizes a map to be halved would be "
                f"odd. Pad them. Received: inputs.shape={tuple(inputs_shape)}"
            )

    def accepted_side(self, side) -> int | None:
        """The smallest number >= `side` that is valid for rows and columns, or None.

        Args:
            side: In pixels.
        """
        pairs = list(zip(self.minimum_size, self.step, strict=True))
        first = max(side, *self.minimum_size)
        # Remainders repeat after the product of both steps.
        for accepted in range(first, first + self.step[0] * self.step[1]):
            if all((accepted - least) % step == 0 for least, step in pairs):
                return accepted
        return None

    def compute_output_shape(self, inputs_shape):
        self._check(inputs_shape)
        return inputs_shape
