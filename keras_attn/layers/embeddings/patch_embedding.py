"""From an image to tokens: patch embeddings and the class token.

Legend: B batch, H rows and W columns of pixels, C channels, R rows and S columns of
patches, T = R·S patches, N class tokens, D width.
"""

from collections.abc import Sequence

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_choice,
    check_pair,
    check_positive,
    check_rank,
)
from keras_attn.layers.adaptation.keras_layers import Conv2D
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.normalization.batch_normalization import BatchNormalization
from keras_attn.ops.pooling import Padding

PADDINGS = (None, "same", "valid")
_AXES = "(batch, height, width, channels)"


@keras.saving.register_keras_serializable("keras_attn")
class PatchEmbedding(BaseLayer):
    """Cuts an image into patches and projects each: `z_rs = W · patch_rs + b`.

    This is a convolution whose stride equals its kernel size. With `stem_dims` a
    convolutional stem comes first: 3 × 3 convolutions with stride 2, batch norm and
    ReLU, whose output is cut into patches. With `patch_size=1` on the feature map of a
    different network, it is the embedding of a hybrid model.

    Args:
        hidden_dim: D.
        patch_size: Height and width of a patch in pixels of the image, one number or
            two.
        stem_dims: Channels of the stem's convolutions. `patch_size` must be a multiple
            of the stem's stride, `2 ** len(stem_dims)`.
        padding: How to treat an image whose size is not a multiple of `patch_size`.
            None: raise an error. `"same"`: pad with zeros at the bottom and on the
            right. `"valid"`: crop it there.
        flatten: Whether to return the patches as a sequence or as a feature map.
        use_bias: Whether to add b.
        kernel_initializer: Initializer of W.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Images (B, H, W, C), or a feature map.

    Returns:
        (B, T, D), row by row; without `flatten` (B, R, S, D).

    Raises:
        ValueError: If an image is smaller than a patch, or its size is not a multiple
            of `patch_size` although `padding` is None; if `inputs` does not have 4
            axes; if the number of channels is not the number that the layer was built
            with.

    Reference:
        Dosovitskiy et al. 2021, section 3.1 (arXiv:2010.11929); stem: Xiao et al. 2021,
        "Early Convolutions Help Transformers See Better" (arXiv:2106.14881).
    """

    def __init__(
        self,
        hidden_dim: int,
        patch_size: int | tuple[int, int],
        *,
        stem_dims: Sequence[int] | None = None,
        padding: Padding | None = None,
        flatten: bool = True,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("padding", padding, PADDINGS)
        self.hidden_dim = check_positive("hidden_dim", hidden_dim)
        self.patch_size = check_pair("patch_size", patch_size)
        self.stem_dims = None if stem_dims is None else list(stem_dims)
        self.padding = padding
        self.flatten = flatten
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        stride = 2 ** len(self.stem_dims or ())
        if any(size % stride for size in self.patch_size):
            raise ValueError(
                "`patch_size` must be a multiple of the stem's stride, "
                f"2 ** len(stem_dims) = {stride}. Received: patch_size={patch_size}, "
                f"stem_dims={stem_dims}"
            )
        kernel = tuple(size // stride for size in self.patch_size)
        self.projection = self._new_convolution(
            "projection", hidden_dim, kernel, strides=kernel, use_bias=use_bias
        )
        self._num_channels = None  # Set by `build`.
        self.stem = []
        for index, dim in enumerate(self.stem_dims or ()):
            name = f"stem_{index}"
            self.stem += [
                self._new_convolution(
                    name, dim, 3, strides=2, padding="same", use_bias=False
                ),
                BatchNormalization(dtype=self.dtype_policy, name=f"{name}_norm"),
                keras.layers.ReLU(dtype=self.dtype_policy, name=f"{name}_relu"),
            ]

    def _new_convolution(self, name, filters, kernel_size, **options):
        return Conv2D(
            filters,
            kernel_size,
            kernel_initializer=independent_copy(self.kernel_initializer, name),
            data_format="channels_last",
            dtype=self.dtype_policy,
            name=name,
            **options,
        )

    def build(self, inputs_shape):
        self._check(inputs_shape)
        batch, *sizes, self._num_channels = inputs_shape
        if self.padding == "same":
            sizes = map(sum, zip(sizes, self._pad_widths(sizes), strict=True))
        shape = (batch, *sizes, self._num_channels)
        for layer in (*self.stem, self.projection):
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, inputs, training=None):
        self._check(inputs.shape)
        hidden = self._pad(inputs)
        for layer in self.stem:
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            hidden = layer(hidden, training=training) if is_norm else layer(hidden)
        patches = self.projection(hidden)
        if not self.flatten:
            return patches
        batch, rows, columns, _ = ops.shape(patches)
        return ops.reshape(patches, (batch, rows * columns, self.hidden_dim))

    def _pad(self, inputs):
        """Pads the image to a multiple of `patch_size` if `padding` is "same"."""
        if self.padding != "same":
            return inputs
        rows, columns = self._pad_widths(inputs.shape[1:3])
        if not rows and not columns:
            return inputs
        return ops.pad(inputs, ((0, 0), (0, rows), (0, columns), (0, 0)))

    def _pad_widths(self, sizes):
        """Rows and columns of pixels to add up to a multiple of `patch_size`."""
        return [
            -size % patch for size, patch in zip(sizes, self.patch_size, strict=True)
        ]

    def _check(self, inputs_shape):
        """Raises an error for an image that cannot be cut into patches.

        Keras does not trace `call` of a layer with a `compute_output_shape`, so that
        method and `build` must raise as well.
        """
        check_rank("inputs", inputs_shape, 4, _AXES)
        received = f"Received: inputs.shape={tuple(inputs_shape)}"
        *sizes, channels = inputs_shape[1:]
        if channels is None:
            raise ValueError(
                "The number of channels must be known; give the `keras.Input` one. "
                f"{received}"
            )
        if self._num_channels not in (None, channels):
            raise ValueError(
                f"`inputs` must have the {self._num_channels} channels that the layer "
                "was built with. Convert the images (grayscale: repeat the channel), "
                f"or build the model with num_channels={channels}. {received}"
            )
        if None in sizes and self.padding != "valid":
            raise ValueError(
                "The height and width of the images must be known; give the "
                "`keras.Input` both, or build the layer with padding='valid'. "
                f"{received}"
            )
        if not self._fits(sizes):
            required = "at least" if self.padding == "valid" else "a multiple of"
            raise ValueError(
                f"The image size must be {required} `patch_size`. Resize or crop the "
                "images, use a different `patch_size`, or build the layer with "
                f"padding='same'. {received}, patch_size={self.patch_size}"
            )

    def _fits(self, sizes):
        """Whether an image, with known or unknown sizes, can be cut into patches."""
        pairs = zip(sizes, self.patch_size, strict=True)
        known = [(size, patch) for size, patch in pairs if size is not None]
        if self.padding == "valid":
            return all(size >= patch for size, patch in known)
        return self.padding == "same" or all(size % patch == 0 for size, patch in known)

    def compute_output_shape(self, inputs_shape):
        self._check(inputs_shape)
        batch, *sizes, _ = inputs_shape
        rows, columns = (
            None if size is None else self._count(size, patch)
            for size, patch in zip(sizes, self.patch_size, strict=True)
        )
        if not self.flatten:
            return batch, rows, columns, self.hidden_dim
        count = None if rows is None or columns is None else rows * columns
        return batch, count, self.hidden_dim

    def _count(self, size, patch):
        return size // patch if self.padding == "valid" else -(-size // patch)


@keras.saving.register_keras_serializable("keras_attn")
class ClassToken(BaseLayer):
    """Prepends learned class tokens, which gather information on the whole sequence.

    Args:
        num_tokens: N, number of class tokens.
        initializer: Initializer of the vectors.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, N + T, D).

    Reference:
        Dosovitskiy et al. 2021, equation 1 (arXiv:2010.11929).
    """

    def __init__(
        self, num_tokens: int = 1, *, initializer: Initializer = "zeros", **kwargs
    ):
        super().__init__(**kwargs)
        self.num_tokens = check_positive("num_tokens", num_tokens)
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape):
        self.tokens = self.add_weight(
            name="tokens",
            shape=(1, self.num_tokens, inputs_shape[-1]),
            initializer=independent_copy(self.initializer),
        )

    def call(self, inputs):
        self.compute_output_shape(inputs.shape)  # Checks the shape.
        tokens = ops.cast(self.tokens, inputs.dtype)
        shape = (ops.shape(inputs)[0], *self.tokens.shape[1:])
        return ops.concatenate([ops.broadcast_to(tokens, shape), inputs], axis=1)

    def compute_output_shape(self, inputs_shape):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        batch, length, width = inputs_shape
        return batch, None if length is None else self.num_tokens + length, width
