"""Adversarial training: the losses, and that both networks learn.

The networks have what training must keep in step, moving means and vectors of spectral
norms, and little else. SAGAN's own are fitted in the contract of models.
"""

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from keras import layers, ops
from model_cases import numpy

from keras_attn.layers import ConditionalBatchNormalization, SpectralNormalization
from keras_attn.losses import hinge_discriminator_loss, hinge_generator_loss
from keras_attn.training import AdversarialTrainer

pytestmark = pytest.mark.compiled

skip_module_without_tensorflow("it needs the TensorFlow backend")

CLASSES = 3
LATENT = 13


def new_generator():
    noise = keras.Input((LATENT,), name="noise")
    labels = keras.Input((), dtype="int32", name="labels")
    maps = layers.Reshape((8, 8, 5))(layers.Dense(8 * 8 * 5)(noise))
    maps = ops.relu(ConditionalBatchNormalization(CLASSES)(maps, labels))
    convolution = SpectralNormalization(
        layers.Conv2D(3, 3, padding="same", use_bias=False)
    )
    images = ops.tanh(convolution(layers.UpSampling2D(2)(maps)))
    return keras.Model({"noise": noise, "labels": labels}, images)


def new_discriminator():
    images = keras.Input((16, 16, 3), name="images")
    labels = keras.Input((), dtype="int32", name="labels")
    maps = SpectralNormalization(layers.Conv2D(7, 4, strides=4, use_bias=False))(images)
    features = layers.Flatten()(ops.relu(maps))
    classes = layers.Embedding(CLASSES, features.shape[-1])(labels)
    scores = layers.Dense(1, use_bias=False)(features) + layers.Dot(-1)(
        [features, classes]
    )
    return keras.Model({"images": images, "labels": labels}, scores)


def make(**options):
    keras.utils.set_random_seed(1)
    return AdversarialTrainer(new_generator(), new_discriminator(), seed=2, **options)


def data(count=16):
    """Images whose upper half is white and lower half black."""
    images = np.ones((count, 16, 16, 3), "float32")
    images[:, 8:] = -1
    return images, np.arange(count) % CLASSES


def test_the_hinge_losses():
    real, fake = np.array([[2.0], [0.5]]), np.array([[-3.0], [0.25]])
    assert float(hinge_discriminator_loss(real, fake)) == pytest.approx(0.25 + 0.625)
    assert float(hinge_generator_loss(fake)) == pytest.approx(1.375)


def networks(trainer):
    return trainer.generator, trainer.discriminator


@pytest.fixture(scope="module")
def trained():
    """A fit in a graph: the history, and weights and contrast before and after it.

    The contrast is that of generated images between their upper and lower halves.
    """
    trainer = make(discriminator_steps=2)
    trainer.compile(
        keras.optimizers.Adam(1e-2, beta_1=0.0),
        keras.optimizers.Adam(1e-2, beta_1=0.0),
    )
    images, labels = data(64)
    noise = np.random.default_rng(0).normal(size=(8, LATENT)).astype("float32")

    def state():
        weights = [[numpy(w) for w in m.trainable_weights] for m in networks(trainer)]
        generated = numpy(trainer({"noise": noise, "labels": labels[:8]}))
        return weights, generated[:, :8].mean() - generated[:, 8:].mean()

    before = state()
    fit = trainer.fit(images, labels, batch_size=16, epochs=20, verbose=0)
    return fit.history, before, state()


def assert_moved(after, before):
    """All weights of both networks changed."""
    for weights, initial in zip(after, before, strict=True):
        for now, was in zip(weights, initial, strict=True):
            assert np.any(now != was)


def test_both_networks_are_updated(trained):
    history, (before, _), (after, _) = trained
    assert set(history) == {"generator_loss", "discriminator_loss"}
    assert np.isfinite(list(history.values())).all()
    assert_moved(after, before)


def test_two_steps_update_both_networks():
    """With the default optimizers and XLA."""
    trainer = make()
    trainer.compile(jit_compile=True)
    before = [weights_of(model) for model in networks(trainer)]
    trainer.fit(*data(8), batch_size=4, verbose=0)
    assert_moved([weights_of(model) for model in networks(trainer)], before)


def test_the_generator_learns_from_the_discriminator(trained):
    _, (_, before), (_, after) = trained
    # In real images the halves differ by 2.
    assert after > before + 1


def test_the_discriminator_learns_four_times_as_fast():
    trainer = make()
    trainer.compile()
    rates = [
        float(optimizer.learning_rate)
        for optimizer in (trainer.generator_optimizer, trainer.discriminator_optimizer)
    ]
    assert rates == pytest.approx([1e-4, 4e-4])
    assert trainer.generator_optimizer.beta_1 == 0


def test_networks_with_other_inputs_are_refused():
    generator, discriminator = new_generator(), new_discriminator()
    with pytest.raises(ValueError, match="`generator` must have .*'labels', 'noise'"):
        AdversarialTrainer(discriminator, discriminator)
    with pytest.raises(ValueError, match="`discriminator` must have .*'images'"):
        AdversarialTrainer(generator, generator)
    with pytest.raises(ValueError, match="`discriminator_steps` must be a positive"):
        AdversarialTrainer(generator, discriminator, discriminator_steps=0)


def weights_of(model):
    return [numpy(weight) for weight in model.weights]


def test_evaluation_does_not_update():
    trainer = make()
    trainer.compile(run_eagerly=True)
    images, labels = data(7)
    before = weights_of(trainer)
    found = trainer.evaluate(images, labels, batch_size=4, verbose=0, return_dict=True)
    again = trainer.evaluate(images, labels, batch_size=4, verbose=0, return_dict=True)
    assert found == again
    for ours, theirs in zip(weights_of(trainer), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    seeds = keras.random.SeedGenerator(2)
    discriminator = generator = 0.0
    for rows in (slice(0, 4), slice(4, 7)):
        count = len(labels[rows])
        classes = keras.ops.convert_to_tensor(labels[rows])
        noise = keras.random.normal((count, LATENT), seed=seeds)
        generated = trainer({"noise": noise, "labels": classes}, training=False)
        real, fake = (
            trainer.discriminator({"images": x, "labels": classes}, training=False)
            for x in (keras.ops.convert_to_tensor(images[rows]), generated)
        )
        discriminator += count * float(hinge_discriminator_loss(real, fake)) / 7
        generator += count * float(hinge_generator_loss(fake)) / 7
    assert found["discriminator_loss"] == pytest.approx(discriminator, rel=1e-5)
    assert found["generator_loss"] == pytest.approx(generator, rel=1e-5, abs=1e-6)


def test_validation_does_not_affect_training():
    histories = []
    for validation in (None, data(3)):
        trainer = make()
        trainer.compile(run_eagerly=True)
        histories.append(
            trainer.fit(
                *data(4),
                batch_size=4,
                epochs=2,
                shuffle=False,
                validation_data=validation,
                verbose=0,
            ).history
        )
    plain, validated = histories
    assert np.isfinite(validated.pop("val_generator_loss")).all()
    assert np.isfinite(validated.pop("val_discriminator_loss")).all()
    assert plain == validated


def test_it_is_saved_with_its_optimizers(tmp_path):
    trainer = make(discriminator_steps=2)
    fast = keras.optimizers.Adam(1e-3, beta_1=0.5)
    trainer.compile(discriminator_optimizer=fast, run_eagerly=True)
    trainer.fit(*data(4), batch_size=4, shuffle=False, verbose=0)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.saving.load_model(tmp_path / "trainer.keras")
    assert loaded.discriminator_steps == 2 and loaded.seed == 2
    for name in ("generator_optimizer", "discriminator_optimizer"):
        ours, theirs = getattr(loaded, name), getattr(trainer, name)
        assert ours.get_config() == theirs.get_config()
        for one, other in zip(ours.variables, theirs.variables, strict=True):
            np.testing.assert_array_equal(numpy(one), numpy(other))
    for ours, theirs in zip(weights_of(loaded), weights_of(trainer), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    found = loaded.evaluate(*data(5), verbose=0)
    assert found == pytest.approx(trainer.evaluate(*data(5), verbose=0), rel=1e-5)
    uncompiled = make()
    uncompiled.save(tmp_path / "uncompiled.keras")
    keras.saving.load_model(tmp_path / "uncompiled.keras")


def test_losses_are_scaled_in_float16(set_policy):
    set_policy("mixed_float16")
    trainer = make()
    plain = keras.optimizers.SGD(1e-3)
    trainer.compile(plain, run_eagerly=True)
    scaled = keras.optimizers.LossScaleOptimizer
    optimizers = (trainer.generator_optimizer, trainer.discriminator_optimizer)
    assert all(isinstance(optimizer, scaled) for optimizer in optimizers)
    before = [numpy(weight) for weight in trainer.generator.trainable_weights]
    # Steps that overflow are skipped, and halve the scale.
    history = trainer.fit(*data(4), batch_size=4, epochs=4, verbose=0).history
    assert int(plain.iterations) >= 1
    # Logged losses and applied gradients are unscaled: 4,096 times larger gradients
    # would change the weights by more.
    assert np.abs(list(history.values())).max() < 1e3
    moved = [
        np.abs(numpy(now) - was).max()
        for now, was in zip(trainer.generator.trainable_weights, before, strict=True)
    ]
    assert 0 < max(moved) < 0.5
    trainer.compile(auto_scale_loss=False)
    assert not isinstance(trainer.generator_optimizer, scaled)
