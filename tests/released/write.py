"""Writes the files of this version that later versions must read.

    python tests/released/write.py

It is run once for each version, before its tag, and writes the archive of its name
beside this file: a model in each form in which the library saves one, and
`numbers.npz`, the inputs and what came out. `tests/test_released.py` reads the archives
of all versions. None is written again: a file that a user has does not change either.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

import keras_attn
from keras_attn import data, decoding, export, losses, models, training

HERE = Path(__file__).resolve().parent
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the film is not a good bad ##ly , .".split()
TEXTS = ["The film is good.", "Not a bad film, the film is badly good."]
LABELS = np.array([1, 0])
SIZES = {
    "num_layers": 1,
    "hidden_dim": 14,
    "num_heads": 2,
    "mlp_dim": 22,
    "max_sequence_length": 19,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
PROMPTS = {
    "token_ids": np.array([[5, 11, 2, 7], [0, 0, 13, 3]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [0, 0, 1, 1]], bool),
}
NEW_TOKENS = 6
SUFFIXES = ("", ".onnx", ".tflite")


def main():
    """Writes the archive, all of it or nothing."""
    target = HERE / f"{keras_attn.__version__}.zip"
    if target.exists():
        raise SystemExit(f"error: {target} is there already, and stays as it is")
    with tempfile.TemporaryDirectory(dir=HERE) as work:
        folder = Path(work) / "files"
        folder.mkdir()
        numbers = {**write_classifier(folder), **write_generator(folder)}
        np.savez(folder / "numbers.npz", **numbers)
        Path(shutil.make_archive(f"{work}/all", "zip", folder)).rename(target)


def write_classifier(folder):
    """A BERT after one update, as a `.keras` file, and as a checkpoint before it."""
    tokenizer = data.WordPieceTokenizer(WORDS)
    encoder = models.create("bert_tiny", vocabulary_size=len(WORDS), **SIZES)
    model = models.build_bert_classifier(encoder, num_classes=2, dropout=0.0)
    model.class_names = ["bad", "good"]
    draw_weights(model, seed=1)
    texts = tokenizer.encode_batch(TEXTS)
    numbers = {f"ids/{name}": np.asarray(array) for name, array in texts.items()}
    numbers |= {"texts": np.array(TEXTS), "labels": LABELS}
    numbers["checkpoint/classifier"] = model.predict_on_batch(texts)
    models.save_checkpoint(model, folder / "checkpoint")
    tokenizer.save(folder / "checkpoint")

    schedule = training.LinearWarmup(0.01, warmup_steps=1, total_steps=5)
    model.compile(training.AdamW(schedule), losses.SmoothedCrossEntropy(0.1))
    model.train_on_batch(texts, LABELS)
    model.save(folder / "classifier.keras")
    numbers["keras/classifier"] = model.predict_on_batch(texts)
    numbers["keras/loss"] = np.asarray(model.train_on_batch(texts, LABELS))
    numbers["keras/after"] = model.predict_on_batch(texts)
    return numbers


def write_generator(folder):
    """A GPT in each format, whose two signatures share what any other export has."""
    model = models.create("gpt2_small", vocabulary_size=17, **SIZES)
    draw_weights(model, seed=2)
    for suffix in SUFFIXES:
        export.export(model, folder / f"generator{suffix}")
    answer = decoding.generate(model, PROMPTS, NEW_TOKENS)
    prefill = model.incremental().prefill(PROMPTS)
    return {
        **{f"prompt/{name}": array for name, array in PROMPTS.items()},
        "generator/tokens": np.asarray(answer.token_ids),
        "generator/logits": np.asarray(prefill["logits"]),
    }


def draw_weights(model, seed):
    """Large ones: with the usual first weights all classes are nearly equal."""
    generator = np.random.default_rng(seed)
    model.set_weights([generator.normal(0, 0.5, w.shape) for w in model.get_weights()])


if __name__ == "__main__":
    main()
