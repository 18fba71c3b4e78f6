"""A tiny BERT learns English by filling in masked words (Devlin et al. 2019).

    python examples/pretrain_bert.py captions.txt reviews.txt --folder runs/bert

Makes a vocabulary, trains, and writes a checkpoint in the Hugging Face layout, which
`classify_sst2.py` goes on from. Needs `pip install ".[text]"`. A run that is killed
and is started again resumes after its last whole epoch, and ends as if never stopped.

With --epochs 10 on the reviews of SST-2 and the English captions of Multi30k, 35,183
sentences, on one core of an Intel Xeon (AMX), another training on the other core:
1,453,952 parameters, 1,958 s; held-out perplexity 33.2 of the masked words, 41.2 % of
them right. On both cores, in a quieter hour, an earlier version took 871 s.
"""

import argparse
import gzip
import math
import time
from pathlib import Path

import cpu_settings  # noqa: F401
import keras
import tensorflow as tf

from keras_attn import models
from keras_attn.data import WordPieceTokenizer, shuffled_dataset
from keras_attn.training import (
    AdamW,
    BackupAndResume,
    LinearWarmup,
    MaskedLMMasking,
    Perplexity,
    SmoothedCrossEntropy,
    mask_batches,
)


def parse_arguments():
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("files", nargs="+", help="texts, a sentence a line, .gz or not")
    parser.add_argument("--folder", default="runs/bert", help="of the checkpoint")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the texts")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences a step")
    parser.add_argument("--max-length", type=int, default=48, help="tokens a sentence")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at its peak")
    parser.add_argument("--variant", default="tiny", help="of BERT, such as mini")
    parser.add_argument("--vocabulary-size", type=int, default=8000, help="pieces")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    return parser.parse_args()


def read_lines(path):
    """The sentences of a file, without the label that SST-2 has in front."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line[2:] if line[:2] in ("0 ", "1 ") else line for line in lines if line]


def batches(texts, tokenizer, arguments, epoch=None):
    """Batches of packed sentences, each padded to its longest; shuffled by epochs."""
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    if epoch is not None:
        dataset = shuffled_dataset(texts, seed=arguments.seed, epoch=epoch)
    dataset = dataset.batch(arguments.batch_size)
    return dataset.map(
        lambda batch: tokenizer.pack(batch, max_length=arguments.max_length),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def main():
    """Learns a vocabulary, then the language."""
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    folder = Path(arguments.folder)
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
    began = time.perf_counter()
    model.fit(
        train,
        validation_data=validation,
        epochs=arguments.epochs,
        shuffle=False,
        callbacks=[
            keras.callbacks.TensorBoard(folder / "logs", write_graph=False),
            backup,
        ],
    )
    models.save_checkpoint(models.build_bert_masked_lm(encoder), folder)
    backup.delete()
    print(
        f"{encoder.count_params():,} parameters, {len(texts):,} sentences, "
        f"{time.perf_counter() - began:.0f} s; {folder}"
    )


if __name__ == "__main__":
    main()
