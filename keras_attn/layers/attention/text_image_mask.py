"""The sparse mask of a text that is followed by an image, as a layer.

Legend: B batch, T query length, S key length.
"""

import keras

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.layers.base import BaseLayer
from keras_attn.ops import text_image_mask
from keras_attn.ops.image_masks import (
    IMAGE_ATTENTIONS,
    ImageAttention,
    check_window_size,
)


@keras.saving.register_keras_serializable("keras_attn")
class TextImageMask(BaseLayer):
    """Which keys a query attends to in a text that is followed by an image.

    Text is causal. The image sees all of the text, and of the image the last tokens,
    the column above or a window, see `ops.text_image_mask`.

    Args:
        kind: `"row"`, `"column"` or `"convolutional"`.
        text_length: Number of positions before the image.
        num_columns: Columns of the image.
        window_size: Rows and columns of the window of `"convolutional"`, an odd number.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        query_positions: Positions in the sequence, from 0, integers (B, T).
        key_positions: The same of the keys, (B, S).

    Returns:
        Boolean mask, (B, T, S), True = attend.

    Raises:
        ValueError: If `kind` is unknown, a size is not a positive integer, or
            `window_size` is even.

    Reference:
        Ramesh et al. 2021, section 2.2 and figure 11 (arXiv:2102.12092).
    """

    def __init__(
        self,
        kind: ImageAttention,
        text_length: int,
        num_columns: int,
        *,
        window_size: int = 11,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("kind", kind, IMAGE_ATTENTIONS)
        self.kind = kind
        self.text_length = check_positive("text_length", text_length)
        self.num_columns = check_positive("num_columns", num_columns)
        self.window_size = check_window_size(window_size)

    def call(self, query_positions, key_positions):
        return text_image_mask(
            self.kind,
            query_positions,
            key_positions,
            text_length=self.text_length,
            num_columns=self.num_columns,
            window_size=self.window_size,
        )

    def compute_output_spec(self, query_positions, key_positions):
        shape = (*query_positions.shape, key_positions.shape[-1])
        return keras.KerasTensor(shape, "bool")
