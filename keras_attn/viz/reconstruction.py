"""What a masked autoencoder saw, what it drew, and what was there.

Legend: B images, H and W pixels, C channels, T patches, P = pixels of a patch times C.
"""

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_attn.checks import check_pair, check_rank
from keras_attn.ops.patches import image_to_patches, patches_to_image
from keras_attn.viz.plots import DOTS_PER_INCH, TEXT_COLOR

_PANEL_INCHES = 1.4


def reconstruct_images(images, reconstruction, hidden, patch_size, *, normalized=True):
    """Puts what a masked autoencoder drew into the places it did not see.

    Args:
        images: What the model was called with, (B, H, W, C).
        reconstruction: What it drew, (B, T, P).
        hidden: (B, T), True = it did not see the patch.
        patch_size: Pixels of a patch, one number or two.
        normalized: Whether it drew what `MaskedPatchLoss(normalize=True)` asks for,
            pixels measured from the mean of their patch in its standard deviations.
            Then these two are taken from the image itself: a picture shows the texture
            that was drawn, not a guess of how bright it is.

    Returns:
        NumPy array (B, H, W, C).

    Raises:
        ValueError: where the shapes don't belong together.
    """
    images = np.asarray(images, "float32")
    drawn, hidden = np.asarray(reconstruction, "float32"), np.asarray(hidden, bool)
    check_rank("images", images, 4, "(batch, height, width, channels)")
    patches = ops.convert_to_numpy(image_to_patches(images, patch_size))
    if drawn.shape != patches.shape or hidden.shape != patches.shape[:2]:
        raise ValueError(
            f"Of these images `reconstruction` must be {patches.shape} and `hidden` "
            f"{patches.shape[:2]}. Received: reconstruction.shape={drawn.shape}, "
            f"hidden.shape={hidden.shape}"
        )
    if normalized:
        deviation = patches.std(axis=-1, ddof=1, keepdims=True)
        drawn = drawn * deviation + patches.mean(axis=-1, keepdims=True)
    height, width = check_pair("patch_size", patch_size)
    grid = (images.shape[1] // height, images.shape[2] // width)
    whole = np.where(hidden[..., None], drawn, patches)
    return ops.convert_to_numpy(patches_to_image(whole, patch_size, grid))


def plot_reconstruction(
    images, reconstruction, hidden, patch_size, *, normalized=True, title=None
) -> Figure:
    """Draws a row for each image: what was seen, what was made of it, what was there.

    Args:
        images: As of `reconstruct_images`, of any range; C is 1 or 3.
        reconstruction: As of `reconstruct_images`.
        hidden: As of `reconstruct_images`.
        patch_size: Pixels of a patch, one number or two.
        normalized: As of `reconstruct_images`.
        title: Above the picture.

    Returns:
        The figure; `save_figure` writes it, and a notebook shows it.

    Raises:
        ValueError: where the shapes don't belong together.

    Example:
        ```python
        made = mae.predict(images)
        plot_reconstruction(images, made["reconstruction"], made["hidden"], 16)
        ```

    Reference:
        He et al. 2022, figure 2 (arXiv:2111.06377).
    """
    made = reconstruct_images(
        images, reconstruction, hidden, patch_size, normalized=normalized
    )
    images = np.asarray(images, "float32")
    if images.shape[-1] not in (1, 3):
        raise ValueError(
            "`images` must have 1 channel or 3 to be drawn. "
            f"Received: images.shape={images.shape}"
        )
    low, high = images.min(), images.max()
    # Where nothing was seen there is a gray between black and white.
    gray = np.full(np.shape(reconstruction), (low + high) / 2, "float32")
    seen = reconstruct_images(images, gray, hidden, patch_size, normalized=False)
    height, width = images.shape[1:3]
    figure = Figure(
        figsize=(
            3 * _PANEL_INCHES,
            len(images) * _PANEL_INCHES * height / width + 0.3 * (1 + bool(title)),
        ),
        dpi=DOTS_PER_INCH,
        layout="compressed",
    )
    axes = figure.subplots(len(images), 3, squeeze=False)
    panels = {"seen": seen, "reconstructed": made, "original": images}
    for column, (name, batch) in enumerate(panels.items()):
        axes[0, column].set_title(name, fontsize=8, color=TEXT_COLOR)
        for axis, image in zip(axes[:, column], batch, strict=True):
            shown = np.clip((image - low) / max(high - low, 1e-12), 0, 1)
            axis.imshow(np.repeat(shown, 3 // shown.shape[-1], axis=-1))
            axis.set_axis_off()
    if title is not None:
        figure.suptitle(title, parse_math=False, fontsize=10, color=TEXT_COLOR)
    return figure
