"""DALL·E's discrete VAE: an image as a grid of codes, and back.

    build_dvae      images -> their reconstruction from codes

    map_pixels -> encoder -> logits of a code at each place of a grid
    Gumbel-softmax -> decoder -> mean and log-scale of each sub-pixel's logit

The encoder and the decoder are groups of residual blocks without any norm; between two
groups the map is halved or doubled. `encode_model()` and `decode_model()` are the two
halves as models of their own. The Transformer over the codes: `models/dalle.py`.

Legend: B batch, H and W pixels, h and w codes, V vocabulary, C channels.
Layers: `encoder_input`, `encoder_group_0_block_0_conv_0` to `…_conv_3` and, where the
width changes, `…_shortcut`, `encoder_group_0_pooling`, `encoder_output`, `relaxation`,
`decoder_input`, `decoder_group_0_block_0_conv_0`, …, `decoder_group_0_upsampling`,
`decoder_output`.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.layers import MaxPooling2D, UpSampling2D

from keras_attn.checks.argument_types import Seed
from keras_attn.checks.indices import known_values
from keras_attn.kernels.replicas import mean_loss
from keras_attn.layers import CodeProjection, GumbelSoftmax
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    numbered_names,
)
from keras_attn.models.parts.images import convolution, image_input
from keras_attn.models.parts.own_loss import adds_compiled_loss
from keras_attn.ops import (
    divergence_from_uniform,
    map_pixels,
    most_probable_codes,
    unmap_pixels,
)

VARIANTS = {
    # Ramesh et al. 2021, appendix A.1, and the authors' package `dall-e`.
    "dalle": {
        "image_size": 256,
        "vocabulary_size": 8192,
        "num_groups": 4,
        "num_blocks": 2,
        "base_dim": 256,
        "code_dim": 128,
    },
}
CARDS = model_cards(
    "dvae_{variant}",
    {"dalle": None},
    notes="32 × 32 codes of 8,192 for an image of 256 × 256",
    training=Training(
        "250 million images",
        "appendix A.2",
        images=3_000_000 * 512,
        hardware="v100",
        devices=64,
    ),
    title="DALL·E's discrete VAE, which turns images into codes",
    paper="Ramesh et al. 2021, arXiv:2102.12092",
    task="image compression",
    inputs={"images": tasks.RGB + tasks.UNIT},
    outputs={
        "reconstruction": "(B, H, W, 3) float32, in [0, 1]",
        "statistics": "(B, H, W, 6) float32, means and log-scales, for the loss",
        "divergence": "(B, h, w) float32, from the uniform prior in nats, for the loss",
    },
)
# By how much pixels may lie outside of their range. At 0.125 a logit is infinite.
_OVERSHOOT = 0.1
# N(0, 1 / fan-in), as in the authors' package.
_INITIALIZER = {
    "class_name": "VarianceScaling",
    "config": {"scale": 1.0, "mode": "fan_in", "distribution": "untruncated_normal"},
}


@registered(CARDS, VARIANTS)
def build_dvae(
    variant: str = "dalle",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    vocabulary_size: int = FROM_VARIANT,
    num_groups: int = FROM_VARIANT,
    num_blocks: int = FROM_VARIANT,
    base_dim: int = FROM_VARIANT,
    code_dim: int = FROM_VARIANT,
    num_channels: int = 3,
    temperature: float = 1.0,
    final_temperature: float = 1 / 16,
    temperature_steps: int = 150_000,
    kl_weight: float = 6.6,
    kl_steps: int = 5_000,
    seed: Seed = None,
    name: str = "dvae",
) -> "DVAE":
    """An encoder to codes and a decoder, trained together through relaxed codes.

    `fit(images)` needs no labels and no loss in `compile`: the model has its own.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns); a multiple of
            `2 ** (num_groups - 1)`, the pixels per code on each side.
        vocabulary_size: V.
        num_groups: Number of groups of blocks in the encoder, and in the decoder.
        num_blocks: Number of residual blocks of each group.
        base_dim: Width at full size, a multiple of 4; each group of the encoder has
            twice the width of the group before.
        code_dim: Width of the vector of a code, the input of the decoder's blocks.
        num_channels: C.
        temperature: τ of the relaxation before the first update.
        final_temperature: τ after `temperature_steps`.
        temperature_steps: Number of updates from the first temperature to the last.
        kl_weight: β, weight of the divergence from the uniform prior, after `kl_steps`.
        kl_steps: Number of updates until β, which starts at 0, reaches `kl_weight`.
        seed: Seed of the relaxation's noise.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, C) in [0, 1] to a dictionary of `reconstruction`
        (B, H, W, C) in [0, 1], and what the loss needs: `statistics` (B, H, W, 2C) and
        `divergence` (B, h, w). In training they follow from a sample of the relaxed
        codes, otherwise from the most probable codes.

    Raises:
        ValueError: If `image_size` or `base_dim` is not such a multiple, or a number is
            out of range.

    Reference:
        Ramesh et al. 2021, "Zero-Shot Text-to-Image Generation", section 2.1 and
        appendix A (arXiv:2102.12092).
    """
    if base_dim % 4:
        raise ValueError(
            "`base_dim` must be a multiple of 4: the blocks compute in a quarter of "
            f"their width. Received: base_dim={base_dim}"
        )
    images = image_input(image_size, num_channels, 2 ** (num_groups - 1))
    widths = [base_dim * 2**group for group in range(num_groups)]
    layers = by_name(
        [
            _convolution(base_dim, 7, "encoder_input"),
            *_groups("encoder", base_dim, widths, num_blocks),
            _convolution(vocabulary_size, 1, "encoder_output", dtype="float32"),
            GumbelSoftmax(
                temperature=temperature,
                final_temperature=final_temperature,
                temperature_steps=temperature_steps,
                kl_weight=kl_weight,
                kl_steps=kl_steps,
                seed=seed,
                name="relaxation",
            ),
            CodeProjection(
                vocabulary_size,
                code_dim,
                kernel_initializer=_INITIALIZER,
                name="decoder_input",
            ),
            *_groups("decoder", code_dim, widths[::-1], num_blocks),
            _convolution(2 * num_channels, 1, "decoder_output", dtype="float32"),
        ]
    )
    logits = _encode(layers, images)
    statistics = _decode(layers, layers["relaxation"](logits))
    outputs = {
        "reconstruction": _reconstruction(statistics),
        "statistics": statistics,
        "divergence": divergence_from_uniform(logits),
    }
    model = DVAE(inputs=images, outputs=outputs, name=name)
    model.training_outputs = ("statistics", "divergence")
    return model


def _convolution(width, size, name, **options):
    return convolution(
        width, size, name, use_bias=True, kernel_initializer=_INITIALIZER, **options
    )


def _groups(side, inputs_dim, widths, num_blocks):
    """The layers of the groups of the encoder or the decoder, in order.

    Args:
        side: `"encoder"` or `"decoder"`.
        inputs_dim: Width of the input of the first group.
        widths: Width of each group.
        num_blocks: Number of blocks of each group.
    """
    kernels = (3, 3, 3, 1) if side == "encoder" else (1, 3, 3, 3)
    layers, last = [], inputs_dim
    for group, width in enumerate(widths):
        for block in range(num_blocks):
            name = f"{side}_group_{group}_block_{block}"
            inner = (*[width // 4] * 3, width)
            layers += [
                _convolution(units, size, f"{name}_conv_{index}")
                for index, (units, size) in enumerate(zip(inner, kernels, strict=True))
            ]
            if width != last:
                layers.append(_convolution(width, 1, f"{name}_shortcut"))
            last = width
        name = f"{side}_group_{group}"
        if group < len(widths) - 1 and side == "encoder":
            layers.append(MaxPooling2D(2, name=f"{name}_pooling"))
        elif group < len(widths) - 1:
            layers.append(UpSampling2D(2, name=f"{name}_upsampling"))
    return layers


def _encode(layers, images):
    """Logits (B, h, w, V) of the codes of images (B, H, W, C) in [0, 1]."""
    hidden = layers["encoder_input"](map_pixels(images))
    hidden = _run_groups(layers, "encoder", hidden)
    return layers["encoder_output"](ops.relu(hidden))


def _decode(layers, codes):
    """Means and log-scales (B, H, W, 2C) from codes (B, h, w) or weights (B, h, w, V).

    They are the statistics of the logit of each sub-pixel.
    """
    hidden = _run_groups(layers, "decoder", layers["decoder_input"](codes))
    return layers["decoder_output"](ops.relu(hidden))


def _run_groups(layers, side, hidden):
    """The residual blocks, `id(x) + g · f(x)`, and what is between the groups."""
    groups = numbered_names(layers, f"{side}_group_", "_block_0_conv_0")
    blocks = [numbered_names(layers, f"{group}_block_", "_conv_0") for group in groups]
    # As published, so that the scale of the map hardly depends on the depth.
    gain = 1 / sum(map(len, blocks)) ** 2
    for group, names in zip(groups, blocks, strict=True):
        for name in names:
            inner = hidden
            for layer in numbered(layers, f"{name}_conv"):
                inner = layer(ops.relu(inner))
            if f"{name}_shortcut" in layers:
                hidden = layers[f"{name}_shortcut"](hidden)
            hidden = ops.add(hidden, ops.multiply(inner, gain))
        for end in ("_pooling", "_upsampling"):
            if group + end in layers:
                hidden = layers[group + end](hidden)
    return hidden


def _reconstruction(statistics):
    """Pixels (B, H, W, C) in [0, 1] from `_decode`: the median of each."""
    mean, _ = ops.split(statistics, 2, axis=-1)
    return unmap_pixels(ops.sigmoid(mean))


@keras.saving.register_keras_serializable("keras_attn")
class DVAE(Functional):
    """The model of `build_dvae`: its loss, and its two halves.

    The loss is the negative evidence lower bound per sub-pixel, in nats:

        1 / (H W C) (Σ -log p(x | z) + β Σ KL(q(z | x) ‖ uniform))

    with a logit-Laplace density of each sub-pixel, the mean over the images. `fit` logs
    its parts: `reconstruction_loss`, per sub-pixel, and `divergence`, per code. In
    training z is a sample of the relaxed codes, and each update moves the temperature
    and β. `GumbelSoftmax` counts the updates, and the count is saved with the weights.
    `evaluate` takes the most probable codes, and β as it stands.

    If `compile` has a loss, for labels with the names of outputs, it is added. Sample
    weights (B,) weight the images.

    Raises:
        ValueError: If known images lie outside of [0, 1] by more than 0.1, such as 0 …
            255.

    Reference:
        Ramesh et al. 2021, section 2.1 and appendix A (arXiv:2102.12092).
    """

    # What the loss has an answer to; resizing may overshoot a little.
    pixel_range = (0.0, 1.0)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._reconstruction_loss = keras.metrics.Mean(name="reconstruction_loss")
        self._divergence = keras.metrics.Mean(name="divergence")

    def _check_inputs(self, inputs, rows=True) -> None:
        images = inputs.get("images") if isinstance(inputs, dict) else inputs
        array = known_values(images) if hasattr(images, "shape") else None
        low, high = self.pixel_range
        # What is not finite is reported as in other models.
        if (array is not None and np.isfinite(array).all() and array.size) and (
            array.min() < low - _OVERSHOOT or array.max() > high + _OVERSHOOT
        ):
            raise ValueError(
                f"`images` must be in [{low:g}, {high:g}]: divide pixels of 0 … 255 by "
                f"255. Received: images from {array.min():g} to {array.max():g}"
            )
        super()._check_inputs(inputs, rows)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The negative evidence lower bound; see the class.

        Args:
            x: Images.
            y: Labels, only for a loss given to `compile`.
            y_pred: What the model returned.
            sample_weight: (B,), one weight per image, or None.
            training: Whether the model is being trained.

        Returns:
            A scalar.

        Raises:
            ValueError: If `compile` has a loss and labels are missing.
        """
        # Imported only by a model that is trained, because it imports all of
        # `training`.
        from keras_attn.losses.logit_laplace import logit_laplace_loss

        relaxation = by_name(self.layers)["relaxation"]
        outputs: Any = y_pred
        losses = logit_laplace_loss(map_pixels(x), outputs["statistics"])
        divergence = outputs["divergence"]
        # Codes per sub-pixel, 1/192 as published.
        share = math.prod(divergence.shape[1:]) / math.prod(losses.shape[1:])
        losses = ops.mean(losses, axis=(1, 2, 3))
        divergence = ops.mean(divergence, axis=(1, 2))
        self._reconstruction_loss.update_state(losses, sample_weight)
        self._divergence.update_state(divergence, sample_weight)
        total = losses + relaxation.current_kl_weight() * share * divergence
        if training:
            relaxation.advance()
        if sample_weight is not None:
            total = total * ops.cast(sample_weight, total.dtype)
        loss = mean_loss(ops.sum(total), ops.shape(total)[0])
        if adds_compiled_loss(self, y):
            loss += super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss

    def encode_model(self) -> Functional:
        """The model from images to codes, which shares the layers of this one.

        Returns:
            A model from `images` (B, H, W, C) in [0, 1] to codes (B, h, w) int32, the
            most probable ones.
        """
        logits = by_name(self.layers)["encoder_output"].output
        codes = most_probable_codes(logits)
        return Functional(self.input, codes, name=f"{self.name}_encode")

    def decode_model(self) -> Functional:
        """The model from codes to images, which shares the layers of this one.

        Returns:
            A model from `codes` (B, h, w) int32 to images (B, H, W, C) in [0, 1].
        """
        layers = by_name(self.layers)
        shape = layers["encoder_output"].output.shape[1:3]
        codes = keras.Input(shape, dtype="int32", name="codes")
        images = _reconstruction(_decode(layers, codes))
        return Functional(codes, images, name=f"{self.name}_decode")
