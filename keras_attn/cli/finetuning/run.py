"""One run of fine-tuning: its cost, its training, resuming after a kill, its folder."""

import contextlib
import hashlib
import math
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_attn.cli.finetuning.adaptation import (
    adapt,
    check_adaptation,
    check_quantizable,
    check_saving,
    quantize,
)
from keras_attn.cli.finetuning.card import write_card
from keras_attn.cli.finetuning.completions import CompletionJob, PreferenceJob
from keras_attn.cli.finetuning.job import Job, is_compiled
from keras_attn.cli.finetuning.kinds import Kind, find_kind
from keras_attn.cli.finetuning.labeled import LabeledTextJob, RewardJob
from keras_attn.cli.finetuning.objects import ObjectJob
from keras_attn.cli.finetuning.pictures import PictureJob
from keras_attn.cli.finetuning.pixels import PixelJob
from keras_attn.cli.finetuning.result import NAME as RESULT_FILE
from keras_attn.cli.finetuning.result import Result, read_result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import Source, find_source
from keras_attn.cli.opened_model import warn_of_random_weights
from keras_attn.cli.plan import short
from keras_attn.cli.run_owner import check_has_no_owner
from keras_attn.cli.runs import (
    check_is_free,
    claim,
    extend,
    holds_run,
    is_interrupted,
    read_settings,
)
from keras_attn.cli.terminal import fit_verbosity, say, working
from keras_attn.data import split_batches, whole_batches
from keras_attn.data.images.yolo_layout import YAML_SUFFIXES, yolo_folders
from keras_attn.data.text.sentencepiece import MODEL_FILES
from keras_attn.distribution.processes import alone, is_writer
from keras_attn.files.writing import replacing
from keras_attn.models import save_checkpoint, save_lora
from keras_attn.models.checkpoints.saving import can_be_saved
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans.planning import plan_model
from keras_attn.training import AdamW, BackupAndResume, LinearWarmup, merge_lora
from keras_attn.training.history_file import HistoryFile

_JOBS: dict[str, type[Job]] = {
    "text_classification": LabeledTextJob,
    "text_regression": LabeledTextJob,
    "completion": CompletionJob,
    "preference": PreferenceJob,
    "reward": RewardJob,
    "image_classification": PictureJob,
    "segmentation": PixelJob,
    "detection": ObjectJob,
    "instance_segmentation": ObjectJob,
}
# Besides what every run writes. The tokenizer's depend on its kind.
_FILES = (
    "README.md",
    "adapters",
    "config.json",
    "model.safetensors",
    RESULT_FILE,
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.json"),
    "tokenizer_config.json",
    *MODEL_FILES,
)
_WEIGHT_DECAY = 0.01
_CLIPPED_NORM = 1.0
_WARMUP = 0.1


def run(settings: Settings, *, only_plan: bool = False) -> Path:
    """Fine-tunes, or goes on with a run that was interrupted.

    Args:
        settings: The command line.
        only_plan: Whether to say what it costs, and stop.

    Returns:
        The folder.

    Raises:
        ValueError: If the data, the model or the options do not fit together.
    """
    check_adaptation(settings)
    with _policy(settings):
        source = find_source(settings.model, settings.overrides)
        if source.has_own_policy and settings.precision != "float32":
            raise ValueError(
                "--precision is for names and checkpoint folders; a model saved by "
                f"Keras has its own. Received: --precision {settings.precision}"
            )
        kind = _decided(find_kind(settings, settings.data), settings, source)
        job = _JOBS[kind.task](settings, kind, source)
        weights = job.class_weights() if settings.class_weights else None
        say(f"{settings.model}: {job.kind.task}, because {kind.why}", "bold")
        for line in job.lines():
            say(f"  {line}")
        if weights is not None:
            listed = ", ".join(f"{weight:.3g}" for weight in weights.values())
            say(
                f"  weights of the classes in the loss: {listed} (balanced: the mean "
                f"number of {job.weighed} of a class, divided by its own)"
            )
        for note in job.notes:
            say(f"  {note}", "yellow")
        if not source.is_pretrained:
            warn_of_random_weights(settings.model)
        if is_writer() and not only_plan:
            check_has_no_owner(settings.run_dir)
        identity = _identity(settings, source)
        before = _epochs_before(job, identity)
        if before:
            say(f"  goes on after {before} epochs of the run in {settings.run_dir}")
        elif holds_run(settings.run_dir, identity):
            result = read_result(settings.run_dir)
            if result is not None and not only_plan:
                say(f"The run in {settings.run_dir} is already trained.")
                _say_figures(result)
                return settings.run_dir
        else:
            check_is_free(settings.run_dir, *_FILES)
            with working("Checking the files"):
                for part in job.files():
                    part.check()
        if only_plan:
            _check_model(job)
        _say_cost(job)
        if only_plan:
            return settings.run_dir
        result = _train(job, identity, before)
        _say_figures(result)
        _suggest(job)
    return settings.run_dir


def _epochs_before(job: Job, identity: dict[str, Any]) -> int:
    """The epochs of a complete run that this command goes on with; 0 without one.

    Raises:
        ValueError: If it is a run that cannot go on.
    """
    settings = job.settings
    found, result = read_settings(settings.run_dir), read_result(settings.run_dir)
    if found is None or result is None:
        return 0
    before = result.epochs or found["epochs"]
    if before >= settings.epochs or {**found, "epochs": settings.epochs} != identity:
        return 0
    if before < found["epochs"] and found != identity:
        return 0  # It goes on already, to another end.
    if settings.quantize is not None or job.kind.task == "preference":
        what = "--quantize" if settings.quantize is not None else "preferences"
        raise ValueError(
            f"--epochs cannot be raised after a run with {what}, whose base is not in "
            "its folder; choose another --run-dir. "
            f"Received: --epochs {settings.epochs} after {before}"
        )
    return before


@contextlib.contextmanager
def _policy(settings: Settings) -> Iterator[None]:
    """Keras' policy of the run."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(settings.precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _decided(kind: Kind, settings: Settings, source: Source) -> Kind:
    """Preferences are for DPO or for a reward model, as the model says."""
    is_open = kind.task == "preference" and settings.task is None
    if not is_open or source.is_language_model:
        return kind
    return Kind(**{**vars(kind), "task": "reward"})


def _identity(settings: Settings, source: Source) -> dict[str, Any]:
    """The settings of a run, with what identifies its model and data."""
    found = {"command": "finetune", **settings.identity(), "model_bytes": source.size}
    for name in (
        "data",
        "validation",
        "images",
        "validation_images",
        "masks",
        "classes",
    ):
        path = getattr(settings, name)
        if path is not None:
            found[f"{name}_digest"] = _digest(path)
            if path.suffix.lower() in YAML_SUFFIXES:
                found[f"{name}_files"] = [_digest(each) for each in yolo_folders(path)]
    return found


def _digest(path: Path) -> str:
    """A short hash of a table's content, or of a folder's names and sizes."""
    found = hashlib.sha256()
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            if each.is_file():
                name = each.relative_to(path).as_posix()
                found.update(f"{name}\0{each.stat().st_size}\n".encode())
    else:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
    return found.hexdigest()[:16]


def _check_model(job: Job) -> None:
    """Raises what the run would raise when it has loaded the model.

    Raises:
        ValueError: If the model, the data and the options do not fit together.
    """
    settings = job.settings
    with working("Checking the model"), undone(), without_allocating():
        model = job.source.sketch(job.head, job.options())
        job.prepare(model)
        if settings.quantize is not None:
            check_quantizable(model, settings.quantize)
        if settings.lora is not None:
            adapt(model, settings, job.new_layers(model))


def _say_cost(job: Job) -> None:
    """Says what a step and the run cost, counted in the graph of the model."""
    if keras.backend.backend() != "tensorflow":
        say("  cost: counted without --processes alone (--plan)", "dim")
        return
    settings, source, options = job.settings, job.source, job.options()
    trained = []

    def build():
        trained.clear()
        model = source.sketch(job.head, options)
        if settings.lora is not None:
            adapt(model, settings, job.new_layers(model))
        trained.append(sum(math.prod(x.shape) for x in model.trainable_variables))
        return model

    def count():
        with working("Counting the cost"):
            return plan_model(
                build,
                settings.model,
                batch=settings.batch_size * job.rows,
                sequence=job.sequence,
                dtype=None if source.has_own_policy else settings.precision,
            )

    size = ""
    try:
        try:
            plan = count()
        except ValueError:
            usual = job.usual_size()
            if usual is None or "image_size" in options:
                raise
            # A model of images of any size.
            options["image_size"] = usual
            size = f" images of {usual[0]}x{usual[1]}"
            plan = count()
    except (ValueError, TypeError) as error:
        say(f"  cost: not counted: {error}", "dim")
        return
    say(
        f"  {plan.parameters:,} parameters, of which {trained[0]:,} train; learning "
        f"rate {job.learning_rate:g}"
    )
    step = f"{plan.batch}{size}"
    if plan.has_tokens:
        step = f"{plan.batch} x {plan.sequence} tokens"
    per_epoch = -(-job.num_examples // settings.batch_size)
    total = plan.training_flops * per_epoch * settings.epochs
    say(
        f"  cost: {short(plan.training_flops)}FLOP per step of {step}, {per_epoch:,} "
        f"steps per epoch, {short(total)}FLOP in all {settings.epochs} epochs; at "
        f"least {short(plan.training_memory)}B of memory on a CPU or GPU without XLA, "
        "besides TensorFlow's own and what operations need while they run: "
        f"weights {short(plan.weights)}B, gradients {short(plan.gradients)}B, AdamW "
        f"{short(plan.optimizer_state)}B, activations {short(plan.activations)}B"
    )


def _train(job: Job, identity: dict[str, Any], before: int) -> Result:
    """Trains, after the epochs of a complete run if there is one."""
    settings, source, folder = job.settings, job.source, job.settings.run_dir
    keras.utils.set_random_seed(settings.seed)
    start = Source(source.name, folder, {}) if before else source
    model = start.load(job.head, job.options())
    job.prepare(model)
    model = job.begin(model, start)
    if settings.quantize is not None:
        with working("Quantizing"):
            report = quantize(model, settings.quantize)
        say(report)
    if settings.lora is not None:
        say(str(adapt(model, settings, job.new_layers(model))))
    if settings.save_adapters:
        check_saving(model)
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
    train, validation = job.batches(backup.epoch)
    steps = (settings.epochs - before) * int(train.cardinality())
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
    # Now that the model is known to fit the data.
    if before:
        _extend(folder, identity, before)
    claim(folder, identity)
    if is_interrupted(folder):
        say(f"Resuming the interrupted run in {folder}.")
    curves = []
    if is_writer():
        curves = [keras.callbacks.TensorBoard(folder / "logs", write_graph=False)]
    weigh = settings.class_weights is not None and not job.weighs_batches
    trainer.fit(
        split_batches(train),
        validation_data=whole_batches(validation),
        epochs=settings.epochs,
        initial_epoch=before,
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
    figures = {name: value for name, value in figures.items() if math.isfinite(value)}
    known = {"is_pretrained": source.is_pretrained, "figures": figures}
    known["epochs"] = settings.epochs
    result = Result(**{**vars(job.result()), **known})
    # In every process, as merging does: it changes weights that all share.
    model = job.finish(model)
    if settings.save_adapters and is_writer():
        with alone():
            base = None if source.path is None else source.name
            save_lora(model, folder / "adapters", base_model=base)
    if settings.lora is not None and settings.quantize is None:
        merge_lora(model)
    if is_writer():
        with working("Saving"), alone():
            _save(model, job, result)
    backup.delete()
    return result


def _extend(folder: Path, identity: dict[str, Any], before: int) -> None:
    """Lets a complete run go on: its result says how far it was when that began."""
    if read_settings(folder) == identity:
        return
    result = read_result(folder)
    if result is not None and is_writer():
        Result(**{**vars(result), "epochs": before}).save(folder)
        # Of a process that was killed right after it wrote the result.
        shutil.rmtree(folder / "backup", ignore_errors=True)
    extend(folder, identity)


def _save(model: Any, job: Job, result: Result) -> None:
    """Writes the folder; the file that makes it complete comes last."""
    settings, folder = job.settings, job.settings.run_dir
    job.save(folder)
    if settings.quantize is None and can_be_saved(model):
        save_checkpoint(model, folder)
    else:
        # A compiled model is saved with its optimizer, twice as large as itself.
        model.optimizer, model.compiled = None, False
        with replacing(folder / "model.keras") as partial:
            model.save(partial)
    write_card(folder, model, job, result)
    result.save(folder)


def _say_figures(result: Result) -> None:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in result.figures.items())
    say(f"\nOn the validation data: {figures}", "bold")
    if result.label_scale is not None:
        say("The loss is that of labels of mean 0 and deviation 1.", "dim")
    if not result.is_pretrained:
        say("Trained from random weights: nothing was fine-tuned.", "yellow")


def _suggest(job: Job) -> None:
    folder = shlex.quote(str(job.settings.run_dir))
    say(
        f"\nIn {folder}: the model, its card README.md, history.csv, logs/. Next steps:"
    )
    say(f"  tensorboard --logdir {shlex.quote(str(job.settings.run_dir / 'logs'))}")
    say(f"  keras-attn predict {folder} FILE")
    say(f"  keras-attn export {folder} {folder}/model.onnx")
