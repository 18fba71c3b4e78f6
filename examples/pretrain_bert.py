"""A tiny BERT learns English by predicting masked words (Devlin et al. 2019).

    python examples/pretrain_bert.py captions.txt reviews.txt --run-dir runs/bert

Trains a vocabulary and the model, and writes a checkpoint in the Hugging Face layout,
which `classify_sst2.py` fine-tunes. Needs `pip install ".[text]"`. A run that was
killed resumes after its last complete epoch when it is started again, and ends with the
same weights as an uninterrupted one.

Results with --epochs 10 on the reviews of SST-2 and the English captions of Multi30k,
35,183 sentences, on one core of an Intel Xeon (AMX), while the other core trained
another model: 1,453,952 parameters, 1,958 s; on masked words of held-out sentences
perplexity 33.2 and accuracy 41.2 %. On both cores, less busy, an earlier version took
871 s.
"""

import gzip
import math
import time
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import keras
import tensorflow as tf

from keras_attn import models
from keras_attn.data import WordPieceTokenizer, shuffled_dataset
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import Perplexity
from keras_attn.training import (
    AdamW,
    BackupAndResume,
    LinearWarmup,
    MaskedLMMasking,
    mask_batches,
)


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/bert")
    parser.add_argument(
        "files", nargs="+", help="text files, one sentence per line, optionally .gz"
    )
    script_arguments.add_training_options(
        parser, epochs=20, batch_size=64, learning_rate=1e-3
    )
    parser.add_argument(
        "--max-length", type=int, default=48, help="tokens per sentence"
    )
    parser.add_argument("--variant", default="tiny", help="size of BERT, such as mini")
    parser.add_argument(
        "--vocabulary-size", type=int, default=8000, help="number of word pieces"
    )
    return parser.parse_args()


def read_lines(path):
    """The sentences of a file, without SST-2's labels before them."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line[2:] if line[:2] in ("0 ", "1 ") else line for line in lines if line]


def batches(texts, tokenizer, arguments, epoch=None):
    """Batches of sentences, padded to the longest; shuffled if `epoch` is given."""
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    if epoch is not None:
        dataset = shuffled_dataset(texts, seed=arguments.seed, epoch=epoch)
    dataset = dataset.batch(arguments.batch_size)
    return dataset.map(
        lambda batch: tokenizer.pack(batch, max_length=arguments.max_length),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def main():
    """Trains a vocabulary, then the model."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    folder = arguments.run_dir
    for path in arguments.files:
        if not Path(path).is_file():
            raise SystemExit(f"error: {path} is not a file")
    texts = sorted({line for path in arguments.files for line in read_lines(path)})
    held_out = texts[::50]
    texts = [text for index, text in enumerate(texts) if index % 50]
    tokenizer = WordPieceTokenizer.train(
        texts, vocabulary_size=arguments.vocabulary_size
    )
    tokenizer.save(folder)

    encoder = models.build_bert(
        arguments.variant,
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=128,
    )
    model = models.build_bert_masked_lm(encoder, masked_positions=True)
    masking = MaskedLMMasking(
        tokenizer.vocabulary_size,
        tokenizer.mask_token_id,
        special_token_ids=sorted(tokenizer.special_token_ids.values()),
        max_predictions=8,
    )
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    train = mask_batches(
        batches(texts, tokenizer, arguments, backup.epoch),
        masking,
        seed=arguments.seed,
        epoch=backup.epoch,
    )
    validation = mask_batches(
        batches(held_out, tokenizer, arguments),
        masking,
        seed=arguments.seed,
        same_each_epoch=True,
    )
    steps = arguments.epochs * math.ceil(len(texts) / arguments.batch_size)
    model.compile(
        AdamW(
            LinearWarmup(arguments.learning_rate, steps // 10, steps),
            weight_decay=0.01,
            global_clipnorm=1.0,
        ),
        SmoothedCrossEntropy(),
        weighted_metrics=[Perplexity(), "accuracy"],
    )
    watch = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
    fit_options = {"epochs": arguments.epochs, "callbacks": [watch, backup]}
    start = time.perf_counter()
    model.fit(train, validation_data=validation, shuffle=False, **fit_options)
    models.save_checkpoint(models.build_bert_masked_lm(encoder), folder)
    backup.delete()
    print(
        f"{encoder.count_params():,} parameters, {len(texts):,} sentences, "
        f"{time.perf_counter() - start:.0f} s; {folder}"
    )


if __name__ == "__main__":
    main()
