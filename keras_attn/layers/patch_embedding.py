"""From an image to tokens: patches, and a token that stands for all of them.

Legend: B batch, H rows and W columns of pixels, C channels, R rows and S columns of
patches, T = R·S of them, D width.
"""

import keras
from keras import ops

from keras_attn.checks import check_choice, check_pair, check_positive, check_rank
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import fork

PADDINGS = (None, "same", "valid")
_AXES = "(batch, height, width, channels)"


@keras.saving.register_keras_serializable("keras_attn")
class PatchEmbedding(BaseLayer):
    """Cuts an image into patches and projects each: `z_rs = W · patch_rs + b`.

    Which is a convolution whose stride is its kernel. With `stem_dims` the image goes
    through convolutions of 3 × 3 with stride 2 first, each with batch norm and ReLU,
    and the patches are cut from what is left: a convolutional stem. On the feature map
    of another network, with `patch_size=1`, it is the embedding of a hybrid.

    Args:
        hidden_dim: D.
        patch_size: Pixels of the image that a patch is high and wide, one number or
            two.
        stem_dims: Channels of the stem's convolutions. `patch_size` must be a multiple
            of what they shrink the image by, 2 each.
        padding: What becomes of an image that patches don't fill. None: it is an error.
            `"same"`: zeros are added below and to the right. `"valid"`: what is left
            over there is left out.
        flatten: Whether the patches come as one sequence, or as a map.
        use_bias: Whether there is b.
        kernel_initializer: For W.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, H, W, C), or any other map.

    Returns:
        (B, T, D), row by row; or (B, R, S, D).

    Raises:
        ValueError: for an image that is smaller than a patch, or that patches don't
            fill; for another rank; for other channels than the layer was built for.

    Reference:
        Dosovitskiy et al. 2021, section 3.1 (arXiv:2010.11929); stem: Xiao et al. 2021,
        "Early Convolutions Help Transformers See Better" (arXiv:2106.14881).
    """

    def __init__(
        self,
        hidden_dim,
        patch_size,
        *,
        stem_dims=None,
        padding=None,
        flatten=True,
        use_bias=True,
        kernel_initializer="glorot_uniform",
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
        shrinks_by = 2 ** len(self.stem_dims or ())
        if any(size % shrinks_by for size in self.patch_size):
            raise ValueError(
                "`patch_size` must be a multiple of 2 for each of `stem_dims`. "
                f"Received: patch_size={patch_size}, stem_dims={stem_dims}"
            )
        kernel = tuple(size // shrinks_by for size in self.patch_size)
        self.projection = keras.layers.Conv2D(
            hidden_dim,
            kernel,
            strides=kernel,
            use_bias=use_bias,
            kernel_initializer=fork(self.kernel_initializer, "projection"),
            data_format="channels_last",
            dtype=self.dtype_policy,
            name="projection",
        )
        self._num_channels = None  # Known once it is built.
        self.stem = []
        for index, dim in enumerate(self.stem_dims or ()):
            self.stem += [
                keras.layers.Conv2D(
                    dim,
                    3,
                    strides=2,
                    padding="same",
                    use_bias=False,
                    kernel_initializer=fork(self.kernel_initializer, f"stem_{index}"),
                    data_format="channels_last",
                    dtype=self.dtype_policy,
                    name=f"stem_{index}",
                ),
                keras.layers.BatchNormalization(
                    dtype=self.dtype_policy, name=f"stem_{index}_norm"
                ),
                keras.layers.ReLU(dtype=self.dtype_policy, name=f"stem_{index}_relu"),
            ]

    def build(self, inputs_shape):
        self._check(inputs_shape)
        batch, *sizes, self._num_channels = inputs_shape
        if self.padding == "same":
            sizes = map(sum, zip(sizes, self._missing(sizes), strict=True))
        shape = (batch, *sizes, self._num_channels)
        for layer in (*self.stem, self.projection):
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, inputs, training=None):
        self._check(inputs.shape)
        hidden = self._padded(inputs)
        for layer in self.stem:
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            hidden = layer(hidden, training=training) if is_norm else layer(hidden)
        patches = self.projection(hidden)
        if not self.flatten:
            return patches
        batch, rows, columns, _ = ops.shape(patches)
        return ops.reshape(patches, (batch, rows * columns, self.hidden_dim))

    def _padded(self, inputs):
        """The image with zeros added until patches fill it, if that is wanted."""
        if self.padding != "same":
            return inputs
        rows, columns = self._missing(inputs.shape[1:3])
        if not rows and not columns:
            return inputs
        return ops.pad(inputs, ((0, 0), (0, rows), (0, columns), (0, 0)))

    def _missing(self, sizes):
        """Rows and columns of pixels until patches fill the image."""
        return [
            -size % patch for size, patch in zip(sizes, self.patch_size, strict=True)
        ]

    def _check(self, inputs_shape):
        """Refuses an image that can't be cut into patches.

        Keras does not trace a layer that knows its output's shape, so what `call` would
        refuse must be refused by `build` and `compute_output_shape` as well.
        """
        check_rank("inputs", keras.KerasTensor(inputs_shape), 4, _AXES)
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
                "was built for. Convert the images (gray ones: repeat their channel), "
                f"or build the model with num_channels={channels}. {received}"
            )
        if None in sizes and self.padding != "valid":
            raise ValueError(
                "Rows and columns of pixels must be known; give the `keras.Input` "
                f"both, or build the layer with padding='valid'. {received}"
            )
        known = [
            (size, patch)
            for size, patch in zip(sizes, self.patch_size, strict=True)
            if size is not None
        ]
        is_cut = self.padding is None and any(size % patch for size, patch in known)
        is_gone = self.padding == "valid" and any(size < patch for size, patch in known)
        if is_cut or is_gone:
            raise ValueError(
                f"The image must be filled by patches of {self.patch_size} pixels, "
                "rows first. Resize or crop it, take other patches, or build the "
                f"layer with padding='same'. {received}"
            )

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
    """Puts learned vectors in front of a sequence, to gather what is said of all.

    Args:
        num_tokens: N, how many.
        initializer: For the vectors.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, N + T, D).

    Reference:
        Dosovitskiy et al. 2021, equation 1 (arXiv:2010.11929).
    """

    def __init__(self, num_tokens=1, *, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.num_tokens = check_positive("num_tokens", num_tokens)
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape):
        self.tokens = self.add_weight(
            name="tokens",
            shape=(1, self.num_tokens, inputs_shape[-1]),
            initializer=fork(self.initializer),
        )

    def call(self, inputs):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        tokens = ops.cast(self.tokens, inputs.dtype)
        shape = (ops.shape(inputs)[0], *self.tokens.shape[1:])
        return ops.concatenate([ops.broadcast_to(tokens, shape), inputs], axis=1)

    def compute_output_shape(self, inputs_shape):
        batch, length, width = inputs_shape
        return batch, None if length is None else self.num_tokens + length, width
