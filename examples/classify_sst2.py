"""BERT learns to tell praise from blame in film reviews (Socher et al. 2013).

    python examples/classify_sst2.py runs/bert                  from a checkpoint
    python examples/classify_sst2.py runs/bert --from-scratch   same model, new weights

The folder holds a checkpoint in the Hugging Face layout with its vocabulary: what
`pretrain_bert.py` wrote, or a downloaded one. Needs `pip install ".[text]"`.

On 872 held-out reviews; the first row on 2 CPU cores with light other work beside it,
the others on one core of an Intel Xeon (AMX), another training on the other core:

    all-MiniLM-L6-v2, --epochs 2                     87.8 %    365 s   22.7 M parameters
    runs/bert, --epochs 4 --learning-rate 2e-4       78.0 %    174 s    1.5 M
    the same --from-scratch                          78.8 %    217 s
    --limit 500 --epochs 20 --learning-rate 2e-4     62.4, 57.6, 60.4 % (seeds 0, 1, 2)
    the same --from-scratch                          64.4, 66.1, 65.6 %

So half an hour of masked words from `pretrain_bert.py`, most of them of captions, does
not help a tiny BERT to tell praise from blame, and with 500 labels it harms; a model
that was pre-trained on far more text is ten points better.
"""

import argparse
import os
import time
from pathlib import Path

import cpu_settings  # noqa: F401
import keras
import tensorflow as tf

from keras_attn import models
from keras_attn.data import load_text_tokenizer
from keras_attn.training import AdamW, LinearWarmup


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("checkpoint", help="folder of the encoder and its vocabulary")
    parser.add_argument(
        "--from-scratch", action="store_true", help="keep none of its weights"
    )
    parser.add_argument(
        "--data-dir", help="folder of SST-2; without it, sst2/ in $KERAS_ATTN_DATA"
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the reviews")
    parser.add_argument("--batch-size", type=int, default=32, help="reviews a step")
    parser.add_argument("--max-length", type=int, default=64, help="tokens a review")
    parser.add_argument("--learning-rate", type=float, default=5e-5, help="at its peak")
    parser.add_argument("--limit", type=int, help="labels to learn from, not all")
    parser.add_argument("--save", help="folder for the fine-tuned checkpoint")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    return parser.parse_args()


def load_reviews(arguments, split):
    """Texts and labels, 1 = praise, of lines such as "1 a stirring , funny film"."""
    folder = Path(os.environ.get("KERAS_ATTN_DATA", "."))
    folder = Path(arguments.data_dir or folder / "sst2")
    lines = (folder / f"stsa.binary.{split}").read_text(encoding="utf-8").splitlines()
    if split == "train":
        lines = lines[: arguments.limit]
    labels, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]


def main():
    """Fine-tunes, and says how many reviews it tells right."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    tokenizer = load_text_tokenizer(arguments.checkpoint)
    model = models.load_checkpoint(
        arguments.checkpoint, task="classifier", num_classes=2
    )
    if arguments.from_scratch:
        model = keras.models.clone_model(model)

    def batches(split, shuffle=False):
        texts, labels = load_reviews(arguments, split)
        dataset = tf.data.Dataset.from_tensor_slices((texts, labels))
        if shuffle:
            dataset = dataset.shuffle(len(texts), seed=arguments.seed)
        return dataset.batch(arguments.batch_size).map(
            lambda text, label: (
                tokenizer.pack(text, max_length=arguments.max_length),
                label,
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    train, validation = batches("train", shuffle=True), batches("dev")
    steps = arguments.epochs * int(train.cardinality())
    model.compile(
        AdamW(
            LinearWarmup(arguments.learning_rate, steps // 10, steps),
            weight_decay=0.01,
            global_clipnorm=1.0,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    began = time.perf_counter()
    model.fit(train, validation_data=validation, epochs=arguments.epochs, shuffle=False)
    seconds = time.perf_counter() - began
    _, accuracy = model.evaluate(validation, verbose=0)
    print(
        f"{model.count_params():,} parameters, {seconds:.0f} s: "
        f"{accuracy:.1%} of the held-out reviews are told right"
    )
    if arguments.save:
        models.save_checkpoint(model, arguments.save)
        tokenizer.save(arguments.save)


if __name__ == "__main__":
    main()
