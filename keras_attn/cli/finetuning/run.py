"""One run of fine-tuning, in order: model, task, data, folder, cost, training."""

import math
import shlex
from dataclasses import replace
from pathlib import Path

import keras

from keras_attn.cli.finetuning.adaptation import adapt
from keras_attn.cli.finetuning.completions import CompletionJob, PreferenceJob
from keras_attn.cli.finetuning.folder import find_run
from keras_attn.cli.finetuning.job import Job
from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.labeled import LabeledTextJob, RewardJob
from keras_attn.cli.finetuning.objects import ObjectJob
from keras_attn.cli.finetuning.pictures import PictureJob
from keras_attn.cli.finetuning.pixels import PixelJob
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import find_source
from keras_attn.cli.finetuning.training import train
from keras_attn.cli.opened_model import warn_of_random_weights
from keras_attn.cli.plan import short
from keras_attn.cli.run_owner import check_has_no_owner
from keras_attn.cli.terminal import say, working
from keras_attn.distribution.processes import is_writer
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans.planning import plan_model
from keras_attn.models.plans.step_graph import dtype_policy

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


def run(settings: Settings, *, only_plan: bool = False) -> Path:
    """Fine-tunes, or resumes an interrupted run.

    Args:
        settings: The command line.
        only_plan: Whether to say what it costs, and stop.

    Returns:
        The folder.

    Raises:
        ValueError: If the data, the model or the options do not fit together.
    """
    with dtype_policy(settings.precision):
        source = find_source(settings.model, settings.overrides)
        if source.has_own_policy and settings.precision != "float32":
            raise ValueError(
                "--precision is for names and checkpoint folders; a model saved by "
                f"Keras has its own. Received: --precision {settings.precision}"
            )
        kind = find_kind(settings, settings.data)
        is_open = kind.task == "preference" and settings.task is None
        if is_open and not source.is_language_model:
            # Preferences are for DPO or for a reward model, as the model says.
            kind = replace(kind, task="reward")
        job = _JOBS[kind.task](settings, kind, source)
        _say_data(job)
        if is_writer() and not only_plan:
            check_has_no_owner(settings.run_dir)
        folder = find_run(job)
        if folder.epochs:
            say(f"  goes on after {folder.epochs} epochs of the run in {folder.path}")
        elif folder.result is not None and not only_plan:
            say(f"The run in {folder.path} is already trained.")
            _say_figures(folder.result)
            return folder.path
        elif folder.is_new:
            with working("Checking the files"):
                for part in job.files():
                    part.check()
        if only_plan:
            check_model(job)
        say_cost(job)
        if not only_plan:
            _say_figures(train(job, folder))
            _suggest(folder.path)
    return settings.run_dir


def _say_data(job: Job) -> None:
    """Says what was found, and what is learned from it."""
    settings = job.settings
    weights = job.class_weights() if settings.class_weights else None
    say(f"{settings.model}: {job.kind.task}, because {job.kind.why}", "bold")
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
    if not job.source.is_pretrained:
        warn_of_random_weights(settings.model)


def check_model(job: Job) -> None:
    """Raises what the run would raise when it has loaded the model.

    Args:
        job: What the run learns.

    Raises:
        ValueError: If the model, the data and the options do not fit together.
    """
    with working("Checking the model"), undone(), without_allocating():
        model = job.source.sketch(job.head, job.options())
        job.prepare(model)
        adapt(model, job.settings, job.new_layers(model), is_sketch=True)


def say_cost(job: Job) -> None:
    """Says what a step and the run cost.

    Args:
        job: What the run learns.
    """
    if keras.backend.backend() != "tensorflow":
        say("  cost: counted only without --processes (--plan)", "dim")
        return
    settings, source, options = job.settings, job.source, job.options()
    trained = []

    def build():
        trained.clear()
        model = source.sketch(job.head, options)
        adapt(model, settings, job.new_layers(model), is_sketch=True)
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


def _say_figures(result: Result) -> None:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in result.figures.items())
    say(f"\nOn the validation data: {figures}", "bold")
    if result.label_scale is not None:
        say("The loss is computed with labels scaled to mean 0 and deviation 1.", "dim")
    if not result.is_pretrained:
        say("Trained from random weights: nothing was fine-tuned.", "yellow")


def _suggest(path: Path) -> None:
    folder = shlex.quote(str(path))
    say(
        f"\nIn {folder}: the model, its card README.md, history.csv, logs/. Next steps:"
    )
    say(f"  tensorboard --logdir {shlex.quote(str(path / 'logs'))}")
    say(f"  keras-attn predict {folder} FILE")
    say(f"  keras-attn export {folder} {folder}/model.onnx")
