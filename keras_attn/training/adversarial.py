"""A generator against a discriminator: the hinge losses, and a step of both.

Legend: B batch.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive


def hinge_discriminator_loss(real, fake):
    """`mean(max(0, 1 - D(x))) + mean(max(0, 1 + D(G(z))))`.

    Args:
        real: Scores of real images, (B, 1).
        fake: Scores of drawn images, (B, 1).

    Returns:
        A scalar.

    Reference:
        Lim and Ye 2017 (arXiv:1705.02894); Zhang et al. 2019, equation 4
        (arXiv:1805.08318).
    """
    return ops.mean(ops.relu(1.0 - real)) + ops.mean(ops.relu(1.0 + fake))


def hinge_generator_loss(fake):
    """`-mean(D(G(z)))`, of scores (B, 1) of drawn images: a scalar."""
    return -ops.mean(fake)


class AdversarialTrainer(keras.Model):
    """Fits a generator and a discriminator to images, a step of each in turn.

    The discriminator learns four times as fast as the generator (a "two time-scale
    update"), by Adam without momentum. On TensorFlow alone.

    Args:
        generator: From `noise` (B, latent) and `labels` (B,) to images.
        discriminator: From `images` and `labels` to scores (B, 1).
        discriminator_steps: Steps of the discriminator for each of the generator.
        seed: Seed of the noise.
        **kwargs: `name`, … of a Keras model.

    Raises:
        ValueError: for a generator or discriminator with other inputs.
        RuntimeError: on another backend of Keras than TensorFlow.

    Example:
        ```python
        trainer = AdversarialTrainer(generator, discriminator)
        trainer.compile()
        trainer.fit(images, labels, batch_size=64, epochs=10)
        generator.save("generator.keras")
        ```

    Reference:
        Zhang et al. 2019, section 4 (arXiv:1805.08318); Heusel et al. 2017
        (arXiv:1706.08500).
    """

    def __init__(
        self, generator, discriminator, *, discriminator_steps=1, seed=None, **kwargs
    ):
        super().__init__(**kwargs)
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                "`AdversarialTrainer` fits on TensorFlow alone: set "
                "KERAS_BACKEND=tensorflow. "
                f"Received: backend={keras.backend.backend()!r}"
            )
        for name, model, inputs in (
            ("generator", generator, {"noise", "labels"}),
            ("discriminator", discriminator, {"images", "labels"}),
        ):
            found = {tensor.name for tensor in model.inputs}
            if found != inputs:
                raise ValueError(
                    f"`{name}` must have the inputs {sorted(inputs)}. "
                    f"Received: inputs {sorted(found)}"
                )
        self.generator = generator
        self.discriminator = discriminator
        self.discriminator_steps = check_positive(
            "discriminator_steps", discriminator_steps
        )
        self.seed_generator = keras.random.SeedGenerator(seed)
        self._losses_of = {
            name: keras.metrics.Mean(name=f"{name}_loss")
            for name in ("generator", "discriminator")
        }

    def compile(self, generator_optimizer=None, discriminator_optimizer=None, **kwargs):
        """Takes an optimizer for each.

        Args:
            generator_optimizer: Default: Adam at 0.0001, with β of 0 and 0.9.
            discriminator_optimizer: Default: the same at 0.0004.
            **kwargs: As for `keras.Model.compile`, but for losses and optimizer.
        """
        super().compile(**kwargs)
        rates = {"generator": 1e-4, "discriminator": 4e-4}
        self.generator_optimizer, self.discriminator_optimizer = (
            given or keras.optimizers.Adam(rates[name], beta_1=0.0, beta_2=0.9)
            for name, given in (
                ("generator", generator_optimizer),
                ("discriminator", discriminator_optimizer),
            )
        )

    @property
    def metrics(self):
        """The mean losses of an epoch."""
        return list(self._losses_of.values())

    def call(self, inputs, training=None):
        """What the generator draws."""
        return self.generator(inputs, training=training)

    def train_step(self, data):
        """One step of the generator, after those of the discriminator."""
        images, labels = data
        for _ in range(self.discriminator_steps):
            self._discriminate(images, labels)
        self._generate(labels)
        return {metric.name: metric.result() for metric in self.metrics}

    def _draw(self, labels):
        (shape,) = (x.shape for x in self.generator.inputs if x.name == "noise")
        size = (ops.shape(labels)[0], shape[1])
        noise = keras.random.normal(size, seed=self.seed_generator)
        return self.generator({"noise": noise, "labels": labels}, training=True)

    def _score(self, images, labels):
        return self.discriminator({"images": images, "labels": labels}, training=True)

    def _discriminate(self, images, labels):
        import tensorflow as tf

        drawn = ops.stop_gradient(self._draw(labels))
        with tf.GradientTape() as tape:
            real, fake = self._score(images, labels), self._score(drawn, labels)
            loss = hinge_discriminator_loss(real, fake)
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        self.discriminator_optimizer.apply(gradients, weights)
        self._losses_of["discriminator"].update_state(loss)

    def _generate(self, labels):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = hinge_generator_loss(self._score(self._draw(labels), labels))
        weights = self.generator.trainable_weights
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        self.generator_optimizer.apply(gradients, weights)
        self._losses_of["generator"].update_state(loss)
