"""What a masked autoencoder saw, what it reconstructed, and the original.

Legend: B images, H and W pixels, C channels, T patches, P = pixels per patch times C.
"""

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_attn.checks.arguments import check_pair, check_rank
from keras_attn.docstrings.descriptions import described_as
from keras_attn.ops.patches import image_to_patches, patches_to_image
from keras_attn.viz.drawing.plots import TEXT_COLOR, add_title, new_figure

_PANEL_INCHES = 1.4


def reconstruct_images(images, reconstruction, hidden, patch_size, *, normalized=True):
    """Replaces the hidden patches of images with their reconstruction.

    Args:
        images: Input of the model, (B, H, W, C).
        reconstruction: Output of the model, (B, T, P).
        hidden: (B, T), True = the model did not see the patch.
        patch_size: Height and width of a patch in pixels, one number or two.
        normalized: Whether the model was trained with
            `MaskedPatchLoss(normalize=True)`, and so predicts pixels normalized by the
            mean and standard deviation of their patch. These two are then taken from
            the image itself: only the texture is predicted, not the brightness.

    Returns:
        NumPy array (B, H, W, C).

    Raises:
        ValueError: If shapes do not match.
    """
    images = np.asarray(images, "float32")
    pixels, hidden = np.asarray(reconstruction, "float32"), np.asarray(hidden, bool)
    check_rank("images", images, 4, "(batch, height, width, channels)")
    patches = ops.convert_to_numpy(image_to_patches(images, patch_size))
    if pixels.shape != patches.shape or hidden.shape != patches.shape[:2]:
        raise ValueError(
            f"For these images `reconstruction` must be {patches.shape} and `hidden` "
            f"{patches.shape[:2]}. Received: reconstruction.shape={pixels.shape}, "
            f"hidden.shape={hidden.shape}"
        )
    if normalized:
        deviation = patches.std(axis=-1, ddof=1, keepdims=True)
        pixels = pixels * deviation + patches.mean(axis=-1, keepdims=True)
    height, width = check_pair("patch_size", patch_size)
    grid = (images.shape[1] // height, images.shape[2] // width)
    whole = np.where(hidden[..., None], pixels, patches)
    return ops.convert_to_numpy(patches_to_image(whole, patch_size, grid))


@described_as(reconstruct_images)
def plot_reconstruction(
    images, reconstruction, hidden, patch_size, *, normalized=True, title=None
) -> Figure:
    """Draws one row per image: the visible patches, the reconstruction, the original.

    Args:
        images: Input of the model, (B, H, W, C), of any range; C is 1 or 3.
        title: Title of the figure.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: If shapes do not match.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, viz

        images = np.random.uniform(size=(2, 32, 32, 3))
        mae = models.build_mae(num_layers=1, decoder_num_layers=1, image_size=32)
        found, hidden = mae(images)["reconstruction"], mae(images)["hidden"]
        viz.plot_reconstruction(images, found, hidden, patch_size=16)
        ```

    Reference:
        He et al. 2022, figure 2 (arXiv:2111.06377).
    """
    reconstructed = reconstruct_images(
        images, reconstruction, hidden, patch_size, normalized=normalized
    )
    images = np.asarray(images, "float32")
    if images.shape[-1] not in (1, 3):
        raise ValueError(
            "`images` must have 1 channel or 3 to be drawn. "
            f"Received: images.shape={images.shape}"
        )
    low, high = images.min(), images.max()
    # Hidden patches are drawn in the middle gray.
    gray = np.full(np.shape(reconstruction), (low + high) / 2, "float32")
    seen = reconstruct_images(images, gray, hidden, patch_size, normalized=False)
    height, width = images.shape[1:3]
    figure = new_figure(
        3 * _PANEL_INCHES,
        len(images) * _PANEL_INCHES * height / width + 0.3 * (1 + bool(title)),
    )
    axes = figure.subplots(len(images), 3, squeeze=False)
    panels = {"seen": seen, "reconstructed": reconstructed, "original": images}
    for column, (name, batch) in enumerate(panels.items()):
        axes[0, column].set_title(name, fontsize=8, color=TEXT_COLOR)
        for axis, image in zip(axes[:, column], batch, strict=True):
            shown = np.clip((image - low) / max(high - low, 1e-12), 0, 1)
            axis.imshow(np.repeat(shown, 3 // shown.shape[-1], axis=-1))
            axis.set_axis_off()
    add_title(figure, title)
    return figure
