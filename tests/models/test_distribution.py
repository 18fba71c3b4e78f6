"""Every model on two devices of `tf.distribute` against one, over two steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from model_cases import GRAPHS, create, given, inputs_for, outputs_of, randomize

TESTS = Path(__file__).resolve().parent.parent
ROWS, DEVICES = 4, 2


def losses(cases):
    """Losses by model, of one device and of two; devices are set before TF starts."""
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


# One of each kind: two translators, an encoder, a decoder, and images.
FEW = (
    "rnnsearch_50",
    "transformer_base",
    "bert_base",
    "gpt3_small",
    "vit_base_patch16",
)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute` is TensorFlow's"
)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FEW, id="few"),
        # Two models of every kind are built and trained: a minute and a half.
        pytest.param(sorted(set(GRAPHS) - set(FEW)), marks=pytest.mark.runs, id="rest"),
    ],
)
def test_two_devices_train_as_one_does(cases):
    found = losses(cases)
    assert set(found) == set(cases)
    for case, (alone, together) in found.items():
        assert alone[0] != alone[1], case
        np.testing.assert_allclose(together, alone, rtol=1e-5, err_msg=case)


def fit(model, inputs, labels):
    """The losses of two steps from fixed weights."""
    randomize(model)
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    model.compile(
        keras.optimizers.SGD(0.01),
        loss=keras.tree.map_structure(lambda _: "mse", labels),
        run_eagerly=True,  # Quicker than two traces of every model.
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


def data_for(model):
    """Masks as int32, as our pipelines give them, and a number for each output."""
    inputs = inputs_for(model, batch=ROWS)
    inputs = {
        name: value.astype("int32") if value.dtype == bool else value
        for name, value in inputs.items()
    }
    if any(weight.name == "moving_mean" for weight in model.weights):
        # Means are those of a device's own batch: let both have the same one.
        half = ROWS // DEVICES
        inputs = {
            name: np.concatenate([value[:half]] * DEVICES)
            for name, value in inputs.items()
        }
    rng = np.random.default_rng(3)
    labels = {
        name: rng.normal(size=value.shape).astype("float32")
        for name, value in outputs_of(model, inputs).items()
        if value.dtype != bool
    }
    if any(weight.name == "moving_mean" for weight in model.weights):
        labels = {n: np.concatenate([v[:half]] * DEVICES) for n, v in labels.items()}
    if not isinstance(model.output, dict):
        (labels,) = labels.values()
    return inputs, labels


def main():
    """Prints the losses of the models named as JSON."""
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    tf.config.set_logical_device_configuration(processor, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {}
    for case in sys.argv[1:]:
        alone = create(case)
        inputs, labels = data_for(alone)
        with strategy.scope():
            together = create(case)
        found[case] = [fit(model, inputs, labels) for model in (alone, together)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
