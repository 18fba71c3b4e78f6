"""Fitting a translator: the run folder, what is watched, and going on after a kill."""

import csv
import functools
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from keras_attn.data import parallel_dataset
from keras_attn.file_writing import write_atomically
from keras_attn.layers.recorder import record_attention_scores
from keras_attn.training.backup import BackupAndResume
from keras_attn.training.losses import SmoothedCrossEntropy, smoothed_cross_entropy
from keras_attn.training.schedules import CosineWarmup
from keras_attn.training.scores import exact_match
from keras_attn.translator import Translator
from keras_attn.viz.callbacks import AttentionMaps


class TranslationScore(keras.callbacks.Callback):
    """Translates held-out texts after each epoch, and logs how well.

    The score joins the logs of the epoch, and so whatever callback comes behind this
    one, and goes to TensorBoard with a few of the translations themselves.

    Args:
        translator: Holds the model that is being fitted.
        sources: Held-out texts.
        references: Their translations.
        score: From translations and references to a number.
        name: Of the score in the logs.
        log_dir: Folder of the TensorBoard event file.
        num_shown: Translations to log as text.
    """

    def __init__(
        self,
        translator: Translator,
        sources: Sequence[str],
        references: Sequence[str],
        *,
        score: Callable[[Sequence[str], Sequence[str]], float],
        name: str,
        log_dir: str | os.PathLike,
        num_shown: int = 8,
    ):
        super().__init__()
        self.translator = translator
        self.sources = list(sources)
        self.references = list(references)
        self.score = score
        self.name = name
        self.log_dir = os.fspath(log_dir)
        self.num_shown = num_shown

    def on_epoch_end(self, epoch, logs=None):
        """Translates, scores and logs."""
        translations = self.translator.translate(self.sources)
        value = self.score(translations, self.references)
        if logs is not None:
            logs[self.name] = value
        rows = [["source", "reference", "translation"]]
        rows += list(zip(self.sources, self.references, translations, strict=True))[
            : self.num_shown
        ]
        writer = tf.summary.create_file_writer(self.log_dir)
        with writer.as_default(step=epoch):
            tf.summary.scalar(self.name, value)
            tf.summary.text("translations", tf.constant(rows))
        writer.close()


def fit_translator(
    translator: Translator,
    train: tuple[Sequence[str], Sequence[str]],
    validation: tuple[Sequence[str], Sequence[str]],
    run_dir: str | os.PathLike,
    *,
    epochs: int,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    warmup_steps: int = 0,
    label_smoothing: float = 0.0,
    score: Callable[[Sequence[str], Sequence[str]], float] = exact_match,
    score_name: str = "exact_match",
    num_scored: int = 200,
    num_drawn: int = 3,
    seed: int = 0,
    verbose: str | int = "auto",
) -> keras.callbacks.History:
    """Fits a translator by teacher forcing, in a folder that tells how it went.

    Adam with gradients clipped to norm 1 on the mean cross-entropy of the target tokens
    of a batch, padding left out. The `loss` and `val_loss` of an epoch are means over
    all its target tokens, in nats a token. The run folder gets, besides the translator
    itself after every epoch: `history.csv`, a line an epoch; `logs/`, for TensorBoard,
    with curves, scores, translations and alignment pictures; and, until the run is
    complete, `backup/`: a run that was killed and is started again resumes after its
    last whole epoch, and ends with the losses of one that was never stopped.

    Args:
        translator: Its model is fitted.
        train: Sources and targets.
        validation: Held-out sources and targets.
        run_dir: Made if it is missing.
        epochs: Passes over the training pairs.
        batch_size: Pairs a step.
        learning_rate: Of Adam, falling to zero along a cosine.
        warmup_steps: Updates on a straight line up to it, before it falls.
        label_smoothing: Share of a target's probability that goes to all others.
        score: What held-out translations are judged by.
        score_name: Its name in the logs.
        num_scored: Validation texts translated after each epoch.
        num_drawn: Validation texts whose alignment is drawn, if the model has one.
        seed: Of the order of the pairs; `keras.utils.set_random_seed` sets the rest.
        verbose: Of `model.fit`: a progress bar by default.

    Returns:
        The Keras `History` of all epochs, those before a kill among them.

    Raises:
        ValueError: for a `backup/` that is damaged or of another model.
    """
    run_dir = Path(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    logs = run_dir / "logs"
    max_length = translator.max_length
    batches = functools.partial(
        parallel_dataset,
        source_tokenizer=translator.source_tokenizer,
        target_tokenizer=translator.target_tokenizer,
        batch_size=batch_size,
        max_length=max_length,
        # Texts of like length together: what is padded is computed for nothing.
        bucket_boundaries=[n for n in (9, 17, 25, 33, 49, 65) if n < max_length],
    )
    backup = BackupAndResume(run_dir / "backup", delete_checkpoint=False)
    train_batches = batches(*train, shuffle_seed=seed, epoch=backup.epoch)
    model = translator.model
    steps = epochs * int(train_batches.cardinality())
    model.compile(
        keras.optimizers.Adam(
            CosineWarmup(learning_rate, warmup_steps, steps),
            global_clipnorm=1.0,
        ),
        SmoothedCrossEntropy(label_smoothing),
        weighted_metrics=[_loss_per_token(label_smoothing), "accuracy"],
        # Each new shape of a batch would be compiled anew. On a busy 2-core CPU a step
        # took 115 ms either way at 128 units, and 0.58 s against 0.80 s at 384, after
        # some 25 s of compiling: not worth it for the many shapes of short runs.
        jit_compile=bool(tf.config.list_logical_devices("GPU")),
    )
    sources, references = validation
    callbacks = [
        TranslationScore(
            translator,
            sources[:num_scored],
            references[:num_scored],
            score=score,
            name=score_name,
            log_dir=logs / "validation",
        ),
        *_alignment_maps(
            translator, sources, references, num_drawn, logs / "validation"
        ),
        keras.callbacks.TensorBoard(logs, write_graph=False),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: _log_epoch(
                run_dir / "history.csv", epoch, logs
            )
        ),
        # After whatever else an epoch leaves, so that a kill loses none of it.
        backup,
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: translator.save(run_dir)
        ),
    ]
    history = model.fit(
        train_batches,
        validation_data=batches(*validation),
        epochs=epochs,
        shuffle=False,
        callbacks=callbacks,
        verbose=verbose,
    )
    # A run killed between its last backup and its last save has no epoch to go.
    translator.save(run_dir)
    backup.delete()
    return history


def _loss_per_token(label_smoothing):
    """The cross-entropy of an epoch, in which each target token counts once.

    Keras' own mean of the loss counts each batch by its rows, however many tokens they
    have. This metric is logged instead, since it has the same name.
    """
    return keras.metrics.MeanMetricWrapper(
        smoothed_cross_entropy,
        name="loss",
        dtype="float32",
        label_smoothing=label_smoothing,
    )


def _log_epoch(path, epoch, logs):
    """Writes the line of an epoch; one that is fitted again replaces its line."""
    rows = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if int(row["epoch"]) < epoch]
    columns = ["epoch", *sorted(logs)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows([*rows, {"epoch": epoch, **logs}])
    write_atomically(path, text.getvalue().encode())


def _alignment_maps(translator, sources, references, count, log_dir):
    """Pictures of the first `count` validation pairs, padded to one batch.

    None for a model that has no alignment: a list of one callback, or of none.
    """
    examples = [
        translator.example(source, reference)
        for source, reference in zip(sources[:count], references[:count], strict=True)
    ]
    if not examples:
        return []
    inputs = {}
    for name in examples[0][0]:
        rows = [example[0][name][0] for example in examples]
        width = max(map(len, rows))
        inputs[name] = tf.stack([tf.pad(row, [[0, width - len(row)]]) for row in rows])
    with record_attention_scores() as recorded:
        translator.model(inputs, training=False)
    # A fixed context is a memory of one place, however long the source.
    width = inputs["token_ids"].shape[-1]
    if all(scores.shape[-1] != width for scores in recorded.values()):
        return []
    maps = AttentionMaps(
        log_dir,
        inputs,
        source_tokens=[example[1] for example in examples],
        target_tokens=[example[2] for example in examples],
        max_examples=count,
    )
    return [maps]
