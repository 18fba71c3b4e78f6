"""SAGAN: self-attention inside convolutional networks.

    build_sagan_generator       noise, labels -> images
    build_sagan_discriminator   images, labels -> scores, higher = more realistic
    build_cnn_self_attention    images -> logits, a small classifier with attention

Legend: B batch, H and W pixels, D = `base_dim` channels at full size, C classes.
Layers: in each block `block_0_conv_0`, `block_0_conv_1`, `block_0_shortcut`, and in
the generator `block_0_norm_0`, `block_0_norm_1`; `self_attention`.
"""

import math
from collections.abc import Sequence

import keras
from keras import ops
from keras.layers import (
    AveragePooling2D,
    Conv2D,
    Dense,
    Embedding,
    MaxPooling2D,
    UpSampling2D,
)

from keras_attn.checks.argument_types import Index
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    BatchNormalization,
    ConditionalBatchNormalization,
    SelfAttention2D,
    SpectralNormalization,
)
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    check_large_enough,
    classify,
    image_input,
)

_START = 4  # Rows and columns of the generator's first map.

VARIANTS = {
    # Zhang et al. 2019, section 5.
    "sagan": {
        "128": {
            "image_size": 128,
            "latent_dim": 128,
            "base_dim": 64,
            "attention_size": 32,
            "num_classes": 1000,
        },
    },
    # Not from the paper: a classifier for small images.
    "cnn": {
        "small": {
            "image_size": 32,
            "hidden_dims": (64, 128, 256),
            "attention_stage": 1,
        },
    },
}
# The discriminator has no noise.
_DISCRIMINATOR_VARIANTS = {
    variant: {name: size for name, size in sizes.items() if name != "latent_dim"}
    for variant, sizes in VARIANTS["sagan"].items()
}
CARDS = {
    "generator": model_cards(
        "sagan_generator_{variant}",
        {"128": None},
        scores=[
            scored("ImageNet Inception score", "at 128", "table 2", {"128": 52.52}),
            scored("ImageNet FID", "at 128", "table 2", {"128": 18.65}),
        ],
        title="SAGAN's generator: class-conditional images of {variant} pixels",
        paper="Zhang et al. 2019, arXiv:1805.08318",
        task="image generation",
        inputs={
            "noise": "(B, 128) float, normally distributed",
            "labels": "(B,) int32, one of 1,000 classes",
        },
        outputs={"images": "(B, 128, 128, 3) float32, in [-1, 1]"},
    ),
    "discriminator": model_cards(
        "sagan_discriminator_{variant}",
        {"128": None},
        notes="trained at four times the generator's learning rate",
        title="SAGAN's discriminator: scores how realistic an image of a class is",
        paper="Zhang et al. 2019, arXiv:1805.08318",
        task="adversarial training",
        inputs={
            "images": f"(B, 128, 128, 3) float, red, green, blue; {tasks.HALF}",
            "labels": "(B,) int32, one of 1,000 classes",
        },
        outputs={"logits": "(B, 1) float32, higher for realistic images"},
    ),
    "cnn": model_cards(
        "cnn_self_attention",
        {"small": None},
        notes="not from the paper: its attention in a classifier",
        title="A small convolutional classifier with self-attention",
        paper="Zhang et al. 2019, arXiv:1805.08318",
        # No weights are published.
        **{**tasks.image_classification(tasks.HALF), "preprocessing": None},
    ),
}


@registered(CARDS["generator"], VARIANTS["sagan"])
def build_sagan_generator(
    variant: str = "128",
    *,
    image_size: int = FROM_VARIANT,
    latent_dim: int = FROM_VARIANT,
    base_dim: int = FROM_VARIANT,
    attention_size: int = FROM_VARIANT,
    num_classes: int = FROM_VARIANT,
    name: str = "sagan_generator",
) -> Functional:
    """Residual blocks that double the size of a map, with one self-attention layer.

    Args:
        variant: A row of `VARIANTS["sagan"]`, which supplies every argument not given.
        image_size: Pixels per side: 8, 16, 32, …
        latent_dim: Size of the noise vector.
        base_dim: D; a map of half the size has twice the channels.
        attention_size: Rows of the map that self-attention is applied to.
        num_classes: C.
        name: Name of the model.

    Returns:
        A model from `noise` (B, latent_dim), normally distributed, and `labels` (B,)
        to images (B, H, W, 3) in [-1, 1].

    Raises:
        ValueError: If `image_size` is not a power of two above 4, or no map before the
            last has `attention_size` rows.

    Reference:
        Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", sections 4
        and 5 (arXiv:1805.08318).
    """
    count = _count_blocks(image_size, attention_size)
    inputs = {
        "noise": keras.Input((latent_dim,), name="noise"),
        "labels": keras.Input((), dtype="int32", name="labels"),
    }
    width = base_dim * 2 ** (count - 1)
    hidden = _spectral(Dense(_START * _START * width, **_LINEAR), "projection")(
        inputs["noise"]
    )
    hidden = ops.reshape(hidden, (-1, _START, _START, width))
    for index in range(count):
        hidden = _up(
            hidden,
            inputs["labels"],
            num_classes,
            base_dim * 2 ** (count - 1 - index),
            f"block_{index}",
        )
        if hidden.shape[1] == attention_size:
            hidden = _self_attention(hidden)
    hidden = ops.relu(BatchNormalization(name="final_norm")(hidden))
    images = _conv(3, 3, "images")(hidden)
    return Functional(inputs, ops.tanh(ops.cast(images, "float32")), name=name)


@registered(CARDS["discriminator"], _DISCRIMINATOR_VARIANTS)
@described_as(build_sagan_generator)
def build_sagan_discriminator(
    variant: str = "128",
    *,
    image_size: int = FROM_VARIANT,
    base_dim: int = FROM_VARIANT,
    attention_size: int = FROM_VARIANT,
    num_classes: int = FROM_VARIANT,
    name: str = "sagan_discriminator",
) -> Functional:
    """Residual blocks that halve the size of a map, with one self-attention layer.

    Args:
        variant: A row of `VARIANTS["sagan"]`, which supplies every argument not given.
        base_dim: D, channels of the first map; each of the others has twice as many as
            the one before.

    Returns:
        A model from `images` (B, H, W, 3) in [-1, 1] and `labels` (B,) to scores
        (B, 1), higher for realistic images of their class.

    Raises:
        ValueError: As in `build_sagan_generator`.

    Reference:
        Zhang et al. 2019, sections 4 and 5 (arXiv:1805.08318); the label's projection:
        Miyato and Koyama 2018 (arXiv:1802.05637).
    """
    count = _count_blocks(image_size, attention_size)
    inputs = {
        "images": image_input(image_size),
        "labels": keras.Input((), dtype="int32", name="labels"),
    }
    hidden = inputs["images"]
    for index in range(count):
        width = base_dim * 2**index
        hidden = _down(hidden, width, f"block_{index}", activate_first=index > 0)
        if hidden.shape[1] == attention_size:
            hidden = _self_attention(hidden)
    width = hidden.shape[-1]
    hidden = _down(hidden, width, f"block_{count}", activate_first=True, halve=False)
    features = ops.sum(ops.relu(hidden), axis=(1, 2))
    realness = _spectral(Dense(1, **_LINEAR), "realness")(features)
    # The projection: how well the features agree with the vector of the class.
    prototype = Embedding(num_classes, width, name="class_embedding")(inputs["labels"])
    projection = ops.sum(ops.multiply(features, prototype), axis=1, keepdims=True)
    scores = ops.cast(ops.add(realness, projection), "float32")
    return Functional(inputs, scores, name=name)


@registered(CARDS["cnn"], VARIANTS["cnn"])
def build_cnn_self_attention(
    variant: str = "small",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    num_classes: int = 10,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    attention_stage: Index = FROM_VARIANT,
    num_channels: int = 3,
    name: str = "cnn_self_attention",
) -> Functional:
    """A small classifier: 3 × 3 convolutions with one self-attention layer.

    Args:
        variant: A row of `VARIANTS["cnn"]`, which supplies every argument not given.
        image_size: In pixels: one number, or (rows, columns).
        num_classes: C.
        hidden_dims: Width of each stage of two convolutions; between stages the map is
            halved.
        attention_stage: Index of the stage after which self-attention is applied, from
            0.
        num_channels: Channels of the images.
        name: Name of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C).

    Raises:
        ValueError: If `attention_stage` is not a stage, or the last map would be empty
            at this `image_size`.

    Reference:
        Zhang et al. 2019, section 3 (arXiv:1805.08318), for the attention.
    """
    if not 0 <= attention_stage < len(hidden_dims):
        raise ValueError(
            "`attention_stage` must be the index of a stage, from 0. Received: "
            f"attention_stage={attention_stage}, hidden_dims={hidden_dims}"
        )
    check_large_enough(image_size, [2 ** (len(hidden_dims) - 1)] * 2)
    images = hidden = image_input(image_size, num_channels)
    for stage, width in enumerate(hidden_dims):
        if stage:
            hidden = MaxPooling2D(name=f"stage_{stage}_pooling")(hidden)
        for index in range(2):
            layer = f"stage_{stage}_conv_{index}"
            hidden = Conv2D(width, 3, padding="same", use_bias=False, name=layer)(
                hidden
            )
            hidden = ops.relu(BatchNormalization(name=f"{layer}_norm")(hidden))
        if stage == attention_stage:
            hidden = SelfAttention2D(name="self_attention")(hidden)
    logits = classify(ops.mean(hidden, axis=(1, 2)), num_classes)
    return Functional(images, logits, name=name)


_LINEAR = {
    "use_bias": False,
    "kernel_initializer": "orthogonal",
    # A fixed path for its kernel: `projection/linear/kernel`.
    "name": "linear",
}


def _spectral(layer, name, use_bias=True):
    return SpectralNormalization(layer, use_bias=use_bias, name=name)


def _conv(width, size, name, use_bias=True):
    return _spectral(Conv2D(width, size, padding="same", **_LINEAR), name, use_bias)


def _self_attention(hidden):
    return SelfAttention2D(
        use_bias=False, spectral_normalization=True, name="self_attention"
    )(hidden)


def _count_blocks(image_size, attention_size):
    """Checks the sizes; returns how many times `_START` doubles to `image_size`."""
    count = round(math.log2(image_size / _START))
    sides = [_START * 2**index for index in range(1, count + 1)]
    if not sides or sides[-1] != image_size:
        raise ValueError(
            f"`image_size` must be a power of two of at least {2 * _START}. "
            f"Received: image_size={image_size}"
        )
    if attention_size not in sides[:-1]:
        raise ValueError(
            f"`attention_size` must be one of {sides[:-1]}, the numbers of rows of the "
            f"maps before the last. Received: attention_size={attention_size}"
        )
    return count


def _up(inputs, labels, num_classes, width, name):
    """A residual block that doubles rows and columns."""

    def normed(hidden, index):
        norm = ConditionalBatchNormalization(num_classes, name=f"{name}_norm_{index}")
        return ops.relu(norm(hidden, labels))

    # Without biases: the norms that follow would cancel them.
    hidden = UpSampling2D(name=f"{name}_up")(normed(inputs, 0))
    hidden = _conv(width, 3, f"{name}_conv_0", use_bias=False)(hidden)
    hidden = _conv(width, 3, f"{name}_conv_1", use_bias=False)(normed(hidden, 1))
    shortcut = UpSampling2D(name=f"{name}_shortcut_up")(inputs)
    shortcut = _conv(width, 1, f"{name}_shortcut", use_bias=False)(shortcut)
    return ops.add(hidden, shortcut)


def _down(inputs, width, name, *, activate_first, halve=True):
    """A residual block that halves rows and columns."""
    hidden = ops.relu(inputs) if activate_first else inputs
    hidden = ops.relu(_conv(width, 3, f"{name}_conv_0")(hidden))
    hidden = _conv(width, 3, f"{name}_conv_1")(hidden)
    shortcut = inputs
    if halve:
        hidden = AveragePooling2D(2, name=f"{name}_down")(hidden)
        shortcut = AveragePooling2D(2, name=f"{name}_shortcut_down")(shortcut)
    if halve or shortcut.shape[-1] != width:
        shortcut = _conv(width, 1, f"{name}_shortcut")(shortcut)
    return ops.add(hidden, shortcut)
