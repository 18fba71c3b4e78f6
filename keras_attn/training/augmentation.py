"""3-Augment, mixup and cutmix: how DeiT III makes few images go a long way.

Legend: B batch, H and W pixels, C classes.
"""

import random
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_attn.checks import check_fraction, check_pair
from keras_attn.data.epochs import Epoch, batch_seeds
from keras_attn.training.label_checks import check_labels
from keras_attn.training.random_masking import StatelessNumbers

_PADDING = 4  # Pixels on each side, so that a crop can shift.


def augment_batches(
    dataset: tf.data.Dataset,
    layers: Sequence[keras.layers.Layer],
    *,
    seed: int,
    epoch: Epoch = None,
) -> tf.data.Dataset:
    """Batches whose images are changed at random by Keras' preprocessing layers.

    The random numbers of a batch follow from `seed`, the epoch and the position of the
    batch, whatever the layers' own seeds, so a run that resumes draws what an unbroken
    one does. Batches are made one after the other.

    Args:
        dataset: Batches of images, or tuples of images and what else there is.
        layers: Such as `RandomFlip`, applied in this order.
        seed: Of it all, a whole number.
        epoch: Number of the epoch whose numbers are drawn, or a `tf.Variable` that
            holds it, such as that of `BackupAndResume`. None counts the iterations.

    Returns:
        As many batches of the same structure.

    Example:
        ```python
        layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)]
        train = augment_batches(train, layers, seed=0, epoch=backup.epoch)
        ```
    """
    reseed = _reseeding(layers)

    def augment(batch_seed, batch):
        reseed(batch_seed)
        images, *rest = batch if isinstance(batch, tuple) else (batch,)
        for layer in layers:
            images = layer(images, training=True)
        return (images, *rest) if isinstance(batch, tuple) else images

    return tf.data.Dataset.zip(batch_seeds(seed, epoch), dataset).map(augment)


def _reseeding(layers: Sequence[keras.layers.Layer]) -> Callable[[tf.Tensor], None]:
    """A function that sets the random state of layers by a seed (2,)."""
    states = [
        variable
        for layer in layers
        for variable in layer.variables
        if variable.path.endswith("seed_generator_state")
    ]

    def reseed(seed):
        shape = [len(states), 2]
        values = tf.random.stateless_uniform(shape, seed, 0, 2**31 - 1, tf.int32)
        for state, value in zip(states, tf.unstack(values), strict=True):
            state.assign(tf.cast(value, state.dtype))

    return reseed


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
    epoch: Epoch = None,
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
        epoch: Number of the epoch whose numbers are drawn, or a `tf.Variable` that
            holds it, such as that of `BackupAndResume`. None counts the iterations.

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
    reseed = _reseeding([*shift, gray, blur, jitter, *mixers])
    sides = [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]]

    def solarized(images):
        # Keras' layer (3.15) draws its threshold anew for each image, whatever it is
        # told.
        total = value_range[0] + value_range[1]
        return tf.where(images < total / 2, images, total - images)

    def augment(batch_seed, batch):
        images, labels = batch
        if seed is not None:
            reseed(batch_seed)
        numbers = StatelessNumbers(batch_seed)
        images = tf.pad(tf.cast(images, "float32"), sides, "REFLECT")
        for layer in shift:
            images = layer(images, training=True)
        which = numbers.whole([tf.shape(images)[0], 1, 1, 1], 0, 3)
        one = tf.where(which == 0, gray(images, training=True), solarized(images))
        images = tf.where(which == 2, blur(images, training=True), one)
        if color_jitter:
            images = jitter(images, training=True)
        targets = tf.one_hot(labels, num_classes)
        if mixers:
            given = {"images": images, "labels": targets}
            made = [layer(given, training=True) for layer in mixers]
            first = numbers.uniform([]) < 0.5 if len(made) > 1 else True
            images, targets = (
                tf.where(first, made[0][key], made[-1][key])
                for key in ("images", "labels")
            )
        if binary_targets:
            targets = tf.cast(targets > 0, "float32")
        return images, targets

    calls = tf.data.AUTOTUNE if seed is None else None
    seeds = batch_seeds(random.randrange(2**31) if seed is None else seed, epoch)
    checked = tf.data.Dataset.zip(seeds, check_labels(dataset, num_classes))
    return checked.map(augment, num_parallel_calls=calls)
