"""What models learn and log on two devices of `tf.distribute` and on one."""

import json
import sys

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
    varied,
)
from model_contract import remove_noise
from model_family import T
from processes import run_python

from keras_attn import losses as ours
from keras_attn.decoding import PromptLookup, Sample, generate
from keras_attn.models.dalle import DALLE
from keras_attn.models.dvae import DVAE
from keras_attn.models.parts.detection.detector import Detector
from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.models.parts.functional import Functional
from keras_attn.training import AdversarialTrainer, DeepQ, enable_lora

ROWS, DEVICES = 4, 2
needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute` is TensorFlow's"
)


def found_by(measure, cases):
    """What a process with two devices measures on one and on two, by case."""
    found = json.loads(run_python(__file__, measure, *cases).splitlines()[-1])
    assert set(found) == set(cases)
    return found.items()


ADAPTED = "+adapted"
# LoRA on quantized weights; two translators, an encoder, a decoder, and images.
FEW = (
    "gpt_117m" + ADAPTED,
    "rnnsearch_50",
    "transformer_base",
    "bert_base",
    "gpt3_small",
    "vit_base_patch16",
    "weighted",
    "adversarial",
    "generated",
)
# Losses over the batch of all devices, batch norms, and samples.
MORE = ("clip_vit_base_patch32", "mae_vit_base", "resnet18")


@pytest.mark.compiled
@needs_tensorflow
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
    for case, (one, two) in found_by("learned", cases):
        assert one[0] != one[1], case
        np.testing.assert_allclose(two, one, rtol=1e-5, err_msg=case)


# A model with each way to compute a loss of its own, or over the words or regions that
# count. In evaluation, where batch norms and samples are none of the loss.
OWN_LOSSES = ("dalle_12b", "caption_show_attend_tell", "vilbert_pretrainer")
MORE_OWN_LOSSES = (
    *("clip_vit_base_patch32", "siglip_base_patch16_224", "mae_vit_base"),
    *("vln_bert_pretrainer", "listen_attend_spell", "show_attend_interact"),
    *("dvae_dalle", "faster_rcnn_resnet50", "mask_rcnn_resnet50", "fcn8s_vgg16"),
)


@pytest.mark.compiled
@needs_tensorflow
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(OWN_LOSSES, id="own"),
        pytest.param(
            MORE_OWN_LOSSES, marks=[pytest.mark.runs, pytest.mark.variation], id="more"
        ),
    ],
)
def test_two_devices_log_what_one_does(cases):
    """Seven rows in batches of four: the devices have unequal parts of the last."""
    for case, (one, two) in found_by("logged", cases):
        assert set(one) == set(two) and "loss" in one
        for name in one:
            np.testing.assert_allclose(
                two[name], one[name], rtol=2e-5, err_msg=f"{case}: {name}"
            )


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
    options = {"batch_size": ROWS, "epochs": 2, "shuffle": False, "verbose": 0}
    return model.fit(given(model, inputs), labels, **options).history["loss"]


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
    # Faster than tracing every model twice.
    if has_own_loss(model) or has_batch_norms(model):
        return [(ROWS, True)]
    return [
        (2 * ROWS - 1, True)
    ]  # The devices have two rows and one of the last batch.


def inputs_of(model, rows):
    """Inputs with masks as int32, as in our pipelines."""
    return {
        name: value.astype("int32") if value.dtype == bool else value
        for name, value in inputs_for(model, batch=rows).items()
    }


def data_for(model, rows):
    """Inputs, and labels for each output."""
    inputs = inputs_of(model, rows)
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


def logged(model):
    """The logs of an epoch of seven rows: of training where it has no other noise."""
    rows = 2 * ROWS - 1
    inputs = inputs_of(model, rows)
    arrays = given(model, inputs)
    random = np.random.default_rng(3)
    if model.name == "show_attend_interact":
        shape = (rows, T)
        labels = {
            "actions": random.integers(0, 4, shape).astype("int32"),
            "rewards": random.normal(size=shape).astype("float32"),
            "is_last": random.integers(0, 2, shape).astype("float32"),
            "is_real": random.integers(0, 2, shape).astype("float32"),
        }
        losses, weights, model = "mse", None, DeepQ(model)
    elif has_own_loss(model) or isinstance(model, DALLE | DVAE):
        labels = truth_for(model, batch=rows) if has_own_loss(model) else None
        losses, weights = None, None
    else:
        found = {
            name: loss_and_labels(name, value, inputs, random)
            for name, value in outputs_of(model, inputs).items()
            if value.dtype != bool
        }
        losses, labels, weights = (
            {name: each[index] for name, each in found.items()} for index in range(3)
        )
        if not isinstance(model.output, dict):
            ((losses, labels, weights),) = found.values()
    model.compile(keras.optimizers.SGD(0.0), losses)
    options = {"batch_size": ROWS, "sample_weight": weights, "verbose": 0}
    if isinstance(model, Detector | DVAE):
        return model.evaluate(arrays, labels, return_dict=True, **options)
    history = model.fit(arrays, labels, shuffle=False, **options)
    return {name: values[-1] for name, values in history.history.items()}


def loss_and_labels(name, output, inputs, random):
    """A loss for an output, its labels, and weights of which some are 0."""
    shape = output.shape
    if name == "reconstruction":
        return (
            ours.MaskedPatchLoss(7),
            inputs["images"],
            np.ones(len(output), "float32"),
        )
    weights = random.integers(0, 2, shape[:-1]).astype("float32")
    if name == "masked_regions":
        regions = random.dirichlet(np.ones(shape[-1]), shape[:-1]).astype("float32")
        return ours.MaskedRegionLoss(), regions, weights
    if len(shape) == 2:
        targets = random.normal(size=shape).astype("float32")
        return "mse", targets, np.ones(len(output), "float32")
    labels = random.integers(0, shape[-1], shape[:-1]).astype("int32")
    if len(shape) == 4:
        return ours.SegmentationCrossEntropy(0), labels, weights
    return ours.SmoothedCrossEntropy(), labels, weights


def learned(one, two):
    """The losses of two steps of every kind, on one device and on two."""
    fits = [(data_for(one, rows), mode) for rows, mode in kinds_of_fits(one)]
    return [
        [loss for each in fits for loss in fit(model, *each)] for model in (one, two)
    ]


def weighted():
    """Losses and weights of Keras' losses under weights of positions and of rows."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5, 3), name="words")
    outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in "ab"}
    model = Functional(inputs, outputs)
    total = keras.losses.MeanAbsoluteError("sum")
    model.compile(keras.optimizers.SGD(0.1), {"a": "mse", "b": total}, run_eagerly=True)
    random = np.random.default_rng(3)
    words = random.normal(size=(7, 5, 3)).astype("float32")
    labels = {name: random.normal(size=(7, 5, 2)).astype("float32") for name in "ab"}
    weights = random.random((7, 5, 1)).astype("float32")
    options = {"batch_size": ROWS, "shuffle": False, "epochs": 2, "verbose": 0}
    losses = []
    for each in (weights[..., 0], weights[:, 0]):
        by_output = {"a": each, "b": each}
        history = model.fit(words, labels, sample_weight=by_output, **options)
        losses += history.history["loss"]
    return [*losses, *sums_of_weights(model)]


def adversarial():
    """Losses and weights by SGD; the second device has no row of the last batch."""
    keras.utils.set_random_seed(1)
    noise, images = keras.Input((3,), name="noise"), keras.Input((2,), name="images")
    labels = keras.Input((), dtype="int32", name="labels")
    # Each device draws other noise, so there is none.
    made = keras.layers.Dense(2)(keras.layers.Embedding(3, 3)(labels) + 0.0 * noise)
    score = keras.layers.Dense(1)(images + keras.layers.Embedding(3, 2)(labels))
    trainer = AdversarialTrainer(
        keras.Model({"noise": noise, "labels": labels}, made),
        keras.Model({"images": images, "labels": labels}, score),
    )
    # Not eagerly: TensorFlow adds a bias to no rows only in graphs.
    trainer.compile(*(keras.optimizers.SGD(0.1) for _ in range(2)), jit_compile=False)
    real = np.random.default_rng(3).normal(size=(5, 2)).astype("float32")
    history = trainer.fit(
        real, np.arange(5) % 3, batch_size=ROWS, epochs=2, shuffle=False, verbose=0
    )
    losses = [each for values in history.history.values() for each in values]
    return [*losses, *sums_of_weights(trainer)]


def generated():
    """What is predicted and generated for three prompts, by one compiled call each."""
    model = varied("gpt_117m", num_layers=1)
    inputs = inputs_for(model, batch=3)
    found: list = [model.predict_on_batch(inputs)]
    strategy = Sample(seed=3)
    found += generate(model, inputs, 4, strategy=strategy, num_results=2)
    found += generate(model, inputs, 4, strategy=strategy, speculation=PromptLookup())
    return [float(value) for each in found for value in np.ravel(each)]


def sums_of_weights(model):
    return [float(np.abs(each).sum()) for each in model.get_weights()]


SMALL = {"weighted": weighted, "adversarial": adversarial, "generated": generated}


def main():
    """Prints what is measured of the cases on the command line as JSON."""
    import tensorflow as tf

    (processor,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    tf.config.set_logical_device_configuration(processor, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    measure, *cases = sys.argv[1:]
    by_case = {}
    for case in cases:
        if case in SMALL:
            one = SMALL[case]()
            with strategy.scope():
                by_case[case] = [one, SMALL[case]()]
            continue
        one = new_model(case)
        with strategy.scope():
            two = new_model(case)
            on_two = logged(two) if measure == "logged" else {}
        by_case[case] = [logged(one), on_two] if on_two else learned(one, two)
    print(json.dumps(by_case))


if __name__ == "__main__":
    main()
