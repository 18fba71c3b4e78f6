"""Training: from a model and its data to a complete folder; a killed run resumes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from keras_attn.cli.finetuning.adaptation import adapt
from keras_attn.cli.finetuning.card import write_card
from keras_attn.cli.finetuning.folder import RunFolder
from keras_attn.cli.finetuning.job import Job, is_compiled
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.source import Source
from keras_attn.cli.terminal import fit_verbosity, say, working
from keras_attn.data import split_batches, whole_batches
from keras_attn.distribution.processes import alone, is_writer
from keras_attn.files.hub_names import get_hub_name
from keras_attn.files.writing import replacing
from keras_attn.models import save_checkpoint, save_lora
from keras_attn.models.checkpoints.saving import can_be_saved
from keras_attn.training import AdamW, BackupAndResume, LinearWarmup, merge_lora
from keras_attn.training.history_file import HistoryFile

_WEIGHT_DECAY = 0.01
_CLIPPED_NORM = 1.0
_WARMUP = 0.1


def train(job: Job, run: RunFolder) -> Result:
    """Trains, after the epochs of a complete run if there is one, and saves.

    Args:
        job: What the run learns.
        run: Its folder.

    Returns:
        What was measured.

    Raises:
        ValueError: If the model, the data and the options do not fit together.
    """
    settings, source, folder = job.settings, job.source, run.path
    keras.utils.set_random_seed(settings.seed)
    start = Source(source.name, folder, {}) if run.epochs else source
    model = start.load(job.head, job.options())
    job.prepare(model)
    model = job.begin(model, start)
    for line in adapt(model, settings, job.new_layers(model)):
        say(line)
    trainer = job.trainer(model)
    stopping = []
    if settings.patience is not None:
        stopping = [
            keras.callbacks.EarlyStopping(
                "val_loss",
                mode="min",
                patience=settings.patience,
                restore_best_weights=True,
            )
        ]
    backup = BackupAndResume(
        folder / "backup", callbacks=stopping, delete_checkpoint=False
    )
    batches, validation = job.batches(backup.epoch)
    steps = (settings.epochs - run.epochs) * int(batches.cardinality())
    job.compile(
        trainer,
        optimizer=AdamW(
            LinearWarmup(job.learning_rate, int(_WARMUP * steps), steps),
            weight_decay=_WEIGHT_DECAY,
            global_clipnorm=_CLIPPED_NORM,
        ),
        # Each length or size would be compiled anew, for longer than it saves here.
        jit_compile=is_compiled(),
    )
    run.claim()  # Now that the model is known to fit the data.
    curves = []
    if is_writer():
        curves = [keras.callbacks.TensorBoard(folder / "logs", write_graph=False)]
    weigh = settings.class_weights is not None and not job.weighs_batches
    trainer.fit(
        split_batches(batches),
        validation_data=whole_batches(validation),
        epochs=settings.epochs,
        initial_epoch=run.epochs,
        class_weight=job.class_weights() if weigh else None,
        shuffle=False,
        verbose=fit_verbosity(),
        callbacks=[
            *job.callbacks(validation),
            *curves,
            HistoryFile(folder / "history.csv"),
            *stopping,
            backup,
        ],
    )
    with working("Measuring the result"):
        figures = job.figures(trainer, validation)
    result = replace(
        job.result(),
        is_pretrained=source.is_pretrained,
        epochs=settings.epochs,
        figures={name: x for name, x in figures.items() if math.isfinite(x)},
    )
    # In every process, as merging does: it changes weights that all share.
    model = job.finish(model)
    if source.path is not None:
        model.source = get_hub_name(source.path)
    if settings.save_adapters and is_writer():
        with alone():
            base = None if source.path is None else source.name
            save_lora(model, folder / "adapters", base_model=base)
    if settings.lora is not None and settings.quantize is None:
        merge_lora(model)
    if is_writer():
        with working("Saving"), alone():
            _save(folder, model, job, result)
    backup.delete()
    return result


def _save(folder: Path, model: Any, job: Job, result: Result) -> None:
    """Writes the folder; the file that makes it complete comes last."""
    job.save(folder)
    if job.settings.quantize is None and can_be_saved(model):
        save_checkpoint(model, folder)
    else:
        # A compiled model is saved with its optimizer, twice as large as itself.
        model.optimizer, model.compiled = None, False
        with replacing(folder / "model.keras") as partial:
            model.save(partial)
    write_card(folder, model, job, result)
    result.save(folder)
