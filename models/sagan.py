"""SAGAN: self-attention inside convolutional networks.

    build_sagan_generator       noise, labels -> images
    build_sagan_discriminator   images, labels -> how real each looks
    build_cnn_self_attention    images -> logits, by a small network with attention

Legend: B batch, H and W pixels, D = `base_dim` channels at full size, C classes.
Layers: `block_0`, … are functions; of each `block_0_conv_0`, `block_0_conv_1`,
`block_0_shortcut`, and in a generator `block_0_norm_0`, `block_0_norm_1`;
`self_attention`.
"""

import math

import keras
from keras import ops
from keras.layers import (
    AveragePooling2D,
    BatchNormalization,
    Conv2D,
    Dense,
    Embedding,
    MaxPooling2D,
    UpSampling2D,
)

from keras_attn.checks import check_positive
from keras_attn.layers import (
    ConditionalBatchNormalization,
    SelfAttention2D,
    SpectralNormalization,
)
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.images import (
    HALF,
    check_large_enough,
    classify,
    image_card,
    image_input,
)
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve

_START = 4  # Rows and columns of a generator's first map.

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
    # Ours, after the discriminator: a classifier for small images.
    "cnn": {
        "small": {
            "image_size": 32,
            "hidden_dims": (64, 128, 256),
            "attention_stage": 1,
        },
    },
}


def build_sagan_generator(
    variant="128",
    *,
    image_size=None,
    latent_dim=None,
    base_dim=None,
    attention_size=None,
    num_classes=None,
    name="sagan_generator",
):
    """Residual blocks that double a map until it is an image, with one attention.

    Args:
        variant: A row of `VARIANTS["sagan"]`; what is None below is as it says.
        image_size: Pixels of a side, 4 doubled once or more.
        latent_dim: Numbers an image is drawn from.
        base_dim: D; a map half the size is twice as wide.
        attention_size: Side of the map that attends to itself.
        num_classes: C.
        name: Of the model.

    Returns:
        A model from `noise` (B, latent_dim), normal, and `labels` (B,) to images
        (B, H, W, 3) in [-1, 1].

    Reference:
        Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", sections 4
        and 5 (arXiv:1805.08318).
    """
    numbers = resolve(
        VARIANTS["sagan"],
        variant,
        image_size=image_size,
        latent_dim=latent_dim,
        base_dim=base_dim,
        attention_size=attention_size,
        num_classes=num_classes,
    )
    count = _count_blocks(numbers)
    inputs = {
        "noise": keras.Input((numbers["latent_dim"],), name="noise"),
        "labels": keras.Input((), dtype="int32", name="labels"),
    }
    width = numbers["base_dim"] * 2 ** (count - 1)
    hidden = _spectral(Dense(_START * _START * width, **_LINEAR), "projection")(
        inputs["noise"]
    )
    hidden = ops.reshape(hidden, (-1, _START, _START, width))
    for index in range(count):
        hidden = _up(
            hidden,
            inputs["labels"],
            numbers["num_classes"],
            numbers["base_dim"] * 2 ** (count - 1 - index),
            f"block_{index}",
        )
        if hidden.shape[1] == numbers["attention_size"]:
            hidden = _attend(hidden)
    hidden = ops.relu(BatchNormalization(name="final_norm")(hidden))
    images = _conv(3, 3, "images")(hidden)
    return Functional(inputs, ops.tanh(ops.cast(images, "float32")), name=name)


def build_sagan_discriminator(
    variant="128",
    *,
    image_size=None,
    base_dim=None,
    attention_size=None,
    num_classes=None,
    name="sagan_discriminator",
):
    """Residual blocks that halve an image, with one attention, and a score at the end.

    Args:
        variant: A row of `VARIANTS["sagan"]`; what is None below is as it says.
        image_size: Pixels of a side, 4 doubled once or more.
        base_dim: D; a map half the size is twice as wide.
        attention_size: Side of the map that attends to itself.
        num_classes: C.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, 3) in [-1, 1] and `labels` (B,) to scores
        (B, 1), higher for what looks real and of its class.

    Reference:
        Zhang et al. 2019, sections 4 and 5 (arXiv:1805.08318); the label's projection:
        Miyato and Koyama 2018 (arXiv:1802.05637).
    """
    numbers = resolve(
        VARIANTS["sagan"],
        variant,
        image_size=image_size,
        base_dim=base_dim,
        attention_size=attention_size,
        num_classes=num_classes,
    )
    count = _count_blocks(numbers)
    inputs = {
        "images": image_input(numbers["image_size"]),
        "labels": keras.Input((), dtype="int32", name="labels"),
    }
    hidden = inputs["images"]
    for index in range(count):
        width = numbers["base_dim"] * 2**index
        hidden = _down(hidden, width, f"block_{index}", activate_first=index > 0)
        if hidden.shape[1] == numbers["attention_size"]:
            hidden = _attend(hidden)
    width = hidden.shape[-1]
    hidden = _down(hidden, width, f"block_{count}", activate_first=True, halve=False)
    features = ops.sum(ops.relu(hidden), axis=(1, 2))
    realness = _spectral(Dense(1, **_LINEAR), "realness")(features)
    # Of a class the vector that its features should point along.
    prototype = Embedding(numbers["num_classes"], width, name="class_embedding")(
        inputs["labels"]
    )
    fit = ops.sum(ops.multiply(features, prototype), axis=1, keepdims=True)
    scores = ops.cast(ops.add(realness, fit), "float32")
    return Functional(inputs, scores, name=name)


def build_cnn_self_attention(
    variant="small",
    *,
    image_size=None,
    num_classes=10,
    hidden_dims=None,
    attention_stage=None,
    num_channels=3,
    name="cnn_self_attention",
):
    """Convolutions of 3 × 3 that see what is near, and one layer that sees all.

    Args:
        variant: A row of `VARIANTS["cnn"]`; what is None below is as it says.
        image_size: Pixels, one number or two, rows first.
        num_classes: C.
        hidden_dims: Width of each stage, of two convolutions; between stages the map
            is halved.
        attention_stage: Behind which of them the map attends to itself, from 0.
        num_channels: Of the images.
        name: Of the model.

    Returns:
        A model from `images` (B, H, W, channels) to logits (B, C).

    Raises:
        ValueError: for a stage that there is not, or an image of which the last would
            have nothing left.

    Reference:
        Zhang et al. 2019, section 3 (arXiv:1805.08318), for the attention.
    """
    numbers = resolve(
        VARIANTS["cnn"],
        variant,
        image_size=image_size,
        hidden_dims=hidden_dims,
        attention_stage=attention_stage,
    )
    dims, place = numbers["hidden_dims"], numbers["attention_stage"]
    if not 0 <= place < len(dims):
        raise ValueError(
            "`attention_stage` must be one of the stages, from 0. Received: "
            f"attention_stage={place}, hidden_dims={dims}"
        )
    check_large_enough(numbers["image_size"], [2 ** (len(dims) - 1)] * 2)
    images = hidden = image_input(numbers["image_size"], num_channels)
    for stage, width in enumerate(dims):
        if stage:
            hidden = MaxPooling2D(name=f"stage_{stage}_pooling")(hidden)
        for index in range(2):
            layer = f"stage_{stage}_conv_{index}"
            hidden = Conv2D(width, 3, padding="same", use_bias=False, name=layer)(
                hidden
            )
            hidden = ops.relu(BatchNormalization(name=f"{layer}_norm")(hidden))
        if stage == place:
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


def _attend(hidden):
    return SelfAttention2D(
        use_bias=False, spectral_normalization=True, name="self_attention"
    )(hidden)


def _count_blocks(numbers):
    """How often 4 is doubled to be the size of the image; other sizes are checked."""
    for name, number in numbers.items():
        check_positive(name, number)
    size = numbers["image_size"]
    count = round(math.log2(size / _START))
    sides = [_START * 2**index for index in range(1, count + 1)]
    if not sides or sides[-1] != size:
        raise ValueError(
            f"`image_size` must be {_START} doubled once or more: 8, 16, 32, … "
            f"Received: image_size={size}"
        )
    if numbers["attention_size"] not in sides[:-1]:
        raise ValueError(
            f"`attention_size` must be the side of a map between {_START} and the "
            f"image, of {sides[:-1]}. "
            f"Received: attention_size={numbers['attention_size']}"
        )
    return count


def _up(inputs, labels, num_classes, width, name):
    """A residual block twice as large as its inputs."""

    def normed(hidden, index):
        norm = ConditionalBatchNormalization(num_classes, name=f"{name}_norm_{index}")
        return ops.relu(norm(hidden, labels))

    # Norms follow, which would take the biases out again.
    hidden = UpSampling2D(name=f"{name}_up")(normed(inputs, 0))
    hidden = _conv(width, 3, f"{name}_conv_0", use_bias=False)(hidden)
    hidden = _conv(width, 3, f"{name}_conv_1", use_bias=False)(normed(hidden, 1))
    shortcut = UpSampling2D(name=f"{name}_shortcut_up")(inputs)
    shortcut = _conv(width, 1, f"{name}_shortcut", use_bias=False)(shortcut)
    return ops.add(hidden, shortcut)


def _down(inputs, width, name, *, activate_first, halve=True):
    """A residual block half as large as its inputs."""
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


_PAPER = "Zhang et al. 2019, arXiv:1805.08318"
register(
    ModelCard(
        name="sagan_generator_128",
        family="sagan",
        title="SAGAN's generator: images of 128 pixels of a class",
        paper=_PAPER,
        year=2019,
        task="image generation",
        parameters=None,
        inputs={
            "noise": "(B, 128) float, normal",
            "labels": "(B,) int32, a class of 1,000",
        },
        outputs={"images": "(B, 128, 128, 3) float32, in [-1, 1]"},
        notes="ImageNet at 128: Inception score 52.52, FID 18.65",
    ),
    build_sagan_generator,
    "128",
)
register(
    ModelCard(
        name="sagan_discriminator_128",
        family="sagan",
        title="SAGAN's discriminator: how real an image of a class looks",
        paper=_PAPER,
        year=2019,
        task="adversarial training",
        parameters=None,
        inputs={
            "images": f"(B, 128, 128, 3) float, red, green, blue; {HALF}",
            "labels": "(B,) int32, a class of 1,000",
        },
        outputs={"logits": "(B, 1) float32, higher for what looks real"},
        notes="trained four times as fast as the generator",
    ),
    build_sagan_discriminator,
    "128",
)
register(
    image_card(
        "cnn_self_attention",
        "sagan",
        "A small convolutional network with self-attention in the middle",
        _PAPER,
        2019,
        None,
        HALF,
        "not of the paper: what its module does in a classifier",
    ),
    build_cnn_self_attention,
    "small",
)
