"""The training loop of a translator: run folder, callbacks, resuming after a kill."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from keras_attn.data import parallel_dataset, split_batches, whole_batches
from keras_attn.distribution.processes import alone, event_writer, is_writer
from keras_attn.layers.recorder import record_attention_scores
from keras_attn.losses.cross_entropy import SmoothedCrossEntropy, smoothed_cross_entropy
from keras_attn.metrics.translation import exact_match
from keras_attn.training.backup import BackupAndResume
from keras_attn.training.history_file import HistoryFile
from keras_attn.training.schedules import CosineWarmup
from keras_attn.translator.translator import Translator
from keras_attn.viz.callbacks import AttentionMaps

Pairs = tuple[Sequence[str], Sequence[str]]  # Sources and targets.


def fit_translator(
    translator: Translator,
    train: Pairs,
    validation: Pairs,
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
    """Trains a translator with teacher forcing, and logs the run in a folder.

    The optimizer is Adam with gradients clipped to norm 1; the loss is the mean
    cross-entropy over the target tokens of a batch, without padding. The `loss` and
    `val_loss` of an epoch are means over all its target tokens, in nats per token.
    After every epoch the run folder gets the translator itself; `history.csv`, one row
    per epoch; and `logs/` for TensorBoard, with curves, scores, translations and
    alignments. Until the run is complete it also has `backup/`: a run that was killed
    and is started again resumes after its last complete epoch, and ends with the losses
    of an uninterrupted one.

    In several processes (`keras.distribution.DataParallel` on JAX, with
    `auto_shard_dataset=False`) each takes its rows of every batch, all validate, and
    the first one writes. Give them a run folder that all see.

    Args:
        translator: Translator whose model is trained.
        train: Sources and targets.
        validation: Held-out sources and targets.
        run_dir: Run folder; created if it is missing.
        epochs: Passes over the training pairs.
        batch_size: Pairs per step.
        learning_rate: Peak learning rate of Adam, which decays to zero along a cosine.
        warmup_steps: Updates of a linear warm-up to the peak.
        label_smoothing: Share of each target's probability that is spread over all
            classes.
        score: Function that scores held-out translations, given translations and
            references.
        score_name: Name of the score in the logs.
        num_scored: Number of validation texts translated after each epoch.
        num_drawn: Number of validation texts whose alignment is plotted, if the model
            has attention.
        seed: Seed of the order of the pairs; `keras.utils.set_random_seed` sets all
            other seeds.
        verbose: As in `model.fit`; a progress bar by default.

    Returns:
        The Keras `History` of all epochs, including those before a kill.

    Raises:
        ValueError: If `backup/` is damaged or from a different model.
    """
    run_dir = Path(run_dir)
    if is_writer():
        run_dir.mkdir(parents=True, exist_ok=True)
    # Restores in `on_train_begin`, as `keras.callbacks.BackupAndRestore` does. With
    # `delete_checkpoint=False` it stays until `delete` below, after the last save.
    backup = BackupAndResume(run_dir / "backup", delete_checkpoint=False)
    batches = _batches_for(translator, batch_size)
    # `epoch` is a variable: the order of the pairs depends on it, also after a resume.
    train_batches = batches(*train, shuffle_seed=seed, epoch=backup.epoch)
    num_steps = epochs * int(train_batches.cardinality())
    _compile(
        translator.model,
        CosineWarmup(learning_rate, warmup_steps, num_steps),
        label_smoothing,
    )

    def save():
        if is_writer():
            with alone():
                translator.save(run_dir)

    sources, references = validation
    log_dir = run_dir / "logs"
    curves = []
    if is_writer():
        curves = [keras.callbacks.TensorBoard(log_dir, write_graph=False)]
    callbacks = [
        TranslationScore(
            translator,
            sources[:num_scored],
            references[:num_scored],
            score=score,
            name=score_name,
            log_dir=log_dir / "validation",
        ),
        *_alignment_maps(
            translator, sources, references, num_drawn, log_dir / "validation"
        ),
        *curves,
        HistoryFile(run_dir / "history.csv"),
        # Must come before `save`: `is_trained` takes a translator without a backup for
        # a finished run.
        backup,
        # `save` writes `model.keras`, both tokenizers and, last, `translator.json`.
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: save()),
    ]
    # In one process the batches are as they come.
    history = translator.model.fit(
        split_batches(train_batches, share_weights=True),
        validation_data=whole_batches(batches(*validation)),
        epochs=epochs,
        shuffle=False,
        callbacks=callbacks,
        verbose=verbose,
    )
    # If the run was killed after its last backup but before its last save, `fit` did
    # nothing, so save here.
    save()
    backup.delete()
    return history


def _batches_for(translator, batch_size):
    """`parallel_dataset` for a translator, a function of sources and targets.

    Pairs are shuffled, anew in each epoch, put into buckets by the length of the longer
    side, of which the last batch may be smaller, and padded to a multiple of 8 tokens
    (32 on JAX). It yields `(inputs, labels, sample_weight)`: inputs are `token_ids` and
    `padding_mask`, (B, S), and `decoder_token_ids`, (B, U), the start token and the
    target; labels, (B, U), are the target and the end token; weights, (B, U), are 1,
    and 0 on padding. Both sides are cut off at `max_length` tokens, a longer target
    without an end token.
    """
    max_length = translator.max_length
    # JAX compiles the loop over the words of each length anew, for many seconds.
    multiple = 32 if keras.backend.backend() == "jax" else 8
    boundaries = (9, 17, 25, 33, 49, 65) if multiple == 8 else (33, 65)
    return functools.partial(
        parallel_dataset,
        source_tokenizer=translator.source_tokenizer,
        target_tokenizer=translator.target_tokenizer,
        batch_size=batch_size,
        max_length=max_length,
        # Batches texts of similar length, so that less padding is computed.
        bucket_boundaries=[n for n in boundaries if n < max_length],
        pad_to_multiple_of=multiple,
    )


def _compile(model, schedule, label_smoothing):
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        SmoothedCrossEntropy(label_smoothing),
        weighted_metrics=[_loss_per_token(label_smoothing), "accuracy"],
        # JAX would otherwise compile nothing. For TensorFlow, XLA compiles each batch
        # shape separately: on a busy 2-core CPU a step took 115 ms either way at 128
        # units, and 0.58 s against 0.80 s at 384, after some 25 s of compiling: too
        # slow for the many shapes of short runs.
        jit_compile=keras.backend.backend() == "jax"
        or bool(tf.config.list_logical_devices("GPU")),
    )


def _loss_per_token(label_smoothing):
    """The cross-entropy of an epoch, averaged over its target tokens.

    Keras' own mean of the loss weights each batch by its rows, however many tokens they
    have. This metric is named `loss`, so that it replaces Keras' value in the logs.
    """
    return keras.metrics.MeanMetricWrapper(
        smoothed_cross_entropy,
        name="loss",
        dtype="float32",
        label_smoothing=label_smoothing,
    )


class TranslationScore(keras.callbacks.Callback):
    """Translates held-out texts after each epoch, and logs their score.

    The score is added to the logs of the epoch, which later callbacks read, and is
    written to TensorBoard with some of the translations.

    Args:
        translator: Translator whose model is trained.
        sources: Held-out texts.
        references: Their translations.
        score: Function of translations and references that returns a number.
        name: Name of the score in the logs.
        log_dir: Folder of the TensorBoard event file.
        num_shown: Number of translations to log as text.
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
        writer = event_writer(self.log_dir)
        with writer.as_default(step=epoch):
            tf.summary.scalar(self.name, value)
            tf.summary.text("translations", tf.constant(rows))
        writer.close()


def _alignment_maps(translator, sources, references, count, log_dir):
    """A callback that plots the alignments of the first `count` validation pairs.

    Returns a list of one callback, or an empty one for a model without attention.
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
    # A fixed context has one position, however long the source is.
    width = inputs["token_ids"].shape[-1]
    if all(scores.shape[-1] != width for scores in recorded.values()):
        return []
    return [
        AttentionMaps(
            log_dir,
            inputs,
            source_tokens=[example[1] for example in examples],
            target_tokens=[example[2] for example in examples],
            max_examples=count,
        )
    ]
