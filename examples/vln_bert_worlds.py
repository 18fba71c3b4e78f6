"""What the stages of VLN-BERT share: two worlds of instructions, a model, a fit.

"ways" are the buildings and instructions of Room-to-Room without images: the regions of
a viewpoint are the ways from it (`data.way_regions`).

"pictures" are the same buildings and paths, but a picture of colored shapes hangs at
each viewpoint, and an instruction names one object of each picture on the path, as in
"start at the small red circle then pass the large blue star and stop at the large green
ring". The regions of a viewpoint are what the detector of `shape_regions.py` finds in
its picture.
"""

from dataclasses import dataclass, replace

import keras
import numpy as np
from options import add_data_dir
from shape_regions import IMAGE_SIZE, add_detector_options, detect, trained_detector
from walk_buildings import read_splits

from keras_attn import data, losses, models, training

WORLDS = ("ways", "pictures")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 60
MAX_PATH = 8
NUM_REGIONS = 3  # Of a picture, at most.
# Number of the first; captions and the detector's images have smaller numbers.
PICTURES_OF_BUILDINGS = 2_000_000
VIEW = np.pi / 3  # Width and height of a picture, in radians.
SAID = (
    *("start at the", "go to the", "then pass the", "walk past the"),
    *("and stop at the", "wait by the"),
)


@dataclass(frozen=True)
class World:
    """Instructions with their paths, and what is seen along them.

    Attributes:
        train: The training instructions.
        tests: Those in seen and in unseen buildings.
        paths: The regions along paths.
        tokenizer: Of the instructions, and in "pictures" of the captions, too.
    """

    train: data.WalkData
    tests: dict
    paths: data.PathRegions
    tokenizer: data.WordPieceTokenizer


def add_world_options(parser):
    """Adds the options that all stages need."""
    content = "R2R_train.json, R2R_val_seen.json, R2R_val_unseen.json, connectivity/"
    add_data_dir(parser, "r2r", f"folder with {content}")
    parser.add_argument("--world", choices=WORLDS, default="ways", help="see above")
    add_size_options(parser)
    add_detector_options(parser)
    parser.add_argument("--min-count", type=int, default=5, help="of a word")


def add_size_options(parser):
    """Adds the sizes of the model."""
    parser.add_argument("--width", type=int, default=64, help="of both streams")
    parser.add_argument(
        "--layers",
        type=int,
        default=3,
        help="of the words; at most one less of regions",
    )


def read_world(arguments):
    """Reads Room-to-Room, with ways or with pictures."""
    train, tests = read_splits(arguments.data_dir, arguments.min_count)
    splits = {"train": train, **tests}
    buildings = {
        each.building.name: each.building
        for split in splits.values()
        for each in split.examples
    }
    if arguments.world == "ways":
        regions = {name: data.way_regions(one) for name, one in buildings.items()}
        texts = [each.instruction for each in train.examples]
        tokenizer = data.WordPieceTokenizer.train(texts, vocabulary_size=2000)
        paths = data.PathRegions(regions, max_path_length=MAX_PATH)
        return World(train, tests, paths, tokenizer)
    detector = trained_detector(arguments)
    shapes = new_shapes()
    regions, objects = {}, {}
    number = PICTURES_OF_BUILDINGS
    for name in sorted(buildings):
        count = len(buildings[name].viewpoints)
        pictures = [shapes.example(number + index) for index in range(count)]
        regions[name] = picture_regions(detector, pictures)
        objects[name] = [[words_of(x) for x in each.objects] for each in pictures]
        number += count
    splits = {
        name: replace(split, examples=told(split.examples, objects))
        for name, split in splits.items()
    }
    paths = data.PathRegions(regions, max_path_length=MAX_PATH)
    return World(splits.pop("train"), splits, paths, picture_tokenizer())


def new_shapes():
    """Pictures of one or two objects."""
    return data.Shapes(image_size=IMAGE_SIZE, num_objects=(1, 2), noise=8.0)


def picture_tokenizer():
    """A tokenizer whose vocabulary has all words of captions and instructions."""
    words = {*new_shapes().vocabulary, *" ".join(SAID).split()}
    return data.WordPieceTokenizer([*SPECIAL, *sorted(words)])


def words_of(thing):
    """An object in words."""
    return f"{thing.size} {thing.color} {thing.shape}"


def picture_regions(detector, pictures):
    """What a detector finds in pictures, each the only view from its viewpoint."""
    found = []
    for first in range(0, len(pictures), 100):
        part = [each.image for each in pictures[first : first + 100]]
        detected = detect(detector, np.stack(part), NUM_REGIONS)
        for row, is_real in enumerate(detected.pop("is_real")):
            arrays = {name: x[row, is_real] for name, x in detected.items()}
            boxes = arrays["boxes"]
            middles = (boxes[:, :2] + boxes[:, 2:]) / 2 - 0.5
            found.append(
                data.ViewpointRegions(
                    arrays["features"],
                    boxes,
                    VIEW * middles[:, 0],
                    -VIEW * middles[:, 1],
                    arrays["class_distributions"],
                )
            )
    return found


def told(examples, objects):
    """One instruction for each path, which names an object of each picture on it."""
    made = {}
    for each in examples:
        if each.path_id in made:
            continue
        random = np.random.default_rng(each.path_id)
        seen = [objects[each.building.name][viewpoint] for viewpoint in each.path]
        named = [things[random.integers(len(things))] for things in seen]
        first, last = random.integers(2), random.integers(2)
        starts = [SAID[first], *[SAID[2 + n % 2] for n in range(len(named) - 2)]]
        starts.append(SAID[4 + last])
        text = " ".join(" ".join(pair) for pair in zip(starts, named, strict=True))
        made[each.path_id] = replace(each, instruction=text)
    return list(made.values())


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


def new_encoder(world, arguments, start=None):
    """A VLN-BERT.

    Args:
        world: From `read_world`.
        arguments: Command-line arguments.
        start: A model whose layers of the same names lend their weights: ViLBERT, or
            VLN-BERT after a previous stage. None starts from random weights.
    """
    sizes = sizes_of(
        arguments, world.tokenizer.vocabulary_size, world.paths.feature_dim
    )
    encoder = models.build_vln_bert(**sizes, max_path_length=MAX_PATH)
    if start is not None:
        lent = {layer.name: layer for layer in start.layers}
        for layer in encoder.layers:
            if layer.weights and layer.name in lent:
                layer.set_weights(lent[layer.name].get_weights())
    return encoder


def masking_of(tokenizer):
    """Masks words as BERT does."""
    pieces = list(tokenizer.pieces)
    return training.MaskedLMMasking(
        len(pieces),
        mask_token_id=pieces.index("[MASK]"),
        special_token_ids=[pieces.index(each) for each in SPECIAL],
    )


def masked_losses():
    """The losses of masked words and regions, for `compile`."""
    return {
        "masked_lm": keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        "masked_regions": losses.MaskedRegionLoss(),
    }


def fit(model, make_dataset, folder, *, epochs, rate, loss, metrics=None):
    """Trains a model, or resumes.

    Args:
        model: The model.
        make_dataset: From the variable of the epoch to a dataset.
        folder: For the backup.
        epochs: Passes over the data.
        rate: Peak learning rate.
        loss: As of `compile`.
        metrics: As of `compile`.
    """
    backup = training.BackupAndResume(folder / "backup", delete_checkpoint=False)
    dataset = make_dataset(backup.epoch)
    steps = epochs * len(dataset)
    schedule = training.CosineWarmup(rate, steps // 10 + 1, steps + 2)
    model.compile(
        training.AdamW(schedule, weight_decay=0.01, clipnorm=1.0),
        loss,
        metrics=metrics,
        jit_compile=False,
    )
    return model.fit(
        dataset, epochs=epochs, shuffle=False, verbose=2, callbacks=[backup]
    )
