"""`keras-attn train`: from two text files to a translator in a folder.

`console.main` starts `cli/app.py`, which calls `train` here. The options are in
`cli/train_settings.py`, the training loop is `translator/training.py`, the run folder
`cli/runs.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from keras_attn.cli.options import with_options
from keras_attn.cli.processes import ProcessOptions, train_in_processes
from keras_attn.cli.runs import claim, is_interrupted, is_trained
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import fit_verbosity, in_parts, say
from keras_attn.cli.train_settings import Settings, builder_arguments

if TYPE_CHECKING:
    import keras

    from keras_attn.translator import Translator

Pairs = tuple[list[str], list[str]]

_NUM_EXAMPLES = 3


@with_options
def train(
    context: typer.Context, settings: Settings, processes: ProcessOptions
) -> None:
    """Train a translator on line-aligned text.

    Writes a folder that `generate`, `attention` and `export` take. Run the same
    command again to resume an interrupted run from its last complete epoch.

    Example: keras-attn train --source train.en --target train.de --run-dir
    runs/en-de

    Example: keras-attn train --source train.en --target train.de --processes 4
    """
    train_in_processes(
        partial(_train, settings),
        processes,
        line=context.obj,
        batch_size=settings.batch_size,
    )


def _train(settings: Settings) -> None:
    if (settings.validation_source is None) != (settings.validation_target is None):
        raise typer.BadParameter(
            "--validation-source and --validation-target must be given together."
        )
    with importing_tensorflow():
        import keras

        from keras_attn import models
        from keras_attn.cli.finetuning.splits import repeated_rows
        from keras_attn.models.parts.keras_state import undone, without_allocating
        from keras_attn.translator import Translator, fit_translator

    if not _is_trainable(settings.model):
        names = ", ".join(filter(_is_trainable, models.list_models()))
        raise ValueError(
            f"--model must be one of {names}. Received: {settings.model!r}"
        )
    # Refuses sizes that do not fit together before they are a run's settings.
    with undone(), without_allocating():
        _build(settings, settings.vocabulary_size)
    score = _score_function(settings.score)
    score(["a"], ["a"])  # Fails now if a package is missing, not after an epoch.
    training, validation = _read_texts(settings)
    warmup_steps = settings.warmup(len(training[0]))
    run_dir = settings.run_dir
    # Writes these settings, or refuses a folder whose run has different ones.
    texts = _digest(training, validation)
    claim(run_dir, {"command": "train", "texts": texts, **settings.identity()})
    keras.utils.set_random_seed(settings.seed)
    if (run_dir / "translator.json").is_file():
        translator = Translator.load(run_dir)
    else:
        translator = _new_translator(settings, training)
    say(_summary(settings.model, translator, training, validation))
    ours, theirs = (list(zip(*each, strict=True)) for each in (training, validation))
    for note in repeated_rows(ours, theirs, "pairs"):
        say(note, "yellow")
    if is_trained(run_dir):
        say(f"The run in {run_dir} is already trained.")
    else:
        if is_interrupted(run_dir):
            say(f"Resuming the interrupted run in {run_dir}.")
        fit_translator(
            translator,
            training,
            validation,
            run_dir,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            warmup_steps=warmup_steps,
            label_smoothing=settings.label_smoothing or 0.0,
            score=score,
            score_name=settings.score,
            seed=settings.seed,
            verbose=fit_verbosity(),
        )
    _report(translator, validation, settings.score)
    _suggest_commands(settings.model, validation[0][0], run_dir)


def _score_function(name: str) -> Callable[[Sequence[str], Sequence[str]], float]:
    from keras_attn import metrics

    return {"bleu": metrics.bleu, "exact_match": metrics.exact_match}[name]


def _read_texts(settings: Settings) -> tuple[Pairs, Pairs]:
    """The pairs to train on and those to validate on."""
    training = _read_pairs(settings.source, settings.target)
    if settings.validation_source is None or settings.validation_target is None:
        return _hold_out(training, settings.validation_fraction, settings.seed)
    return training, _read_pairs(settings.validation_source, settings.validation_target)


def _read_pairs(source: Path, target: Path) -> Pairs:
    """Reads two line-aligned files, skipping pairs with an empty side."""
    from keras_attn.data import read_parallel

    pairs = read_parallel(source, target)
    kept = [pair for pair in zip(*pairs, strict=True) if all(pair)]
    if len(kept) < len(pairs[0]):
        say(f"Pairs left out because a side is empty: {len(pairs[0]) - len(kept):,}")
    return [source for source, _ in kept], [target for _, target in kept]


def _hold_out(pairs: Pairs, fraction: float, seed: int) -> tuple[Pairs, Pairs]:
    """Splits pairs at random into a training set and a validation set."""
    import random

    total = len(pairs[0])
    if total < 2:
        raise ValueError(
            "--source and --target must have at least two pairs, one to train on and "
            f"one to score on. Received: {total}"
        )
    count = max(1, round(fraction * total))
    held_out = frozenset(random.Random(seed).sample(range(total), count))

    def subset(is_held_out: bool) -> Pairs:
        rows = [row for row in range(total) if (row in held_out) == is_held_out]
        return [pairs[0][row] for row in rows], [pairs[1][row] for row in rows]

    return subset(False), subset(True)


def _digest(*pairs: Pairs) -> str:
    """A short hash of all texts in their order."""
    import hashlib

    lines = [line for sides in pairs for side in sides for line in (*side, "")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _new_translator(settings: Settings, training: Pairs) -> "Translator":
    """A translator with random weights, and tokenizers of the texts."""
    from keras_attn.translator import Translator

    sides: Sequence[list[str]] = training
    if "vocabulary_size" in builder_arguments(settings.model):
        # One vocabulary for both languages.
        sides = [[text for side in training for text in side]]
    tokenizers = [
        _train_tokenizer(settings.tokenizer, side, settings.vocabulary_size)
        for side in sides
    ]
    network = _build(settings, *(each.vocabulary_size for each in tokenizers))
    source, target = tokenizers[0], tokenizers[-1]
    return Translator(network, source, target, max_length=settings.tokens)


def _build(settings: Settings, *vocabulary_sizes: int) -> "keras.Model":
    """The network with random weights; one vocabulary size, or one for each side."""
    from keras_attn import models

    arguments = builder_arguments(settings.model)
    sizes = {"vocabulary_size": vocabulary_sizes[0]}
    if "vocabulary_size" not in arguments:
        sizes = {
            "source_vocabulary_size": vocabulary_sizes[0],
            "target_vocabulary_size": vocabulary_sizes[-1],
        }
    # Sizes that follow from `hidden_dim`, in the proportions of the papers.
    hidden_dim = settings.hidden_dim
    usual = {"maxout_dim": hidden_dim // 2, "attention_dim": hidden_dim}
    sizes |= {name: size for name, size in usual.items() if name in arguments}
    return models.create(
        settings.model,
        hidden_dim=hidden_dim,
        dropout=settings.dropout,
        **sizes,
        **settings.own_sizes,
    )


def _train_tokenizer(kind: str, texts: list[str], vocabulary_size: int):
    from keras_attn.data import CharacterTokenizer, SubwordTokenizer

    if kind == "character":
        return CharacterTokenizer.train(texts)
    return SubwordTokenizer.train(texts, vocabulary_size=vocabulary_size)


def _is_trainable(model: str) -> bool:
    """Whether the model translates."""
    from keras_attn.models.catalog.registry import entry

    return entry(model).card.task == "translation"


def _summary(
    name: str, translator: "Translator", training: Pairs, validation: Pairs
) -> str:
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    limits = (translator.max_length, translator.max_length - 1)  # A target has an end.
    cut = sum(
        any(
            len(tokenizer.encode(text)) > limit
            for tokenizer, text, limit in zip(tokenizers, pair, limits, strict=True)
        )
        for pair in zip(*training, strict=True)
    )
    lines = [
        f"{name}: {translator.model.count_params():,} parameters, trained from random "
        "weights",
        f"{len(training[0]):,} pairs to train on, {len(validation[0]):,} held out; "
        f"{tokenizers[0].vocabulary_size:,} source tokens, "
        f"{tokenizers[1].vocabulary_size:,} target tokens",
    ]
    if cut:
        lines.append(
            f"Truncated at {translator.max_length} tokens: {cut:,} pairs "
            "(see --max-length)"
        )
    return "\n".join(lines)


def _report(translator: "Translator", validation: Pairs, score: str) -> None:
    """Translates the validation set; prints the score and the first translations."""
    sources, references = validation
    translations = []
    for part in in_parts(sources, 256, "Translating the validation set"):
        translations += translator.translate(part)
    value = _score_function(score)(translations, references)
    text = f"BLEU {value:.2f}" if score == "bleu" else f"exact match {value:.1%}"
    say(f"\n{text} on {len(sources):,} held-out pairs, translated greedily", "bold")
    examples = zip(sources, references, translations, strict=True)
    for source, reference, translation in list(examples)[:_NUM_EXAMPLES]:
        say(f"\n  source     {source}")
        say(f"  reference  {reference}")
        say(f"  model      {translation}")


def _suggest_commands(model: str, text: str, run_dir: Path) -> None:
    import shlex

    folder = shlex.quote(str(run_dir))
    logs = shlex.quote(str(run_dir / "logs"))
    artefact = shlex.quote(f"{run_dir.resolve().name}.tflite")
    say(f"\nIn {run_dir}: the translator, history.csv, logs/. Next steps:")
    say(f"  tensorboard --logdir {logs}")
    if {"return_attention_scores", "num_heads"} & set(builder_arguments(model)):
        say(f"  keras-attn attention {folder} {shlex.quote(text)}")
    say(f"  keras-attn generate --model {folder} --prompt {shlex.quote(text)}")
    say(f"  keras-attn export {folder} {artefact}")
