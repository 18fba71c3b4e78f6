"""Two training steps of every model on two devices of `tf.distribute` and on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from model_cases import (
    GRAPHS,
    create,
    given,
    has_own_loss,
    inputs_for,
    is_detector,
    outputs_of,
    randomize,
    truth_for,
)
from model_contract import remove_noise

from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.training import enable_lora

TESTS = Path(__file__).resolve().parent.parent
ROWS, DEVICES = 4, 2


def losses(cases):
    """Losses on one device and on two by case, from a process with two devices."""
    path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    process = subprocess.run(
        [sys.executable, __file__, *cases],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


ADAPTED = "+adapted"
# Updates of kernels of integers; two translators, an encoder, a decoder, and images.
FEW = (
    "gpt_117m" + ADAPTED,
    "rnnsearch_50",
    "transformer_base",
    "bert_base",
    "gpt3_small",
    "vit_base_patch16",
)
# Losses over the batch of all devices, batch norms, and samples.
MORE = ("clip_vit_base_patch32", "mae_vit_base", "resnet18")


@pytest.mark.compiled
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute` is TensorFlow's"
)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MORE, marks=pytest.mark.runs, id="more"),
        pytest.param(
            sorted({*GRAPHS} - {*FEW, *MORE}),
            marks=[pytest.mark.runs, pytest.mark.variation],
            id="rest",
        ),
    ],
)
def test_two_devices_train_like_one(cases):
    by_case = losses(cases)
    assert set(by_case) == set(cases)
    for case, (one, two) in by_case.items():
        assert one[0] != one[1], case
        np.testing.assert_allclose(two, one, rtol=1e-5, err_msg=case)


def new_model(case):
    """A model of a case with random weights, and no noise."""
    name = case.removesuffix(ADAPTED)
    model = randomize(create(name))
    remove_noise(model)
    if name != case:
        model.quantize("int8")
        enable_lora(model, rank=2, targets="all", seed=3)
    return model


def fit(model, data, run_eagerly):
    """The losses of two steps."""
    inputs, labels = data
    model.compile(
        keras.optimizers.SGD(0.01),
        loss=None
        if has_own_loss(model)
        else keras.tree.map_structure(lambda _: "mse", labels),
        run_eagerly=run_eagerly,
    )
    history = model.fit(
        given(model, inputs),
        labels,
        batch_size=ROWS,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    return history.history["loss"]


def has_batch_norms(model):
    """Whether a norm uses the mean of the batch; a detector's norms are frozen."""
    names = {weight.name for weight in model.weights}
    return "moving_mean" in names and not is_detector(model)


def kinds_of_fits(model):
    """Number of rows, in batches of `ROWS`, and `run_eagerly` of each fit."""
    if isinstance(model, DualEncoder):
        # A contrastive loss is one of all pairs, also if the devices have two and one
        # of the last batch, or one and none, which eager calls would reject.
        return [(2 * ROWS - 1, True), (ROWS + 1, False)]
    return [(ROWS, True)]  # Faster than tracing every model twice.


def data_for(model, rows):
    """Inputs with masks as int32, as in our pipelines, and labels for each output."""
    inputs = inputs_for(model, batch=rows)
    inputs = {
        name: value.astype("int32") if value.dtype == bool else value
        for name, value in inputs.items()
    }
    if has_batch_norms(model):
        # Batch norm uses the mean of each device's rows: give both the same rows.
        half = ROWS // DEVICES
        inputs = {
            name: np.concatenate([value[:half]] * DEVICES)
            for name, value in inputs.items()
        }
    if has_own_loss(model):
        return inputs, truth_for(model, batch=ROWS)
    rng = np.random.default_rng(3)
    labels = {
        name: rng.normal(size=value.shape).astype("float32")
        for name, value in outputs_of(model, inputs).items()
        if value.dtype != bool
    }
    if has_batch_norms(model):
        labels = {n: np.concatenate([v[:half]] * DEVICES) for n, v in labels.items()}
    if not isinstance(model.output, dict):
        (labels,) = labels.values()
    return inputs, labels


def main():
    """Prints the losses of the cases on the command line as JSON."""
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    tf.config.set_logical_device_configuration(processor, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    by_case = {}
    for case in sys.argv[1:]:
        one = new_model(case)
        fits = [(data_for(one, rows), mode) for rows, mode in kinds_of_fits(one)]
        with strategy.scope():
            two = new_model(case)
        by_case[case] = [
            [loss for each in fits for loss in fit(model, *each)]
            for model in (one, two)
        ]
    print(json.dumps(by_case))


if __name__ == "__main__":
    main()
