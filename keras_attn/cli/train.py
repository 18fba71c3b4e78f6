"""What `keras-attn train` does: from two text files to a translator in a folder."""

import hashlib
import random
import shlex
from pathlib import Path

import keras

from keras_attn import models
from keras_attn.cli.runs import claim, is_interrupted, is_trained
from keras_attn.cli.terminal import fit_verbosity, in_parts, say
from keras_attn.data import CharacterTokenizer, SubwordTokenizer, read_parallel
from keras_attn.training import bleu, exact_match, fit_translator
from keras_attn.translator import Translator

Pairs = tuple[list[str], list[str]]

_SCORES = {"bleu": bleu, "exact_match": exact_match}
_MAX_LENGTHS = {"subword": 50, "character": 200}
_NUM_SHOWN = 3


def train(
    *,
    source: Path,
    target: Path,
    validation_source: Path | None,
    validation_target: Path | None,
    validation_fraction: float,
    model: str,
    tokenizer: str,
    vocabulary_size: int,
    max_length: int | None,
    hidden_dim: int,
    embedding_dim: int,
    dropout: float,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    score: str,
    run_dir: Path,
    seed: int,
) -> None:
    """Trains a translator, or goes on with it; the arguments are the options."""
    if models.describe(model).family not in ("seq2seq", "rnnsearch"):
        raise ValueError(f"--model must be a translator. Received: {model!r}")
    # A package that is missing is better missed now than after the first epoch.
    _SCORES[score](["a"], ["a"])
    training = _without_blanks(read_parallel(source, target))
    if validation_source is not None and validation_target is not None:
        validation = _without_blanks(
            read_parallel(validation_source, validation_target)
        )
    else:
        training, validation = _hold_out(training, validation_fraction, seed)
    max_length = max_length or _MAX_LENGTHS[tokenizer]
    claim(
        run_dir,
        {
            "command": "train",
            "texts": _digest(training, validation),
            "model": model,
            "tokenizer": tokenizer,
            "vocabulary_size": vocabulary_size,
            "max_length": max_length,
            "hidden_dim": hidden_dim,
            "embedding_dim": embedding_dim,
            "dropout": dropout,
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "seed": seed,
        },
    )
    keras.utils.set_random_seed(seed)
    if (run_dir / "translator.json").is_file():
        translator = Translator.load(run_dir)
    else:
        tokenizers = [_tokenizer(tokenizer, side, vocabulary_size) for side in training]
        sizes = {"hidden_dim": hidden_dim, "embedding_dim": embedding_dim}
        network = models.create(
            model,
            source_vocabulary_size=tokenizers[0].vocabulary_size,
            target_vocabulary_size=tokenizers[1].vocabulary_size,
            dropout=dropout,
            **sizes,
            **_widths(model, hidden_dim),
        )
        translator = Translator(network, *tokenizers, max_length=max_length)
    say(_summary(model, translator, training, validation))
    if is_trained(run_dir):
        say(f"{run_dir} is trained already.")
    else:
        if is_interrupted(run_dir):
            say(f"Going on with the interrupted run in {run_dir}.")
        fit_translator(
            translator,
            training,
            validation,
            run_dir,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            score=_SCORES[score],
            score_name=score,
            seed=seed,
            verbose=fit_verbosity(),
        )
    _report(translator, validation, score)
    _next_commands(model, validation[0][0], run_dir)


def _without_blanks(pairs: Pairs) -> Pairs:
    """The pairs of which both sides say something."""
    kept = [pair for pair in zip(*pairs, strict=True) if all(pair)]
    if len(kept) < len(pairs[0]):
        say(f"Pairs left out for an empty side: {len(pairs[0]) - len(kept):,}")
    return [source for source, _ in kept], [target for _, target in kept]


def _hold_out(pairs: Pairs, fraction: float, seed: int) -> tuple[Pairs, Pairs]:
    """Splits pairs at random into those to train on and those to score on."""
    total = len(pairs[0])
    if total < 2:
        raise ValueError(
            "--source and --target must have at least two pairs, one to train on and "
            f"one to score on. Received: {total}"
        )
    count = max(1, round(fraction * total))
    held_out = frozenset(random.Random(seed).sample(range(total), count))

    def chosen(wanted: bool) -> Pairs:
        rows = [index for index in range(total) if (index in held_out) == wanted]
        return [pairs[0][row] for row in rows], [pairs[1][row] for row in rows]

    return chosen(False), chosen(True)


def _digest(*pairs: Pairs) -> str:
    """A short fingerprint of all texts in their order."""
    lines = [line for sides in pairs for side in sides for line in (*side, "")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _tokenizer(kind: str, texts: list[str], vocabulary_size: int):
    if kind == "character":
        return CharacterTokenizer.train(texts)
    return SubwordTokenizer.train(texts, vocabulary_size=vocabulary_size)


def _widths(model: str, hidden_dim: int) -> dict[str, int]:
    """The sizes that go with `hidden_dim`, in the proportions of the papers."""
    widths = {}
    if model != "seq2seq_sutskever":
        widths["maxout_dim"] = hidden_dim // 2
    if _has_attention(model):
        widths["attention_dim"] = hidden_dim
    return widths


def _has_attention(model: str) -> bool:
    return model.startswith("rnnsearch")


def _summary(
    name: str, translator: Translator, training: Pairs, validation: Pairs
) -> str:
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    cut = sum(
        any(
            len(tokenizer.encode(text)) > translator.max_length
            for tokenizer, text in zip(tokenizers, pair, strict=True)
        )
        for pair in zip(*training, strict=True)
    )
    lines = [
        f"{name}: {translator.model.count_params():,} parameters",
        f"{len(training[0]):,} pairs to train on, {len(validation[0]):,} held out; "
        f"{tokenizers[0].vocabulary_size:,} source tokens, "
        f"{tokenizers[1].vocabulary_size:,} target tokens",
    ]
    if cut:
        lines.append(
            f"Cut at {translator.max_length} tokens: {cut:,} pairs (see --max-length)"
        )
    return "\n".join(lines)


def _report(translator: Translator, validation: Pairs, score: str) -> None:
    """Translates all that was held out; prints the score and the first of it."""
    sources, references = validation
    translations = []
    for part in in_parts(sources, 256, "Translating what was held out"):
        translations += translator.translate(part)
    value = _SCORES[score](translations, references)
    text = f"BLEU {value:.2f}" if score == "bleu" else f"exact match {value:.1%}"
    say(f"\n{text} on {len(sources):,} held-out pairs, translated greedily", "bold")
    shown = zip(sources, references, translations, strict=True)
    for source, reference, translation in list(shown)[:_NUM_SHOWN]:
        say(f"\n  source     {source}")
        say(f"  reference  {reference}")
        say(f"  model      {translation}")


def _next_commands(model: str, text: str, run_dir: Path) -> None:
    folder = shlex.quote(str(run_dir))
    logs = shlex.quote(str(run_dir / "logs"))
    artefact = shlex.quote(f"{run_dir.resolve().name}.tflite")
    say(f"\nIn {run_dir}: the translator, history.csv, logs/. What to do with it:")
    say(f"  tensorboard --logdir {logs}")
    if _has_attention(model):
        say(f"  keras-attn attention {folder} {shlex.quote(text)}")
    say(f"  keras-attn export {folder} {artefact}")
