"""VLN-BERT, stage 2: ViLBERT learns from pictures with captions.

    python examples/shape_detector.py
    python examples/vln_bert_captions.py

Stage 1, BERT's start for the words, is left out: instructions about pictures use a
hundred words. The model learns three objectives at once: masked words, masked regions,
and whether a caption belongs to a picture. `vln_bert_rank.py --starts captions` begins
with the weights.
"""

import time
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np

from keras_attn import data, losses, models, training

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 60
NUM_REGIONS = 3  # Of a picture, at most.
VIEW = np.pi / 3  # Width and height of a picture, in radians.
HELD_OUT = 500


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/vln-bert/captions")
    parser.add_argument("--pictures", type=int, default=6000, help="with captions")
    parser.add_argument("--width", type=int, default=64, help="of both streams")
    parser.add_argument(
        "--layers",
        type=int,
        default=3,
        help="of the words; at most one less of regions",
    )
    parser.add_argument(
        "--detector",
        type=Path,
        default=Path("runs/shape-detector/model.keras"),
        help="the detector that shape_detector.py writes",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of models, counted from --seed"
    )
    script_arguments.add_training_options(
        parser, epochs=16, batch_size=32, learning_rate=1e-3
    )
    tiny = {"pictures": 8, "epochs": 1, "batch_size": 4, "width": 8, "layers": 1}
    return script_arguments.parse(parser, **tiny, seeds=1)


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
    pieces = list(tokenizer.pieces)
    masking = training.MaskedLMMasking(
        len(pieces),
        mask_token_id=pieces.index("[MASK]"),
        special_token_ids=[pieces.index(each) for each in SPECIAL],
    )
    batches = training.mask_pairs(batches, masking, seed=seed, epoch=epoch)
    return batches.prefetch(2)


def train_captions(detector, tokenizer, arguments, seed, folder):
    """Trains a ViLBERT, or resumes, or loads it if `folder` has it.

    Returns:
        The pre-trainer, whose encoder has the layers that VLN-BERT takes over.
    """
    path = folder / "model.keras"
    if path.exists():
        return keras.saving.load_model(path, compile=False)
    keras.utils.set_random_seed(seed)
    count = arguments.pictures
    captions, pictures = read_pictures(detector, seed * count, count)
    width = pictures["region_features"].shape[-1]
    model = models.build_vilbert_pretrainer(
        models.build_vilbert(**sizes_of(arguments, tokenizer.vocabulary_size, width)),
        num_region_classes=pictures["class_distributions"].shape[-1],
    )
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    batches = caption_batches(
        captions, pictures, tokenizer, arguments.batch_size, seed, backup.epoch
    )
    steps = arguments.epochs * len(batches)
    rate = training.CosineWarmup(arguments.learning_rate, steps // 10 + 1, steps + 2)
    mean = "mean_with_sample_weight"
    cross_entropy = keras.losses.SparseCategoricalCrossentropy
    model.compile(
        training.AdamW(rate, weight_decay=0.01, clipnorm=1.0),
        {
            "masked_lm": cross_entropy(from_logits=True, reduction=mean),
            "masked_regions": losses.MaskedRegionLoss(),
            "alignment": cross_entropy(from_logits=True, reduction=mean),
        },
        jit_compile=False,
    )
    model.fit(
        batches, epochs=arguments.epochs, shuffle=False, verbose=2, callbacks=[backup]
    )
    model.save(path)
    backup.delete()
    return model


def right_alignments(model, detector, tokenizer, count=HELD_OUT):
    """Share of held-out captions that are told from one of a different picture."""
    captions, pictures = read_pictures(detector, 900_000, count)
    texts = tokenizer.encode_batch([*captions, *captions[1:], captions[0]])
    inputs = {name: np.concatenate([x, x]) for name, x in pictures.items()}
    del inputs["class_distributions"]
    logits = model.predict({**texts, **inputs}, verbose=0)["alignment"]
    is_wrong = np.repeat([0, 1], count)
    return np.mean(logits.argmax(-1) == is_wrong)


def new_shapes():
    """Pictures of one or two objects."""
    return data.Shapes(image_size=64, num_objects=(1, 2), noise=8.0)


def picture_regions(detector, pictures):
    """What a detector finds in pictures, each the only view from its viewpoint."""
    found = []
    for first in range(0, len(pictures), 100):
        images = np.stack([each.image for each in pictures[first : first + 100]])
        detected = data.detect_regions(detector, images, num_regions=NUM_REGIONS)
        found += data.view_regions(detected, VIEW)
    return found


def sizes_of(arguments, vocabulary_size, feature_dim):
    """Sizes of a small ViLBERT or VLN-BERT."""
    width, layers = arguments.width, arguments.layers
    co_attentions = max(layers - 1, 1)
    return {
        "vocabulary_size": vocabulary_size,
        "max_sequence_length": MAX_TOKENS,
        "num_layers": layers,
        "hidden_dim": width,
        "num_heads": 4,
        "mlp_dim": 2 * width,
        "feature_dim": feature_dim,
        "region_dim": width,
        "num_region_layers": co_attentions,
        "num_region_heads": 4,
        "region_mlp_dim": 2 * width,
        "co_attention_dim": width,
        "num_co_attention_heads": 4,
        "text_co_layers": tuple(range(layers - co_attentions, layers)),
        "region_co_layers": tuple(range(co_attentions)),
    }


def main():
    """Trains a model for each seed, and asks it which caption a picture has."""
    arguments = parse_arguments()
    path = script_arguments.written_by("shape_detector.py", arguments.detector)
    detector = keras.saving.load_model(path, compile=False)
    tokenizer = data.WordPieceTokenizer(
        [*SPECIAL, *data.instruction_words(new_shapes())]
    )
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        began, folder = time.process_time(), arguments.run_dir / str(seed)
        model = train_captions(detector, tokenizer, arguments, seed, folder)
        print(f"seed {seed}: {model.count_params():,} parameters")
        print(f"{time.process_time() - began:.0f} seconds of CPU time")
        right = right_alignments(model, detector, tokenizer)
        print(f"captions told from other captions: {right:.1%}", flush=True)


if __name__ == "__main__":
    main()
