"""VLN-BERT, stage 3: masked words and masked regions of instructions and their paths.

    python examples/vln_bert_paths.py --world ways
    python examples/vln_bert_paths.py --world pictures

The model sees an instruction and the regions along the true path, predicts the words
and the classes of regions that are masked, and does not rank yet. `vln_bert_rank.py`
does the same for each of its models, then ranks.
"""

import time

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
from options import add_training_options, new_parser, parse_with_smoke
from shape_regions import TINY_DETECTOR
from vln_bert_worlds import (
    MAX_TOKENS,
    add_world_options,
    fit,
    masked_losses,
    masking_of,
    new_encoder,
    read_world,
)

from keras_attn import data, models, training


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/vln-bert/paths")
    add_world_options(parser)
    add_training_options(parser, epochs=2, batch_size=32, learning_rate=1e-3)
    tiny = {"epochs": 1, "batch_size": 2, "width": 8, "layers": 1}
    return parse_with_smoke(parser, **tiny, min_count=1, **TINY_DETECTOR)


def masked_batches(world, split, batch_size, seed, epoch, same_each_epoch=False):
    """Batches of instructions and true paths, with masked words and regions."""
    batches = data.path_pair_dataset(
        split,
        world.paths,
        world.tokenizer,
        batch_size=batch_size,
        max_length=MAX_TOKENS,
        seed=seed,
        shuffle=True,
        epoch=epoch,
    )
    batches = training.mask_pairs(
        batches,
        masking_of(world.tokenizer),
        seed=seed,
        epoch=epoch,
        same_each_epoch=same_each_epoch,
        mismatch_rate=0.0,  # All instructions belong to their paths.
    )

    def without_alignment(inputs, labels, weights):
        names = ("masked_lm", "masked_regions")
        parts = labels, weights
        return inputs, *({name: part[name] for name in names} for part in parts)

    return batches.map(without_alignment).prefetch(2)


def train_masked(encoder, world, train, arguments, seed, folder, epochs):
    """Stage 3: trains the encoder; its masked heads are left behind.

    Returns:
        The pre-trainer.
    """
    keras.utils.set_random_seed(seed)
    model = models.build_vln_bert_pretrainer(
        encoder, num_region_classes=world.paths.num_classes
    )
    # The score has no loss yet.
    outputs = {name: model.output[name] for name in ("masked_lm", "masked_regions")}
    model = keras.Model(model.input, outputs)
    fit(
        model,
        lambda epoch: masked_batches(world, train, arguments.batch_size, seed, epoch),
        folder,
        epochs=epochs,
        rate=arguments.learning_rate,
        loss=masked_losses(),
    )
    return model


def main():
    """Trains one model, and evaluates it on both validation splits."""
    arguments = parse_arguments()
    world = read_world(arguments)
    keras.utils.set_random_seed(arguments.seed)
    encoder = new_encoder(world, arguments)
    began = time.process_time()
    model = train_masked(
        encoder,
        world,
        world.train,
        arguments,
        arguments.seed,
        arguments.run_dir,
        arguments.epochs,
    )
    print(f"{time.process_time() - began:.0f} seconds of CPU time")
    for name, test in world.tests.items():
        losses = model.evaluate(
            masked_batches(world, test, arguments.batch_size, 0, 0, True),
            return_dict=True,
            verbose=0,
        )
        shown = ", ".join(f"{key} {value:.3f}" for key, value in losses.items())
        print(f"{name} buildings: {shown}")
    model.save_weights(arguments.run_dir / "paths.weights.h5")


if __name__ == "__main__":
    main()
