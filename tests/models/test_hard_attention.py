"""Hard attention of Show, Attend and Tell: what is drawn, and what is learned from it.

Expected values are those of `caption_reference.py`, in NumPy.
"""

import caption_reference as reference
import keras
import numpy as np
import pytest
from keras import ops
from model_cases import build, create, inputs_for, logits_of, numpy, randomize
from model_family import B, T, V
from processes import run_python

from keras_attn.losses import SmoothedCrossEntropy

pytestmark = pytest.mark.compiled

CASE = "caption_show_attend_tell-hard"
LABELS = np.random.default_rng(3).integers(1, V, (B, T)).astype("int32")
# Three locations, two words: nine sequences of locations, and about a hundred weights.
TINY = {
    "grid_size": (1, 3),
    "feature_dim": 2,
    "vocabulary_size": 5,
    "embedding_dim": 2,
    "hidden_dim": 2,
    "attention_dim": 3,
    "initial_dim": 2,
    "dropout": 0.0,
    "mean_rate": 0.0,
    "coverage_weight": 0.0,
    "entropy_weight": 0.0,
    "reinforce_weight": 1.0,
}


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def hard(**options):
    return create(CASE, **{"dropout": 0.0, **options})


def test_contexts_are_those_of_the_places_that_were_drawn():
    model = hard(mean_rate=0.5)
    inputs = inputs_for(model, batch=17, target=T)
    found = numpy(model(inputs, training=True))
    teller = reference.ShowAttendTell(model)
    drawn = 0
    for row in range(17):
        places, scores = (
            found[name][row, 0] for name in ("places", "attention_scores")
        )
        logits, alphas = teller.tell(
            inputs["features"][row],
            inputs["decoder_token_ids"][row],
            lambda step, alpha, places=places: places[step],
        )
        close(scores, alphas)
        close(found["outputs"][row], logits)
        if np.array_equal(places, scores):
            continue  # Soft attention, for the whole caption.
        drawn += 1
        np.testing.assert_array_equal(np.sort(places, axis=1), [[0] * 5 + [1]] * T)
    assert 2 < drawn < 15


@pytest.mark.parametrize(("rate", "share"), [(0.0, 1.0), (0.9, 0.1)])
def test_the_share_of_images_that_are_averaged(rate, share):
    model = hard(mean_rate=rate)
    inputs = inputs_for(model, batch=200)
    places = numpy(model(inputs, training=True))["places"]
    close((places.max(-1) == 1).all((1, 2)).mean(), share, atol=0.07)


def test_places_are_drawn_with_their_probabilities():
    model = hard(mean_rate=0.0)
    row = {name: value[:1] for name, value in inputs_for(model, target=1).items()}
    inputs = {name: np.repeat(value, 4000, axis=0) for name, value in row.items()}
    found = numpy(model(inputs, training=True))
    probabilities = found["attention_scores"][0, 0, 0]
    deviation = np.sqrt(probabilities * (1 - probabilities) / 4000)
    difference = np.abs(found["places"][:, 0, 0].mean(0) - probabilities)
    assert (difference < 4 * deviation + 1e-6).all()
    assert deviation.max() > 0.003


def test_the_seed_decides():
    found = []
    for seed in (1, 1, 2):
        model = hard(seed=seed, mean_rate=0.0)
        inputs = inputs_for(model, batch=31)
        calls = [numpy(model(inputs, training=True))["places"] for _ in range(2)]
        # Each call draws anew.
        assert np.abs(calls[0] - calls[1]).max() == 1
        found.append(calls)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0][0] - found[2][0]).max() == 1


@pytest.mark.parametrize("inference", ["mean", "most_probable"])
def test_nothing_is_drawn_at_inference(inference):
    model = hard(inference=inference)
    inputs = inputs_for(model)

    def choose(step, alpha):
        return alpha if inference == "mean" else np.eye(len(alpha))[alpha.argmax()]

    teller = reference.ShowAttendTell(model)
    rows = zip(inputs["features"], inputs["decoder_token_ids"], strict=True)
    expected = np.array([teller.tell(*row, choose)[0] for row in rows])
    for _ in range(2):
        close(logits_of(model, inputs), expected)


def test_the_loss_is_that_of_the_words_with_the_places_drawn():
    model = hard(coverage_weight=0.3, entropy_weight=0.2)
    inputs = inputs_for(model)
    weights = np.array([[1, 1, 1], [1, 0, 0]], "float32")
    # The same seed, drawn from by the first call of each.
    outputs = numpy(hard()(inputs, training=True))
    is_real = weights[..., None]
    scores = outputs["attention_scores"][:, 0] * is_real
    likelihood = np.array(
        [
            (reference.log_likelihood(logits, labels) * weight).sum()
            for logits, labels, weight in zip(
                outputs["outputs"].astype("float64"), LABELS, weights, strict=True
            )
        ]
    )
    expected = -likelihood.sum() / weights.sum()
    coverage = np.array([reference.coverage(alphas) for alphas in scores])
    entropy = -np.where(scores > 0, scores * np.log(scores + (scores == 0)), 0).sum()
    expected += (0.3 * coverage.sum() - 0.2 * entropy) / weights.sum()
    model.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
    # The locations are drawn for the rows in their order.
    options = {"sample_weight": weights, "shuffle": False, "verbose": 0}
    history = model.fit(inputs, LABELS, B, **options).history
    close(history["loss"], expected)
    close(history["coverage"], coverage.mean())
    # `create` gives a model a random baseline, as all weights.
    before, after = (
        numpy(x.get_layer("attention_objective").baseline) for x in (hard(), model)
    )
    close(after, 0.9 * before + 0.1 * likelihood.mean())


def expected_gradients(model, inputs, labels):
    """The gradient of the expected log-likelihood by central differences."""
    trainable, step = model.trainable_weights, 1e-3
    gradients = []
    for weight in trainable:
        start = numpy(weight).copy()
        gradient = np.zeros(start.shape)
        for index in np.ndindex(*start.shape):
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[index] += sign * step
                weight.assign(moved)
                ends.append(
                    reference.ShowAttendTell(model).expected_log_likelihood(
                        inputs["features"][0], inputs["decoder_token_ids"][0], labels
                    )
                )
            gradient[index] = (ends[0] - ends[1]) / (2 * step)
        weight.assign(start)
        gradients.append(gradient)
    return gradients


def test_the_estimated_gradient_is_the_exact_one_on_average():
    """All sequences of locations are enumerated."""
    model = randomize(build(CASE, **TINY), scale=0.9)
    model.get_layer("attention_objective").baseline.assign(-2.0)
    inputs = {
        "features": np.random.default_rng(1).normal(size=(1, 1, 3, 2)),
        "decoder_token_ids": np.array([[1, 3]], "int32"),
    }
    inputs["features"] = inputs["features"].astype("float32")
    labels = np.array([3, 2], "int32")
    exact = expected_gradients(model, inputs, labels)
    # Steps of the size 1 move the weights by an estimate of the mean over 500 draws.
    rows, estimates = 500, []
    many = {name: np.repeat(value, rows, axis=0) for name, value in inputs.items()}
    model.compile(keras.optimizers.SGD(1.0), loss=SmoothedCrossEntropy())
    start = [numpy(weight).copy() for weight in model.trainable_weights]
    for _ in range(40):
        model.get_layer("attention_objective").baseline.assign(-2.0)
        model.train_on_batch(many, np.repeat(labels[None], rows, axis=0))
        moved = [numpy(weight) for weight in model.trainable_weights]
        # The loss is per word, of which there are two.
        estimates.append([2 * (m - s) for m, s in zip(moved, start, strict=True)])
        for weight, value in zip(model.trainable_weights, start, strict=True):
            weight.assign(value)
    for number, weight in enumerate(model.trainable_weights):
        values = np.stack([each[number] for each in estimates])
        error = values.std(0, ddof=1) / np.sqrt(len(values))
        difference = np.abs(values.mean(0) - exact[number])
        # 100 weights: the largest of as many normal errors is 2.6 on average.
        assert (difference < 4.5 * error + 3e-4).all(), weight.path
        if "attention/" in weight.path:
            assert np.abs(exact[number]).max() > 0.01
            assert error.max() < 0.3 * np.abs(exact[number]).max()


def test_a_row_of_soft_attention_learns_by_its_gradient_alone():
    """Without draws the terms of REINFORCE have no gradient."""
    found = []
    for weight in (0.0, 5.0):
        model = hard(mean_rate=0.999999, reinforce_weight=weight, coverage_weight=0.0)
        inputs = inputs_for(model)
        model.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
        model.fit(inputs, LABELS, B, verbose=0)
        found.append([numpy(weight) for weight in model.trainable_weights])
    for one, other in zip(*found, strict=True):
        close(one, other, atol=1e-6)


@pytest.mark.parametrize("dtype_policy", ["mixed_bfloat16"], indirect=True)
def test_fits_with_xla_and_half_precision(dtype_policy):
    model = hard(mean_rate=0.0)
    inputs = inputs_for(model)
    model.compile("sgd", loss=SmoothedCrossEntropy(), jit_compile=True)
    history = model.fit(inputs, LABELS, B, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    places = numpy(ops.cast(model(inputs, training=True)["places"], "float32"))
    np.testing.assert_array_equal(places.sum(-1), np.ones((B, 1, T)))


def test_other_labels_are_refused():
    model = hard()
    inputs = inputs_for(model)
    labels = np.zeros((B, T, V), "float32")
    model.compile("sgd", loss="mse", run_eagerly=True)
    with pytest.raises(ValueError, match=r"`y` must be the words \(batch, length\) as"):
        model.fit(inputs, labels, B, verbose=0)


_TWO_DEVICES = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, devices)
import keras, numpy as np
from model_cases import create, inputs_for
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = create("caption_show_attend_tell-hard")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
inputs = inputs_for(model, batch=4)
labels = np.arange(12).reshape(4, 3) % 7
model.fit(inputs, labels, batch_size=4, verbose=0)
baseline = model.get_layer("attention_objective").baseline
print(*[float(each) for each in baseline.value.values])
"""


@pytest.mark.runs
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="`tf.distribute` is TensorFlow's"
)
def test_two_devices_have_one_baseline():
    one, other = map(float, run_python("-c", _TWO_DEVICES).split()[-2:])
    assert one == other < 0
