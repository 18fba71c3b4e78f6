"""Vision Transformers against convolution, at equal cost, on CIFAR-10.

    python examples/classify_images.py            ViT, Swin and ConvNeXt, in one table
    python examples/classify_images.py --model swin

Results on one core of an Intel Xeon (AMX), with other work on the other core and at
times on this one; 15 epochs over 10,000 images, accuracy on 2,000 held-out images:

    model      accuracy   parameters   seconds per epoch   MFLOPs per image
    vit         52.0%      307,914          40.6                44.4
    swin        48.6%      567,046          43.0                41.9
    convnext    51.6%      598,442          44.7                44.3

With 2,000 images a difference of two points is not significant, so at equal cost and
after the same number of epochs, the ConvNeXt is no better than a ViT with half its
parameters.
"""

from keras_attn import script_arguments  # isort: split

import keras
import tensorflow as tf

from keras_attn import models
from keras_attn.data import augment_batches, load_cifar10, shuffled_dataset
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup, Stopwatch
from keras_attn.viz import image_attention, plot_image_attention, save_figure
from keras_attn.viz.callbacks import ImageAttentionMaps

IMAGE_SIZE = 32
# Published models at smaller sizes, which take about the same FLOPs per image.
MODELS = {
    "vit": (
        "vit_tiny_patch16",
        {
            "patch_size": 4,
            "num_layers": 6,
            "hidden_dim": 64,
            "num_heads": 4,
            "mlp_dim": 256,
            "class_token": False,
            "pooling": "mean",
        },
    ),
    "swin": (
        "swin_tiny",
        {
            "patch_size": 2,
            "window_size": 4,
            "hidden_dim": 32,
            "num_blocks": (2, 2, 2),
            "num_heads": (2, 4, 8),
        },
    ),
    "convnext": (
        "convnext_tiny",
        {"patch_size": 2, "hidden_dims": (32, 64, 128), "num_blocks": (3, 3, 3)},
    ),
}


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/classify-images")
    script_arguments.add_cifar10_dir(parser)
    script_arguments.add_training_options(
        parser, epochs=15, batch_size=64, learning_rate=1e-3
    )
    parser.add_argument("--model", choices=MODELS, help="train only this model")
    return parser.parse_args()


def batches(pair, arguments, shuffle=False, augment=False, epoch=None):
    """Batches of images and labels.

    Args:
        pair: Images (N, 32, 32, 3) and labels (N,).
        arguments: Command-line arguments.
        shuffle: Whether to shuffle, in a new order each epoch.
        augment: Whether to flip images randomly and shift them by up to 4 pixels.
        epoch: `BackupAndResume.epoch` of a training that can be resumed.
    """
    dataset = tf.data.Dataset.from_tensor_slices(pair)
    if shuffle:
        dataset = shuffled_dataset(pair, seed=arguments.seed, epoch=epoch)
    dataset = dataset.batch(arguments.batch_size)
    if augment:
        layers = [
            keras.layers.RandomFlip("horizontal"),
            keras.layers.RandomTranslation(0.125, 0.125),
        ]
        dataset = augment_batches(dataset, layers, seed=arguments.seed, epoch=epoch)
    return dataset.prefetch(2)


def fit_classifier(model, train, validation, arguments, **options):
    """Trains a classifier; returns its accuracy and its seconds per epoch.

    Args:
        model: From images to logits (B, C).
        train: Batches of images and labels.
        validation: Held-out batches of images and labels.
        arguments: Command-line arguments with `epochs` and `learning_rate`.
        **options: Arguments of `model.fit`.

    Returns:
        The accuracy on held-out images, and the seconds of training per epoch.
    """
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps),
            weight_decay=0.05,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    watch = Stopwatch()
    options["callbacks"] = [watch, *options.get("callbacks", ())]
    model.fit(train, epochs=arguments.epochs, shuffle=False, **options)
    _, accuracy = model.evaluate(validation, verbose=0)
    return accuracy, watch.seconds_per_epoch()


def train_one(kind, train, validation, num_classes, arguments):
    """Trains one model; returns its row of the table."""
    keras.utils.set_random_seed(arguments.seed)
    name, sizes = MODELS[kind]
    sizes = {**sizes, "image_size": IMAGE_SIZE, "num_classes": num_classes}
    model = models.create(name, **sizes)
    # The images of `load_cifar10` are in [-1, 1], whatever the published ones are in.
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    model.preprocessing = {"image_processor_type": "ViTImageProcessor", "size": size}
    cost = models.plan(name, **sizes)
    print(f"\n{kind}: {cost.parameters:,} parameters", flush=True)
    run_dir = arguments.run_dir / kind
    backup = BackupAndResume(run_dir / "backup", delete_checkpoint=False)
    callbacks = [keras.callbacks.TensorBoard(run_dir / "logs", write_graph=False)]
    has_attention = kind != "convnext"
    if has_attention:
        callbacks.append(
            ImageAttentionMaps(run_dir / "logs", validation[0][:2], every=5)
        )
    accuracy, seconds = fit_classifier(
        model,
        batches(train, arguments, shuffle=True, augment=True, epoch=backup.epoch),
        batches(validation, arguments),
        arguments,
        callbacks=[*callbacks, backup],
        validation_data=batches(validation, arguments),
    )
    model.save(run_dir / "model.keras")
    backup.delete()
    if has_attention:
        for path, maps in image_attention(model, validation[0][:1]).items():
            figure = plot_image_attention(validation[0][0], maps[0], title=path)
            save_figure(figure, run_dir / f"{path.replace('/', '_')}.png")
    return (
        f"| {kind} | {accuracy:.1%} | {cost.parameters:,} | {seconds:.1f} | "
        f"{cost.forward_flops / 1e6:.1f} |"
    )


def main():
    """Trains each model, then prints the table."""
    arguments = parse_arguments()
    train, validation, classes = load_cifar10(
        arguments.data_dir, arguments.run_dir / "images"
    )
    kinds = [arguments.model] if arguments.model else list(MODELS)
    rows = [
        train_one(kind, train, validation, len(classes), arguments) for kind in kinds
    ]
    print("\n| model | accuracy | parameters | seconds per epoch | MFLOPs per image |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\nAttention: {arguments.run_dir}; tensorboard --logdir {arguments.run_dir}")


if __name__ == "__main__":
    main()
