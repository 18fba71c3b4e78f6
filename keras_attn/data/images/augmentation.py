"""Image augmentation: Keras layers in a pipeline, and DeiT III's 3-Augment.

Legend: B batch, H and W pixels, C classes.
"""

import random
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_attn.checks.arguments import check_fraction, check_pair
from keras_attn.data.pipelines.epochs import Epoch, StatelessRandom, batch_seeds
from keras_attn.data.pipelines.label_checks import check_labels

_MAX_SHIFT = 4  # Pixels of padding on each side before the random crop.


def augment_batches(
    dataset: tf.data.Dataset,
    layers: Sequence[keras.layers.Layer],
    *,
    seed: int,
    epoch: Epoch = None,
) -> tf.data.Dataset:
    """Augments batches of images by Keras' preprocessing layers.

    The random numbers of a batch depend only on `seed`, the epoch and the position of
    the batch, not on the layers' own seeds, so a resumed run draws the same numbers as
    an uninterrupted one. Batches are processed sequentially.

    Args:
        dataset: Batches of images, or tuples of images and other tensors.
        layers: Layers such as `RandomFlip`, applied in this order.
        seed: Seed of all layers, an integer.
        epoch: Epoch whose numbers are drawn, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.

    Returns:
        The same number of batches, with the same structure.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_attn import data

        photos = (np.random.uniform(0, 255, (8, 32, 32, 3)), np.arange(8))
        batches = data.shuffled_dataset(photos, seed=0).batch(4)
        layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)]
        train = data.augment_batches(batches, layers, seed=0)
        ```
    """
    reseed = _make_reseed(layers)

    def augment(batch_seed, batch):
        reseed(batch_seed)
        images, *rest = batch if isinstance(batch, tuple) else (batch,)
        for layer in layers:
            images = layer(images, training=True)
        return (images, *rest) if isinstance(batch, tuple) else images

    return tf.data.Dataset.zip(batch_seeds(seed, epoch), dataset).map(augment)


def _make_reseed(layers: Sequence[keras.layers.Layer]) -> Callable[[tf.Tensor], None]:
    """Makes a function that sets the random state of the layers from a seed (2,)."""
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
    """Batches of images augmented by 3-Augment, mixup and cutmix, and their targets.

    Each image is randomly flipped and shifted by up to 4 pixels. Then it is converted
    to grayscale, solarized or blurred, chosen at random. Its brightness, contrast and
    saturation are jittered. Finally, the images of a batch are mixed in pairs, by mixup
    or by cutmix, chosen at random for each batch.

    Args:
        dataset: Batches of images (B, H, W, 3) and integer labels (B,).
        image_size: Height and width of the crop in pixels; one integer for both.
        num_classes: C.
        mixup: α of mixup's Beta distribution; 0 disables it.
        cutmix: α of cutmix's Beta distribution; 0 disables it.
        color_jitter: Maximum change of brightness, contrast and saturation, in [0, 1).
        binary_targets: Whether both classes of a mixed image get the target 1, for a
            binary cross-entropy; otherwise each gets its share.
        value_range: Range of the pixel values, before and after.
        seed: Seed of all random numbers. With a seed, batches are processed
            sequentially.
        epoch: Epoch whose numbers are drawn, or a `tf.Variable` that holds it, such as
            `BackupAndResume.epoch`. None counts the iterations.

    Returns:
        Batches of float32 images and targets (B, C).

    Raises:
        ValueError: If an α is negative or an argument is out of range.
        TypeError: If the labels are not integers.
        tf.errors.InvalidArgumentError: If a label is outside [0, C); raised while the
            dataset is read.

    Example:
        ```python
        import numpy as np
        from keras_attn import data

        photos = (np.random.uniform(0, 255, (8, 32, 32, 3)), np.arange(8))
        batches = data.shuffled_dataset(photos, seed=0).batch(4)
        train = data.three_augment_dataset(batches, image_size=32, num_classes=10)
        images, targets = next(iter(train))  # (4, 32, 32, 3), (4, 10)
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
                f"`{name}` must be at least 0, which disables it. "
                f"Received: {name}={alpha}"
            )
    layers = keras.layers
    flip_and_crop = [
        layers.RandomFlip("horizontal", seed=seed),
        layers.RandomCrop(height, width, seed=seed),
    ]
    gray = layers.RandomGrayscale(1.0, seed=seed)
    blur = layers.RandomGaussianBlur(
        1.0, kernel_size=9, sigma=(0.1, 2.0), value_range=value_range, seed=seed
    )
    factors = ("brightness_factor", "contrast_factor", "saturation_factor")
    jitter = layers.RandomColorJitter(
        value_range, **dict.fromkeys(factors, color_jitter), seed=seed
    )
    mixers = []
    if mixup:
        mixers.append(layers.MixUp(mixup, seed=seed))
    if cutmix:
        mixers.append(layers.CutMix(cutmix, seed=seed))
    reseed = _make_reseed([*flip_and_crop, gray, blur, jitter, *mixers])
    sides = [[0, 0], [_MAX_SHIFT, _MAX_SHIFT], [_MAX_SHIFT, _MAX_SHIFT], [0, 0]]

    def solarize(images):
        # Keras' layer (3.15) samples a threshold for each image, even if given one.
        total = value_range[0] + value_range[1]
        return tf.where(images < total / 2, images, total - images)

    def augment(batch_seed, batch):
        images, labels = batch
        if seed is not None:
            reseed(batch_seed)
        numbers = StatelessRandom(batch_seed)
        images = tf.pad(tf.cast(images, "float32"), sides, "REFLECT")
        for layer in flip_and_crop:
            images = layer(images, training=True)
        choice = numbers.integers([tf.shape(images)[0], 1, 1, 1], 0, 3)
        recolored = tf.where(choice == 0, gray(images, training=True), solarize(images))
        images = tf.where(choice == 2, blur(images, training=True), recolored)
        if color_jitter:
            images = jitter(images, training=True)
        targets = tf.one_hot(labels, num_classes)
        if mixers:
            images, targets = _mix(mixers, images, targets, numbers)
        if binary_targets:
            targets = tf.cast(targets > 0, "float32")
        return images, targets

    calls = tf.data.AUTOTUNE if seed is None else None
    seeds = batch_seeds(random.randrange(2**31) if seed is None else seed, epoch)
    checked = tf.data.Dataset.zip(seeds, check_labels(dataset, num_classes))
    return checked.map(augment, num_parallel_calls=calls)


def _mix(mixers, images, targets, numbers: StatelessRandom):
    """Images and targets mixed by one of the given layers, chosen at random."""
    inputs = {"images": images, "labels": targets}
    mixed = [layer(inputs, training=True) for layer in mixers]
    use_first = numbers.uniform([]) < 0.5 if len(mixed) > 1 else True
    return tuple(
        tf.where(use_first, mixed[0][key], mixed[-1][key])
        for key in ("images", "labels")
    )
