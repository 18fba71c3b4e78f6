"""Random masking of image patches, as in masked autoencoders.

Legend: B batch, P prefix tokens, T patches, K = ⌊T · (1 - ratio)⌋ visible patches, D
width, C values per patch.
"""

import numbers

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_not_negative, check_rank, check_shape
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.initializers import independent_copy


@keras.saving.register_keras_serializable("keras_attn")
class RandomPatchMasking(BaseLayer):
    """Keeps the K patches with the lowest noise and hides the others from an encoder.

    Args:
        mask_ratio: Fraction of the patches to hide, in (0, 1).
        num_prefix_tokens: P, tokens before the patches, which are always kept.
        seed: Seed of the noise.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, P + T, D), with known T.
        noise: (B, T). Default: uniform, sampled at each call.

    Returns:
        visible: (B, P + K, D), the kept patches in the order of their noise.
        hidden: Boolean (B, T), True = hidden.
        places: int32 (B, T), the rank of each patch's noise, from which
            `PatchUnmasking` restores the order.

    Raises:
        ValueError: If no patch would be kept, or no patch hidden; or an input has the
            wrong shape.

    Reference:
        He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", section 3
        (arXiv:2111.06377).
    """

    def __init__(
        self,
        mask_ratio: float = 0.75,
        *,
        num_prefix_tokens: int = 0,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not (isinstance(mask_ratio, numbers.Real) and 0.0 < mask_ratio < 1.0):
            raise ValueError(
                "`mask_ratio` must be the fraction of the patches to hide, in (0, 1). "
                f"Received: mask_ratio={mask_ratio!r}"
            )
        self.mask_ratio = mask_ratio
        self.num_prefix_tokens = check_not_negative(
            "num_prefix_tokens", num_prefix_tokens
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def num_visible(self, count):
        """K, the number of patches that are kept.

        Args:
            count: T, the number of patches.
        """
        visible = int(count * (1 - self.mask_ratio))
        if not 0 < visible < count:
            raise ValueError(
                "Some patches must be kept and some hidden: use smaller patches, a "
                f"larger image or a different `mask_ratio`. Received: {count} patches, "
                f"mask_ratio={self.mask_ratio}"
            )
        return visible

    def call(self, inputs, noise=None):
        (_, count), visible = self._sizes(inputs, noise)
        prefix = self.num_prefix_tokens
        patches = inputs[:, prefix:]
        if noise is None:
            noise = keras.random.uniform(
                (ops.shape(inputs)[0], count), seed=self.seed_generator
            )
        order = ops.argsort(noise, axis=1)  # The patch of each rank.
        ranks = ops.argsort(order, axis=1)  # The rank of each patch.
        kept = ops.take_along_axis(
            patches, ops.expand_dims(order[:, :visible], -1), axis=1
        )
        if prefix:
            kept = ops.concatenate([inputs[:, :prefix], kept], axis=1)
        return kept, ops.greater_equal(ranks, visible), ops.cast(ranks, "int32")

    def _sizes(self, inputs, noise):
        """(B, T) and K; raises for wrong shapes."""
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        patches = inputs.shape[0], inputs.shape[1] - self.num_prefix_tokens
        if noise is not None:
            check_shape("noise", noise.shape, patches, "(batch, patches)")
        return patches, self.num_visible(patches[1])

    def compute_output_spec(self, inputs, noise=None):
        patches, visible = self._sizes(inputs, noise)
        kept = (patches[0], self.num_prefix_tokens + visible, inputs.shape[2])
        return (
            keras.KerasTensor(kept, dtype=self.compute_dtype),
            keras.KerasTensor(patches, dtype="bool"),
            keras.KerasTensor(patches, dtype="int32"),
        )


@keras.saving.register_keras_serializable("keras_attn")
class PatchUnmasking(BaseLayer):
    """Restores the order of the patches, with a learned mask token for hidden patches.

    Args:
        num_prefix_tokens: P, as in `RandomPatchMasking`.
        initializer: Initializer of the mask token.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, P + K, D).
        places: Ranks of the patches from `RandomPatchMasking`, (B, T).

    Returns:
        (B, P + T, D).

    Raises:
        ValueError: If an input has the wrong shape.

    Reference:
        He et al. 2022, section 3 (arXiv:2111.06377).
    """

    def __init__(
        self,
        *,
        num_prefix_tokens: int = 0,
        initializer: Initializer = "zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_prefix_tokens = check_not_negative(
            "num_prefix_tokens", num_prefix_tokens
        )
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape, places_shape):
        self.token = self.add_weight(
            name="token",
            shape=(1, 1, inputs_shape[-1]),
            initializer=independent_copy(self.initializer),
        )

    def call(self, inputs, places):
        self.compute_output_shape(inputs.shape, places.shape)  # Checks the shapes.
        prefix = self.num_prefix_tokens
        visible = inputs[:, prefix:]
        batch, width = ops.shape(inputs)[0], inputs.shape[-1]
        num_hidden = places.shape[1] - visible.shape[1]
        token = ops.cast(self.token, inputs.dtype)
        hidden = ops.broadcast_to(token, (batch, num_hidden, width))
        ranked = ops.concatenate([visible, hidden], axis=1)
        patches = ops.take_along_axis(ranked, ops.expand_dims(places, -1), axis=1)
        if not prefix:
            return patches
        return ops.concatenate([inputs[:, :prefix], patches], axis=1)

    def compute_output_shape(self, inputs_shape, places_shape):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        batch, _, width = inputs_shape
        check_shape("places", places_shape, (batch, None), "(batch, patches)")
        return batch, self.num_prefix_tokens + places_shape[1], width


@keras.saving.register_keras_serializable("keras_attn")
class HiddenPatches(keras.layers.Layer):
    """Sets the Keras mask that makes a loss count only hidden patches.

    Args:
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: A list of a tensor (B, T, C) and the boolean `hidden` (B, T), True =
            counted.

    Returns:
        The same tensor, (B, T, C), with `hidden` as its Keras mask.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return inputs[0]

    def compute_mask(self, inputs, mask=None):
        return inputs[1]

    def compute_output_shape(self, inputs_shape):
        return inputs_shape[0]
