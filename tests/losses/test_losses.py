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
    counted = weights[:, :1] * real
    mean = (counted * losses).sum() / counted.sum()
    for rows in (weights[:, 0], weights[:, :1]):
        assert float(loss(labels, logits, rows)) == pytest.approx(mean, rel=1e-5)


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


@pytest.mark.compiled
@pytest.mark.parametrize(
    "policy, jit_compile",
    [("float32", True), ("mixed_bfloat16", False), ("mixed_float16", True)],
)
def test_a_model_learns(policy, jit_compile, tmp_path, set_policy):
    keras.utils.set_random_seed(1)
    set_policy(policy)
    inputs = keras.Input((T,), dtype="int32")
    hidden = keras.layers.Embedding(V, 11)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(V)(hidden))
    loss = SmoothedCrossEntropy(0.1, pad_token_id=PAD)
    model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=jit_compile)
    labels = np.random.default_rng(3).integers(0, V, (B, T))
    labels[0, 3:] = PAD
    losses = model.fit(labels, labels, epochs=30, verbose=0).history["loss"]
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
