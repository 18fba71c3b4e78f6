"""The loss of a masked autoencoder: it reconstructs the pixels of hidden patches.

Legend: B batch, H and W pixels, T patches, P = pixels of a patch times channels.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_pair
from keras_attn.ops.patches import image_to_patches


@keras.saving.register_keras_serializable("keras_attn")
class MaskedPatchLoss(keras.losses.Loss):
    """Mean squared error of the pixels of hidden patches, averaged over these patches.

    Hidden patches are given by the Keras mask of `reconstruction`, which `build_mae`
    sets; without a mask all patches count. The targets are the images.

    Args:
        patch_size: Height and width of a patch in pixels; one integer for both.
        normalize: Whether each target patch is normalized to mean 0 and standard
            deviation 1.
        epsilon: Added to the variance.
        name: Name of the loss.
        **kwargs: Arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: Images, (B, H, W, C).
        y_pred: (B, T, P).
        sample_weight: (B,), one weight per image, or (B, T), one per patch. Errors are
            multiplied by it; their sum is divided by the number of hidden patches.

    Raises:
        ValueError: If the number of patches of the images is not the number predicted.

    Example:
        ```python
        import numpy as np
        from keras_attn import losses, models

        mae = models.build_mae(num_layers=1, decoder_num_layers=1, image_size=32)
        images = np.random.uniform(size=(4, 32, 32, 3))
        found = mae(images)["reconstruction"]  # (4, 4, 768): 4 patches of 16 × 16 × 3.
        losses.MaskedPatchLoss(16)(images, found)  # Of the three that were hidden.
        ```

    Reference:
        He et al. 2022, section 3 (arXiv:2111.06377).
    """

    def __init__(
        self,
        patch_size,
        *,
        normalize=True,
        epsilon=1e-6,
        name="masked_patch_loss",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        self.patch_size = check_pair("patch_size", patch_size)
        self.normalize = normalize
        self.epsilon = epsilon

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Computes the loss, weighted by image or by patch; see the class."""
        if sample_weight is not None:
            # Keras would read (B,) as one weight per patch. In a compiled function the
            # rank may be unknown, so the reshape does not use it.
            shape = ops.shape(y_pred)[:2]
            sample_weight = ops.reshape(sample_weight, (shape[0], -1))
            sample_weight = ops.broadcast_to(sample_weight, shape)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        """Computes the error of each patch, (B, T)."""
        pixels = self.targets(y_true)
        if pixels.shape[1:] != y_pred.shape[1:]:
            raise ValueError(
                "The images must have as many patches as are predicted: pass images of "
                "the model's input size, and the model's `patch_size`. Received: "
                f"y_true.shape={tuple(y_true.shape)}, y_pred.shape="
                f"{tuple(y_pred.shape)}, patch_size={self.patch_size}"
            )
        error = ops.subtract(ops.cast(y_pred, pixels.dtype), pixels)
        return ops.mean(ops.square(error), axis=-1)

    def targets(self, images):
        """Returns the targets of `reconstruction`, (B, T, P).

        Args:
            images: (B, H, W, C).
        """
        pixels = image_to_patches(images, self.patch_size)
        if not self.normalize:
            return pixels
        count = pixels.shape[-1]
        centred = ops.subtract(pixels, ops.mean(pixels, axis=-1, keepdims=True))
        # As published, the unbiased variance.
        variance = ops.sum(ops.square(centred), axis=-1, keepdims=True) / (count - 1)
        return ops.divide(centred, ops.sqrt(ops.add(variance, self.epsilon)))

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "patch_size": self.patch_size,
            "normalize": self.normalize,
            "epsilon": self.epsilon,
        }
