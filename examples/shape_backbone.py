"""A pre-trained CNN that predicts what each location of an image of shapes shows.

    python examples/shape_backbone.py

`answer_shapes.py` and `caption_shapes.py` read what it writes. The captioner and the
two question-answering models whose attention they measure were published with a frozen
CNN that had been trained on other labels. This one is trained on separate images,
without captions or questions. For each location it predicts the shares that each size,
each color, each shape and the background cover, and these shares are the map that the
models read. Attention to the map is then learned from the words or the answers alone.
Hidden units would not work: their receptive field is larger than a location, so a model
may look beside an object. Neither would the class of the object that covers half of a
location: the border of an object would then have the same features as its middle.

Legend: B batch, h and w rows and columns of locations, H and W pixels.
"""

import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, training

IMAGE_SIZE = 64
STRIDE = 4  # Side of a location in pixels.
# Radii, as shares of the side. The largest circle covers 14.5% of the image.
SIZES = {"small": (0.13, 0.15), "large": (0.19, 0.215)}
PARTS = ("sizes", "colors", "shapes")  # What is predicted of an object.
NUM_OBJECTS = (2, 4)  # In the images of the CNN.
FIRST_IMAGE = 10_000_000  # The CNN's images are counted from here, the examples' not.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/shape-backbone")
    parser.add_argument("--images", type=int, default=8000, help="training images")
    parser.add_argument("--width", type=int, default=32, help="channels of the CNN")
    script_arguments.add_training_options(
        parser, epochs=8, batch_size=32, learning_rate=4e-3
    )
    return script_arguments.parse(parser, images=32, epochs=1, width=4)


def train(shapes, arguments):
    """Trains the CNN, or resumes.

    Args:
        shapes: The images.
        arguments: Command-line arguments.

    Returns:
        A model from images (B, H, W, 3), in [0, 255], to logits by part.
    """
    model = new_backbone(shapes, arguments.width)
    backup = training.BackupAndResume(arguments.run_dir / "backup")
    examples = label_places(shapes, FIRST_IMAGE, arguments.images)
    dataset = data.shuffled_dataset(examples, seed=arguments.seed, epoch=backup.epoch)
    size = arguments.batch_size
    dataset = dataset.batch(size, drop_remainder=arguments.images >= size)
    steps = arguments.epochs * int(dataset.cardinality())
    rate = arguments.learning_rate
    model.compile(
        keras.optimizers.Adam(
            training.CosineWarmup(rate, max(1, steps // 20), max(2, steps))
        ),
        {
            part: keras.losses.CategoricalCrossentropy(from_logits=True)
            for part in PARTS
        },
        jit_compile=False,
    )
    model.fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=arguments.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[backup],
    )
    return model


def right_places(model, pixels, labels):
    """The share of the locations that an object covers whose every part is right."""
    outputs = model.predict(pixels.astype("float32"), batch_size=100, verbose=0)
    predicted, true = (
        {part: x[part].argmax(-1) for part in PARTS} for x in (outputs, labels)
    )
    is_right = np.all([predicted[part] == true[part] for part in PARTS], axis=0)
    return is_right[true[PARTS[0]] > 0].mean()


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


def main():
    """Trains the CNN, measures it, and saves it with shares as outputs."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    start, count = time.perf_counter(), arguments.images
    shapes = data.Shapes(
        image_size=IMAGE_SIZE,
        num_objects=NUM_OBJECTS,
        sizes=SIZES,
        seed=arguments.seed,
    )
    held_out = label_places(shapes, FIRST_IMAGE + count, max(count // 20, 1))
    model = train(shapes, arguments)
    right = right_places(model, *held_out)
    print(
        f"CNN: {model.count_params():,} parameters, {right:.1%} of the locations "
        f"covered by an object are right, {time.perf_counter() - start:.0f} seconds"
    )
    maps = [keras.layers.Softmax()(model.output[part]) for part in PARTS]
    backbone = keras.Model(model.input, keras.layers.Concatenate()(maps))
    backbone.trainable = False
    path = arguments.run_dir / "model.keras"
    backbone.save(path)
    print(f"The CNN, with shares as outputs: {path}")


if __name__ == "__main__":
    main()
