"""BERT learns the sentiment of film reviews, SST-2 (Socher et al. 2013).

    python examples/classify_sst2.py runs/bert                  from a checkpoint
    python examples/classify_sst2.py runs/bert --from-scratch   same model, new weights

The folder holds a checkpoint in the Hugging Face layout with its vocabulary: the output
of `pretrain_bert.py`, or a downloaded one. Needs `pip install ".[text]"`.

Results on 872 held-out reviews; the first row on 2 CPU cores with light other work, the
others on one core of an Intel Xeon (AMX), while the other core trained another model:

    all-MiniLM-L6-v2, --epochs 2                     87.8 %    365 s   22.7 M parameters
    runs/bert, --epochs 4 --learning-rate 2e-4       78.0 %    174 s    1.5 M
    the same --from-scratch                          78.8 %    217 s
    --limit 500 --epochs 20 --learning-rate 2e-4     62.4, 57.6, 60.4 % (seeds 0, 1, 2)
    the same --from-scratch                          64.4, 66.1, 65.6 %

So half an hour of pre-training by `pretrain_bert.py`, mostly on captions, does not help
a tiny BERT classify sentiment, and with 500 labels it hurts; a model that was
pre-trained on far more text is ten points better.
"""

import time

from keras_attn import script_arguments  # isort: split

import keras
import tensorflow as tf

from keras_attn import models
from keras_attn.data import load_text_tokenizer, read_sst2
from keras_attn.training import AdamW, LinearWarmup


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__)
    parser.add_argument("checkpoint", help="folder of the encoder and its vocabulary")
    parser.add_argument(
        "--from-scratch", action="store_true", help="use new random weights"
    )
    parser.add_argument(
        "--data-dir", help="folder of SST-2; if omitted, sst2/ in $KERAS_ATTN_DATA"
    )
    script_arguments.add_training_options(
        parser, epochs=3, batch_size=32, learning_rate=5e-5
    )
    parser.add_argument("--max-length", type=int, default=64, help="tokens per review")
    parser.add_argument("--limit", type=int, help="number of training reviews")
    parser.add_argument("--save", help="folder for the fine-tuned checkpoint")
    return parser.parse_args()


def load_reviews(arguments, split):
    """Texts and labels, 1 = positive."""
    texts, labels = read_sst2(
        arguments.data_dir or script_arguments.data_folder("sst2"), split
    )
    count = arguments.limit if split == "train" else None
    return texts[:count], labels[:count]


def main():
    """Fine-tunes, and prints the accuracy on held-out reviews."""
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
    start = time.perf_counter()
    model.fit(train, validation_data=validation, epochs=arguments.epochs, shuffle=False)
    seconds = time.perf_counter() - start
    _, accuracy = model.evaluate(validation, verbose=0)
    print(
        f"{model.count_params():,} parameters, {seconds:.0f} s: "
        f"{accuracy:.1%} of the held-out reviews classified correctly"
    )
    if arguments.save:
        models.save_checkpoint(model, arguments.save)
        tokenizer.save(arguments.save)


if __name__ == "__main__":
    main()
