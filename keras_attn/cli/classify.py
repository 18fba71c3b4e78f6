"""`keras-attn classify`: which of several labels fits an image, by a CLIP.

The classifier: `models/parts/zero_shot.py`; opening a CLIP: `cli/pairs_model.py`.
"""

from pathlib import Path
from typing import Annotated

import typer

from keras_attn.cli.options import Panel
from keras_attn.cli.pairs_model import PairsModel, TokenizerOfPairs, open_pairs_model
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import say

_OPTIONS = Panel()


def classify(
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Image files: JPEG, PNG, BMP, TIFF, WebP or GIF.",
            metavar="IMAGE...",
            exists=True,
            dir_okay=False,
        ),
    ],
    model: PairsModel,
    labels: Annotated[
        list[str] | None,
        _OPTIONS.option(
            'The classes, in words, with commas between them: "cat, dog". May be given '
            "several times.",
            metavar="TEXT",
        ),
    ] = None,
    labels_file: Annotated[
        Path | None, _OPTIONS.file("A text file with one class per line.")
    ] = None,
    template: Annotated[
        list[str] | None,
        _OPTIONS.option(
            "A caption with {} in place of the class. May be given several times: a "
            'class is then the mean of its captions. Default: "a photo of a {}."',
            metavar="TEXT",
        ),
    ] = None,
    count: Annotated[
        int, _OPTIONS.count("Number of classes to print, the most probable first.")
    ] = 5,
    tokenizer: TokenizerOfPairs = None,
) -> None:
    """Classify images by classes that are given in words.

    Prints the probability of each class, given that the image shows one of them: add a
    class such as "something else" if it may show none. No class has to be known in
    training.

    Example: keras-attn classify dog.jpg --labels "cat, dog" --model
    checkpoints/clip
    """
    classes = _classes(labels, labels_file)
    with importing_tensorflow():
        from keras_attn import models
        from keras_attn.data.images.image_files import read_image

    # Before the model, which takes longer to load.
    pixels = [read_image(image) for image in images]
    clip, text_tokenizer = open_pairs_model(model, tokenizer)
    templates = template or ["a photo of a {}."]
    classifier = models.zero_shot_classifier(clip, text_tokenizer, classes, templates)
    served = models.with_preprocessing(classifier)
    for image, picture in zip(images, pixels, strict=True):
        if len(images) > 1:
            say(f"{image}:")
        scores = _probabilities(served(picture[None]), clip)
        for row in scores.argsort(kind="stable")[::-1][:count]:
            say(f"{scores[row]:.3f}  {classes[row]}")


def _classes(labels: list[str] | None, file: Path | None) -> list[str]:
    from keras_attn.files.reading import read_text

    if (labels is None) == (file is None):
        received = "neither" if file is None else "both"
        raise typer.BadParameter(
            f"give one of --labels and --labels-file. Received: {received}."
        )
    if file is not None:
        parts = read_text(file).split("\n")
    else:
        parts = [part for text in labels or () for part in text.split(",")]
    classes = [part.strip() for part in parts if part.strip()]
    source = f"--labels-file {file}" if file is not None else f"--labels {labels}"
    if not classes:
        raise ValueError(f"At least one label must be given. Received: {source}")
    double = next((each for each in classes if classes.count(each) > 1), None)
    if double is not None:
        raise ValueError(
            f"Labels must be different. Received: {double!r} twice in {source}"
        )
    return classes


def _probabilities(logits, clip):
    """The probability of each class, (C,)."""
    import numpy as np
    from keras import ops

    if clip.similarity.logit_bias is not None:
        # SigLIP's is the probability that image and text belong together.
        return np.asarray(ops.convert_to_numpy(ops.sigmoid(logits)))[0]
    return np.asarray(ops.convert_to_numpy(ops.softmax(logits)))[0]
