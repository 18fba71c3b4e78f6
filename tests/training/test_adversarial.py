"""Generator against discriminator: the losses, and that both learn."""

import keras
import numpy as np
import pytest
from model_cases import TINY, numpy, tiny

from keras_attn import models
from keras_attn.training import (
    AdversarialTrainer,
    hinge_discriminator_loss,
    hinge_generator_loss,
)

if keras.backend.backend() != "tensorflow":
    pytest.skip("it fits on TensorFlow alone", allow_module_level=True)

NAMES = ("sagan_generator_128", "sagan_discriminator_128")


def make(**options):
    keras.utils.set_random_seed(1)
    pair = [models.create(name, **TINY[name]) for name in NAMES]
    return AdversarialTrainer(*pair, seed=2, **options)


def data(count=16):
    """Images that are white above and black below."""
    images = np.ones((count, 16, 16, 3), "float32")
    images[:, 8:] = -1
    return images, np.arange(count) % 3


def test_the_hinge_losses():
    real, fake = np.array([[2.0], [0.5]]), np.array([[-3.0], [0.25]])
    assert float(hinge_discriminator_loss(real, fake)) == pytest.approx(0.25 + 0.625)
    assert float(hinge_generator_loss(fake)) == pytest.approx(1.375)


def test_both_learn():
    trainer = make()
    trainer.compile()
    before = [[numpy(w) for w in m.trainable_weights] for m in pair(trainer)]
    history = trainer.fit(*data(), batch_size=8, epochs=1, verbose=0).history
    assert set(history) == {"generator_loss", "discriminator_loss"}
    assert np.isfinite(list(history.values())).all()
    for model, weights in zip(pair(trainer), before, strict=True):
        moved = [
            np.abs(numpy(now) - was).max() > 0
            for now, was in zip(model.trainable_weights, weights, strict=True)
        ]
        assert np.mean(moved) > 0.9


def pair(trainer):
    return trainer.generator, trainer.discriminator


def test_the_discriminator_finds_out_and_the_generator_follows():
    trainer = make(discriminator_steps=2)
    trainer.compile(
        keras.optimizers.Adam(2e-3, beta_1=0.0), keras.optimizers.Adam(4e-3, beta_1=0.0)
    )
    images, labels = data(64)
    noise = np.random.default_rng(0).normal(size=(8, 13)).astype("float32")
    inputs = {"noise": noise, "labels": labels[:8]}

    def contrast():
        drawn = numpy(trainer(inputs))
        return drawn[:, :8].mean() - drawn[:, 8:].mean()

    before = contrast()
    trainer.fit(images, labels, batch_size=16, epochs=12, verbose=0)
    # The real ones differ by 2 between above and below.
    assert contrast() > before + 0.3


def test_the_discriminator_is_four_times_as_fast():
    trainer = make()
    trainer.compile()
    rates = [
        float(optimizer.learning_rate)
        for optimizer in (trainer.generator_optimizer, trainer.discriminator_optimizer)
    ]
    assert rates == pytest.approx([1e-4, 4e-4])
    assert trainer.generator_optimizer.beta_1 == 0


def test_models_with_other_inputs_are_refused():
    generator, discriminator = (tiny(name) for name in NAMES)
    with pytest.raises(ValueError, match="`generator` must have .*'labels', 'noise'"):
        AdversarialTrainer(discriminator, discriminator)
    with pytest.raises(ValueError, match="`discriminator` must have .*'images'"):
        AdversarialTrainer(generator, tiny("vit_base_patch16"))
    with pytest.raises(ValueError, match="`discriminator_steps` must be a whole"):
        AdversarialTrainer(generator, discriminator, discriminator_steps=0)
