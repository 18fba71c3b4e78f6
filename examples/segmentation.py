"""Options and training that the examples of segmentation share."""

import keras
from options import add_data_dir, add_training_options, new_parser

from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz.callbacks import SegmentationMaps


def segmentation_parser(doc, folder, run_dir, **defaults):
    """The options of every example of segmentation.

    Args:
        doc: Docstring of the script.
        folder: Name of the data in $KERAS_ATTN_DATA.
        run_dir: Default of `--run-dir`.
        **defaults: `epochs`, `batch_size` and `learning_rate`.
    """
    parser = new_parser(doc, run_dir)
    add_data_dir(parser, folder, "folder of the images and masks")
    add_training_options(parser, **defaults)
    return parser


def check_folders(arguments, *names):
    """The folders of these names; ends the program if one is missing."""
    folders = [arguments.data_dir / name for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(
                f"{arguments.data_dir} must have the folders {', '.join(names)}. Pass "
                "--data-dir, or set KERAS_ATTN_DATA to the folder above "
                f"{arguments.data_dir.name}."
            )
    return folders


def fit_segmenter(model, make_train, validation, loss, scores, shown, arguments):
    """Trains a model in its own folder, and saves it there.

    Args:
        model: From images to logits (B, H, W, C).
        make_train: Function that takes `epoch` and returns the training batches.
        validation: Held-out batches of images and labels.
        loss: Loss of labels and logits.
        scores: A `SegmentationScores`.
        shown: Images and labels for the pictures in TensorBoard.
        arguments: Command-line arguments; all results go to `run_dir`.
    """
    backup = BackupAndResume(arguments.run_dir / "backup", delete_checkpoint=False)
    train, logs = make_train(backup.epoch), arguments.run_dir / "logs"
    images, labels = shown
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            CosineWarmup(arguments.learning_rate, max(steps // 20, 1), steps),
            weight_decay=1e-4,
        ),
        loss,
        metrics=[scores],
        # On a CPU the convolutions of oneDNN are up to twice as fast as XLA's.
        jit_compile=False,
    )
    model.fit(
        train,
        epochs=arguments.epochs,
        shuffle=False,
        validation_data=validation,
        verbose="auto",
        callbacks=[
            keras.callbacks.TensorBoard(logs, write_graph=False),
            SegmentationMaps(logs, images, labels, scores.class_names, errors=True),
            backup,
        ],
    )
    model.save(arguments.run_dir / "model.keras")
    backup.delete()
