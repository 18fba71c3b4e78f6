"""A pre-trained CNN that predicts what each location of an image of shapes shows.

The captioner and the two question-answering models whose attention the examples measure
were published with a frozen CNN that had been trained on other labels. This one is
trained on separate images, without captions or questions. For each location it predicts
the shares that each size, each color, each shape and the background cover, and these
shares are the map that the models read. Attention to the map is then learned from the
words or the answers alone. Hidden units would not work: their receptive field is larger
than a location, so a model may look beside an object. Neither would the class of the
object that covers half of a location: the border of an object would then have the same
features as its middle.

Both examples use the same CNN; the first that runs trains it.

Legend: B batch, h and w rows and columns of locations, H and W pixels.
"""

import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, training

IMAGE_SIZE = 64
STRIDE = 4  # Side of a location in pixels.
GRID_SIZE = IMAGE_SIZE // STRIDE
# Radii, as shares of the side. The largest circle covers 14.5% of the image.
SIZES = {"small": (0.13, 0.15), "large": (0.19, 0.215)}
PARTS = ("sizes", "colors", "shapes")  # What is predicted of an object.
NUM_OBJECTS = (2, 4)  # In the images of the CNN.
FIRST_IMAGE = 10_000_000  # The CNN's images are counted from here, the examples' not.


def new_shapes(num_objects, seed):
    """The images of the examples."""
    return data.Shapes(
        image_size=IMAGE_SIZE, num_objects=num_objects, sizes=SIZES, seed=seed
    )


def add_backbone_options(parser):
    """Adds the options of the CNN."""
    parser.add_argument(
        "--backbone-dir", default="runs/shape-backbone", help="folder of the CNN"
    )
    parser.add_argument(
        "--backbone-images", type=int, default=8000, help="training images of the CNN"
    )
    parser.add_argument(
        "--backbone-epochs", type=int, default=8, help="epochs of the CNN"
    )
    parser.add_argument(
        "--backbone-width", type=int, default=32, help="channels of the CNN"
    )


def pretrained_backbone(arguments):
    """Reads the CNN, or trains it and prints its accuracy.

    Args:
        arguments: `seed` and the options of `add_backbone_options`.

    Returns:
        A model from images (B, H, W, 3), in [0, 255], to shares of each location,
        (B, h, w, P), whose weights are frozen.
    """
    folder = Path(arguments.backbone_dir)
    path = folder / "model.keras"
    if path.is_file():
        return keras.models.load_model(path)
    start = time.perf_counter()
    shapes, count = new_shapes(NUM_OBJECTS, arguments.seed), arguments.backbone_images
    held_out = label_places(shapes, FIRST_IMAGE + count, max(count // 20, 1))
    model = new_backbone(shapes, arguments.backbone_width)
    backup = training.BackupAndResume(folder / "backup")
    train = label_places(shapes, FIRST_IMAGE, count)
    dataset = data.shuffled_dataset(train, seed=arguments.seed, epoch=backup.epoch)
    dataset = dataset.batch(32, drop_remainder=count >= 32)
    steps = arguments.backbone_epochs * int(dataset.cardinality())
    model.compile(
        keras.optimizers.Adam(
            training.CosineWarmup(4e-3, max(1, steps // 20), max(2, steps))
        ),
        {
            part: keras.losses.CategoricalCrossentropy(from_logits=True)
            for part in PARTS
        },
        jit_compile=False,
    )
    model.fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=arguments.backbone_epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )
    pixels, labels = held_out
    outputs = model.predict(pixels.astype("float32"), batch_size=100, verbose=0)
    predicted, true = (
        {part: x[part].argmax(-1) for part in PARTS} for x in (outputs, labels)
    )
    is_right = np.all([predicted[part] == true[part] for part in PARTS], axis=0)
    right = is_right[true[PARTS[0]] > 0].mean()
    print(
        f"CNN: {model.count_params():,} parameters, {right:.1%} of the locations "
        f"covered by an object are right, {time.perf_counter() - start:.0f} seconds"
    )
    maps = [keras.layers.Softmax()(model.output[part]) for part in PARTS]
    backbone = keras.Model(model.input, keras.layers.Concatenate()(maps))
    backbone.trainable = False
    backbone.save(path)
    return backbone


def features_of(backbone, images):
    """The map of each image, computed once, float16 (count, h, w, channels)."""
    maps = [
        backbone.predict_on_batch(images[begin : begin + 100].astype("float32"))
        for begin in range(0, len(images), 100)
    ]
    return np.concatenate([part.astype("float16") for part in maps])


def with_backbone(model, trained):
    """Copies the weights of a model trained on maps to one with the backbone."""
    for layer in trained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
    return model


def new_backbone(shapes, width):
    """A model from images to logits of what each location shows, by part.

    A location sees 62 pixels, more than any object has, and is in the middle of them:
    kernels of 3 with stride 2 would shift them by one and a half pixels.
    """
    images = keras.Input((*shapes.image_size, 3))
    maps = keras.layers.Rescaling(1 / 255, offset=-0.5)(images)
    fine = _convolve(_convolve(maps, width // 2, 4, 2), width, 4, 2)
    coarse = _convolve(fine, 2 * width, 4, 2)
    coarse = _convolve(_convolve(coarse, 2 * width, 3), 2 * width, 3)
    coarse = keras.layers.UpSampling2D(2)(_convolve(coarse, width, 1))
    maps = keras.layers.Concatenate()([fine, coarse])
    places = _convolve(maps, 3 * width // 2, 3)
    outputs = {
        part: keras.layers.Conv2D(1 + len(getattr(shapes, part)), 1, name=part)(places)
        for part in PARTS
    }
    return keras.Model(images, outputs)


def _convolve(maps, filters, size, stride=1):
    """A convolution, a batch norm and a ReLU."""
    maps = keras.layers.Conv2D(
        filters, size, strides=stride, padding="same", use_bias=False
    )(maps)
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(maps))


def label_places(shapes, start, count):
    """Images, uint8 (count, H, W, 3), and what each of their locations shows.

    Returns:
        The images, and for each of `PARTS` float16 (count, h, w, N): the share of the
        location that is background, and the shares that objects of each size, color or
        shape cover.
    """
    rows, columns = (side // STRIDE for side in shapes.image_size)
    images = np.empty((count, *shapes.image_size, 3), np.uint8)
    labels = {
        part: np.zeros(
            (count, rows, columns, 1 + len(getattr(shapes, part))), "float16"
        )
        for part in PARTS
    }
    for number in range(count):
        example = shapes.example(start + number)
        images[number] = example.image
        masks = example.masks.reshape(-1, rows, STRIDE, columns, STRIDE)
        shares = masks.mean((2, 4))
        for part, attribute in zip(PARTS, ("size", "color", "shape"), strict=True):
            names = list(getattr(shapes, part))
            label = labels[part][number]
            label[..., 0] = 1 - shares.sum(0)
            for each, share in zip(example.objects, shares, strict=True):
                label[..., 1 + names.index(getattr(each, attribute))] += share
    return images, labels
