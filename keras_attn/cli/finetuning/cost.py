"""The cost of a run, counted in the graph of its model before training."""

import math

import keras

from keras_attn.cli.finetuning.adaptation import adapt
from keras_attn.cli.finetuning.job import Job
from keras_attn.cli.plan import short
from keras_attn.cli.terminal import say, working
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans.planning import plan_model


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
