"""VLN-BERT, stage 2: ViLBERT learns from pictures with captions.

    python examples/vln_bert_captions.py

Stage 1, BERT's start for the words, is left out: instructions about pictures use a
hundred words. The model learns three objectives at once: masked words, masked regions,
and whether a caption belongs to a picture. `vln_bert_rank.py --starts captions` begins
with its weights.
"""

import time

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import numpy as np
from options import add_training_options, new_parser, parse_with_smoke
from shape_regions import TINY_DETECTOR, add_detector_options, trained_detector
from vln_bert_worlds import (
    NUM_REGIONS,
    add_size_options,
    fit,
    masked_losses,
    masking_of,
    new_shapes,
    picture_regions,
    picture_tokenizer,
    sizes_of,
)

from keras_attn import data, models, training

HELD_OUT = 500


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/vln-bert/captions")
    parser.add_argument("--pictures", type=int, default=6000, help="with captions")
    add_size_options(parser)
    add_detector_options(parser)
    add_training_options(parser, epochs=16, batch_size=32, learning_rate=1e-3)
    tiny = {"pictures": 8, "epochs": 1, "batch_size": 4, "width": 8, "layers": 1}
    return parse_with_smoke(parser, **tiny, **TINY_DETECTOR)


def read_pictures(detector, first, count):
    """Captions, and the inputs and class distributions of the regions of pictures."""
    shapes = new_shapes()
    pictures = [shapes.example(number) for number in range(first, first + count)]
    captions = [picture.caption for picture in pictures]
    rows = picture_regions(detector, pictures)
    inputs = {
        "region_features": np.zeros((count, NUM_REGIONS, rows[0].features.shape[1])),
        "region_boxes": np.zeros((count, NUM_REGIONS, 4)),
        "class_distributions": np.zeros(
            (count, NUM_REGIONS, rows[0].class_distributions.shape[1])
        ),
    }
    mask = np.zeros((count, NUM_REGIONS), "int32")
    for row, found in enumerate(rows):
        mask[row, : len(found.features)] = 1
        for name, array in inputs.items():
            values = getattr(found, name.removeprefix("region_"))
            array[row, : len(values)] = values
    inputs = {name: array.astype("float32") for name, array in inputs.items()}
    return captions, {**inputs, "region_padding_mask": mask}


def caption_batches(captions, pictures, tokenizer, batch_size, seed, epoch):
    """Batches with masked words and regions; half of the captions are exchanged."""
    pairs = {**tokenizer.encode_batch(captions), **pictures}
    rows = data.shuffled_dataset(pairs, seed=seed, epoch=epoch)
    batches = rows.batch(batch_size, drop_remainder=True)
    masking = masking_of(tokenizer)
    batches = training.mask_pairs(batches, masking, seed=seed, epoch=epoch)
    return batches.prefetch(2)


def train_captions(arguments, seed, folder):
    """Trains a ViLBERT, or loads it if `folder` has it.

    Returns:
        The pre-trainer, whose encoder has the layers that VLN-BERT takes over.
    """
    tokenizer = picture_tokenizer()
    keras.utils.set_random_seed(seed)
    detector, count = trained_detector(arguments), arguments.pictures
    captions, pictures = read_pictures(detector, seed * count, count)
    width = pictures["region_features"].shape[-1]
    encoder = models.build_vilbert(
        **sizes_of(arguments, tokenizer.vocabulary_size, width)
    )
    model = models.build_vilbert_pretrainer(
        encoder, num_region_classes=pictures["class_distributions"].shape[-1]
    )
    path = folder / "captions.weights.h5"
    if path.exists():
        model.load_weights(path)
        return model
    mean = "mean_with_sample_weight"
    alignment = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=mean
    )
    fit(
        model,
        lambda epoch: caption_batches(
            captions, pictures, tokenizer, arguments.batch_size, seed, epoch
        ),
        folder,
        epochs=arguments.epochs,
        rate=arguments.learning_rate,
        loss={**masked_losses(), "alignment": alignment},
    )
    model.save_weights(path)
    return model


def right_alignments(model, detector, count=HELD_OUT):
    """Share of held-out captions that are told from one of a different picture."""
    captions, pictures = read_pictures(detector, 900_000, count)
    texts = picture_tokenizer().encode_batch([*captions, *captions[1:], captions[0]])
    inputs = {name: np.concatenate([x, x]) for name, x in pictures.items()}
    del inputs["class_distributions"]
    logits = model.predict({**texts, **inputs}, verbose=0)["alignment"]
    is_wrong = np.repeat([0, 1], count)
    return np.mean(logits.argmax(-1) == is_wrong)


def main():
    """Trains one model."""
    arguments = parse_arguments()
    began = time.process_time()
    model = train_captions(arguments, arguments.seed, arguments.run_dir)
    print(f"{model.count_params():,} parameters")
    print(f"{time.process_time() - began:.0f} seconds of CPU time")
    right = right_alignments(model, trained_detector(arguments))
    print(f"captions told from other captions: {right:.1%}")


if __name__ == "__main__":
    main()
