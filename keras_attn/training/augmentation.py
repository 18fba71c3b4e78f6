"""3-Augment, mixup and cutmix: how DeiT III makes few images go a long way.

Legend: B batch, H and W pixels, C classes.
"""

import keras
import tensorflow as tf

from keras_attn.checks import check_fraction, check_pair
from keras_attn.training.label_checks import check_labels

_PADDING = 4  # Pixels on each side, so that a crop can shift.


def three_augment_dataset(
    dataset: tf.data.Dataset,
    *,
    image_size,
    num_classes: int,
    mixup: float = 0.8,
    cutmix: float = 1.0,
    color_jitter: float = 0.3,
    binary_targets: bool = True,
    value_range: tuple[float, float] = (0, 255),
    seed: int | None = None,
) -> tf.data.Dataset:
    """Batches of images, each changed at random, and what they show.

    An image is flipped or not and shifted by up to 4 pixels; it becomes gray, or its
    bright pixels are turned into dark ones, or it is blurred, one of the three; its
    brightness, contrast and saturation are jittered. Then images of a batch are mixed
    in pairs, by mixup or by cutmix, which take turns at random.

    Args:
        dataset: Batches of images (B, H, W, 3) and labels (B,), whole numbers.
        image_size: Pixels of the crop, one number or two, rows first.
        num_classes: C.
        mixup: α of the Beta distribution that images are mixed by; 0 for none.
        cutmix: The same of the patch that is cut out; 0 for none.
        color_jitter: Largest change of brightness, contrast and saturation, in [0, 1).
        binary_targets: Whether every class in a mixed image counts as there, for a
            binary cross-entropy, or by its share.
        value_range: Of the pixels, before and after.
        seed: Seed of it all; with one, batches are made one after the other.

    Returns:
        Batches of float32 images and targets (B, C).

    Raises:
        ValueError: for a negative α or a number out of range.
        TypeError: for labels that are not whole numbers.
        tf.errors.InvalidArgumentError: while it is read, for a label that is none of
            the classes.

    Example:
        ```python
        train = three_augment_dataset(train, image_size=224, num_classes=1000)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        ```

    Reference:
        Touvron et al. 2022, section 3.2 (arXiv:2204.07118); mixup: Zhang et al. 2018
        (arXiv:1710.09412); cutmix: Yun et al. 2019 (arXiv:1905.04899).
    """
    height, width = check_pair("image_size", image_size)
    check_fraction("color_jitter", color_jitter)
    for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
        if alpha < 0:
            raise ValueError(
                f"`{name}` must be at least 0, which is none. Received: {name}={alpha}"
            )
    layers = keras.layers
    shift = [
        layers.RandomFlip("horizontal", seed=seed),
        layers.RandomCrop(height, width, seed=seed),
    ]
    gray = layers.RandomGrayscale(1.0, seed=seed)
    blur = layers.RandomGaussianBlur(
        1.0, kernel_size=9, sigma=(0.1, 2.0), value_range=value_range, seed=seed
    )
    jitter = layers.RandomColorJitter(
        value_range,
        brightness_factor=color_jitter,
        contrast_factor=color_jitter,
        saturation_factor=color_jitter,
        seed=seed,
    )
    mixers = []
    if mixup:
        mixers.append(layers.MixUp(mixup, seed=seed))
    if cutmix:
        mixers.append(layers.CutMix(cutmix, seed=seed))
    if seed is None:
        chance = tf.random.Generator.from_non_deterministic_state()
    else:
        chance = tf.random.Generator.from_seed(seed)
    sides = [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]]

    def solarized(images):
        # Keras' layer (3.15) draws its threshold anew for each image, whatever it is
        # told.
        total = value_range[0] + value_range[1]
        return tf.where(images < total / 2, images, total - images)

    def augment(images, labels):
        images = tf.pad(tf.cast(images, "float32"), sides, "REFLECT")
        for layer in shift:
            images = layer(images, training=True)
        which = chance.uniform([tf.shape(images)[0], 1, 1, 1], 0, 3, tf.int32)
        one = tf.where(which == 0, gray(images, training=True), solarized(images))
        images = tf.where(which == 2, blur(images, training=True), one)
        if color_jitter:
            images = jitter(images, training=True)
        targets = tf.one_hot(labels, num_classes)
        if mixers:
            given = {"images": images, "labels": targets}
            made = [layer(given, training=True) for layer in mixers]
            first = chance.uniform([]) < 0.5 if len(made) > 1 else True
            images, targets = (
                tf.where(first, made[0][key], made[-1][key])
                for key in ("images", "labels")
            )
        if binary_targets:
            targets = tf.cast(targets > 0, "float32")
        return images, targets

    calls = tf.data.AUTOTUNE if seed is None else None
    checked = check_labels(dataset, num_classes)
    return checked.map(augment, num_parallel_calls=calls)
