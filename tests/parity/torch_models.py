"""What the scripts share that run models of PyTorch: random weights, and images.

NumPy samples with fixed seeds, so the cases are reproducible.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

# Standard deviation of weights: far larger than of initial ones, so that outputs vary.
SPREAD = 0.3


def pixels_of(images):
    """Images (B, H, W, C) as the tensor that PyTorch takes."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def random_images(*shape, seed=19):
    """Images (B, H, W, C), normally distributed."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomize_parameters(model, spread=SPREAD, rounded=False):
    """Gives a model other parameters.

    Args:
        model: A model of PyTorch.
        spread: Standard deviation of the weights.
        rounded: Whether they are rounded to float16, as in a file.

    Returns:
        The generator of the numbers.
    """
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            is_scale = weight.ndim == 1 and key.endswith((".weight", ".gamma"))
            _set(weight, rng.normal(0, spread, weight.shape), is_scale, rounded)
    return rng


def randomize_state(model, rounded=True, long=2, small="none", seed=11):
    """Gives a model other parameters and statistics.

    Args:
        model: A model of PyTorch.
        rounded: Whether they are rounded to float16, as in a file.
        long: The least number of axes of kernels that keep the size of what they get.
        small: Part of the keys of weights that are smaller.
        seed: Of the numbers.
    """
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for key, weight in sorted(model.state_dict().items()):
            if not weight.is_floating_point():
                continue  # Counts of batches.
            spread = SPREAD if weight.ndim < long else weight[0].numel() ** -0.5
            values = rng.normal(0, spread, weight.shape)
            if key.endswith("running_var"):
                values = np.abs(values) + 0.5
            if small in key:
                values *= 0.2
            is_scale = weight.ndim == 1 and key.endswith(".weight")
            _set(weight, values, is_scale, rounded)


def _set(weight, values, is_scale, rounded):
    # The scales of norms are around one.
    values = np.asarray(values + is_scale, "float16" if rounded else "float64")
    weight.copy_(torch.from_numpy(values.astype("float32")))
