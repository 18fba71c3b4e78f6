import keras
import numpy as np
import pytest

from keras_attn.losses.cross_entropy import (
    SmoothedCrossEntropy,
    smoothed_cross_entropy,
)

B, T, V = 3, 5, 7
PAD = 2


def batch(seed=0, low=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(B, T, V)).astype("float32") * 2
    labels = rng.integers(low, V, (B, T)).astype("int32")
    labels[0, 3:] = labels[2, 0] = PAD
    return labels, logits


def wanted_distribution(label, epsilon, pad):
    """The smoothed distribution of a target, class by class."""
    classes = [k for k in range(V) if k != pad]
    q = np.zeros(V)
    for k in classes:
        q[k] = epsilon / len(classes)
    q[label] += 1 - epsilon
    return q


def log_softmax(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def expected(labels, logits, epsilon, pad):
    logs = log_softmax(logits)
    q = [[wanted_distribution(label, epsilon, pad) for label in row] for row in labels]
    return -(np.array(q) * logs).sum(-1)


@pytest.mark.parametrize("pad", [None, PAD])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_the_loss_of_each_target(epsilon, pad):
    labels, logits = batch()
    options = {"label_smoothing": epsilon, "pad_token_id": pad}
    given = smoothed_cross_entropy(labels, logits, **options)
    wanted = expected(labels, logits, epsilon, pad)
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)
    probabilities = np.exp(log_softmax(logits)).astype("float32")
    given = smoothed_cross_entropy(labels, probabilities, from_logits=False, **options)
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-5)


def test_without_padding_it_equals_keras_with_one_hot_targets():
    labels, logits = batch()
    theirs = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1
    )(np.eye(V)[labels], logits)
    ours = SmoothedCrossEntropy(0.1)(labels, logits)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)


def test_the_mean_is_over_real_targets():
    labels, logits = batch()
    losses = expected(labels, logits, 0.1, PAD)
    real = labels != PAD
    loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)
    assert float(loss(labels, logits)) == pytest.approx(losses[real].mean(), rel=1e-5)
    weights = np.random.default_rng(1).random((B, T)).astype("float32")
    counted = weights * real
    mean = (counted * losses).sum() / counted.sum()
    assert float(loss(labels, logits, weights)) == pytest.approx(mean, rel=1e-5)
    rows = weights[:, 0]
    counted = rows[:, None] * real
    mean = (counted * losses).sum() / counted.sum()
    assert float(loss(labels, logits, rows)) == pytest.approx(mean, rel=1e-5)


def test_more_padding_changes_nothing():
    labels, logits = batch()
    loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)
    longer = np.pad(labels, [[0, 0], [0, 4]], constant_values=PAD)
    more = np.concatenate([logits, 9 * np.ones((B, 4, V), "float32")], axis=1)
    assert float(loss(longer, more)) == pytest.approx(float(loss(labels, logits)))
    weighted = SmoothedCrossEntropy(0.1)
    weights = (longer != PAD).astype("float32")
    real = expected(labels, logits, 0.1, None)[labels != PAD].mean()
    assert float(weighted(longer, more, weights)) == pytest.approx(real, rel=1e-5)


def test_padding_alone_has_loss_zero():
    labels, logits = batch()
    loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)
    assert float(loss(np.full_like(labels, PAD), logits)) == 0.0


@pytest.mark.parametrize("reduction", ["none", "sum", "sum_over_batch_size"])
def test_other_reductions_of_keras(reduction):
    labels, logits = batch()
    loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD, reduction=reduction)
    losses = expected(labels, logits, 0.1, PAD) * (labels != PAD)
    wanted = {"none": losses, "sum": losses.sum(), "sum_over_batch_size": losses.mean()}
    np.testing.assert_allclose(
        loss(labels, logits), wanted[reduction], rtol=1e-5, atol=1e-6
    )


def test_large_ids_and_large_logits_in_float16():
    # float16 cannot hold 60,001, and the loss casts labels too.
    vocabulary = 60_007
    logits = np.zeros((1, 2, vocabulary), "float16")
    logits[0, :, 60_001] = 30_000
    keras.config.set_floatx("float16")
    try:
        loss = SmoothedCrossEntropy(reduction="none")
        losses = np.asarray(loss(np.array([[60_001, 60_002]]), logits))
    finally:
        keras.config.set_floatx("float32")
    assert losses.dtype == "float32"
    np.testing.assert_allclose(losses, [[0, 30_000]], atol=1e-3)


def test_it_is_serialised():
    loss = SmoothedCrossEntropy(
        0.1, pad_token_id=PAD, from_logits=False, reduction="sum", name="other"
    )
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is SmoothedCrossEntropy
    assert again.get_config() == loss.get_config()
    assert again.reduction == "sum" and again.name == "other"


@pytest.mark.compiled
@pytest.mark.parametrize(
    "policy, jit_compile",
    [("float32", True), ("mixed_bfloat16", False), ("mixed_float16", True)],
)
def test_a_model_learns(policy, jit_compile, tmp_path):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input((T,), dtype="int32")
        hidden = keras.layers.Embedding(V, 11)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(V)(hidden))
        loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)
        model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=jit_compile)
        labels = np.random.default_rng(3).integers(0, V, (B, T))
        labels[0, 3:] = PAD
        losses = model.fit(labels, labels, epochs=30, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    # The minimum is the entropy of the smoothed distribution.
    q = wanted_distribution(0, 0.1, PAD)
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    assert entropy - 1e-2 < losses[-1] < 0.6 * losses[0]
    if policy == "float32":
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert type(loaded.loss) is SmoothedCrossEntropy
        loaded.run_eagerly = model.run_eagerly = True  # Quicker than compiling.
        assert loaded.evaluate(labels, labels, verbose=0) == pytest.approx(
            model.evaluate(labels, labels, verbose=0), rel=1e-5
        )


def test_gradients():
    tf = pytest.importorskip("tensorflow")
    labels, logits = batch()
    tensor = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)(labels, tensor)
    gradient = tape.gradient(loss, tensor).numpy()
    assert not gradient[labels == PAD].any()
    # d/dlogits = p - q, over the number of real targets.
    p = np.exp(log_softmax(logits))
    q = np.array(
        [[wanted_distribution(label, 0.1, PAD) for label in row] for row in labels]
    )
    real = labels != PAD
    np.testing.assert_allclose(
        gradient[real], ((p - q) / real.sum())[real], rtol=1e-4, atol=1e-7
    )


def test_invalid_arguments_are_refused():
    labels, logits = batch()
    with pytest.raises(ValueError, match=r"one axis more.*shape=\(3, 5, 1\), pred"):
        SmoothedCrossEntropy()(labels[..., None], logits)
    with pytest.raises(ValueError, match="`label_smoothing` must be a probability"):
        SmoothedCrossEntropy(1.0)
    for wrong in (-1, 0.5, True):
        with pytest.raises(ValueError, match="`pad_token_id` must be a token's id"):
            SmoothedCrossEntropy(pad_token_id=wrong)


def test_a_weight_may_be_one_of_a_row():
    """Σ w·loss / Σ w over the targets, whatever the axes of the weights."""
    labels = np.array([[1, 2, 0], [2, 1, 1]])
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    losses = np.asarray(SmoothedCrossEntropy(reduction="none")(labels, logits))
    weights = np.array([1.0, 3.0], "float32")
    expected = np.average(losses, weights=np.repeat(weights[:, None], 3, axis=1))
    for given in (weights, weights[:, None]):
        loss = SmoothedCrossEntropy()(labels, logits, given)
        assert float(loss) == pytest.approx(expected, rel=1e-6)
