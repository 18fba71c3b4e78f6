"""A generator against a discriminator: the hinge losses, and a step of both.

Legend: B batch.
"""

import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.kernels.runtime import require_tensorflow


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


@keras.saving.register_keras_serializable("keras_attn")
class AdversarialTrainer(keras.Model):
    """Fits a generator and a discriminator to images, a step of each in turn.

    The discriminator learns four times as fast as the generator (a "two time-scale
    update"), by Adam without momentum. `evaluate` and `validation_data` give the same
    two losses without a step, of noise that is the same each time. Where a network
    computes in float16, its loss is scaled. On TensorFlow alone.

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
        trainer.save("trainer.keras")  # To train on.
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
        require_tensorflow("`AdversarialTrainer`")
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
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        # Its own, so that validation changes nothing of the training.
        self.evaluation_seed_generator = keras.random.SeedGenerator(seed)
        self._evaluation_start = keras.ops.convert_to_numpy(
            self.evaluation_seed_generator.state
        )
        self._losses_of = {
            name: keras.metrics.Mean(name=f"{name}_loss")
            for name in ("generator", "discriminator")
        }
        self.built = True  # As both networks are.

    def compile(
        self,
        generator_optimizer=None,
        discriminator_optimizer=None,
        *,
        auto_scale_loss=True,
        **kwargs,
    ):
        """Takes an optimizer for each.

        Args:
            generator_optimizer: Default: Adam at 0.0001, with β of 0 and 0.9.
            discriminator_optimizer: Default: the same at 0.0004.
            auto_scale_loss: Whether the optimizer of a network that computes in
                float16 is wrapped in a `LossScaleOptimizer`, as by Keras.
            **kwargs: As for `keras.Model.compile`, but for losses and optimizer.
        """
        super().compile(optimizer=None, **kwargs)
        rates = {"generator": 1e-4, "discriminator": 4e-4}
        made = []
        for name, network, given in (
            ("generator", self.generator, generator_optimizer),
            ("discriminator", self.discriminator, discriminator_optimizer),
        ):
            optimizer = keras.optimizers.get(
                given or keras.optimizers.Adam(rates[name], beta_1=0.0, beta_2=0.9)
            )
            scaling = keras.optimizers.LossScaleOptimizer
            in_float16 = any(
                layer.compute_dtype == "float16" for layer in network.layers
            )
            if auto_scale_loss and in_float16 and not isinstance(optimizer, scaling):
                optimizer = scaling(optimizer)
            if not optimizer.built:
                optimizer.build(network.trainable_variables)
            made.append(optimizer)
        self.generator_optimizer, self.discriminator_optimizer = made

    def get_compile_config(self):
        """What `compile_from_config` takes."""
        if not self.compiled:
            return None
        optimizers = (self.generator_optimizer, self.discriminator_optimizer)
        return {"optimizers": [keras.optimizers.serialize(each) for each in optimizers]}

    def compile_from_config(self, config):
        """Compiles with optimizers like those of `get_compile_config`."""
        self.compile(*map(keras.optimizers.deserialize, config["optimizers"]))

    def get_config(self):
        """What the constructor takes."""
        networks = {"generator": self.generator, "discriminator": self.discriminator}
        return {
            **super().get_config(),
            **{
                name: keras.saving.serialize_keras_object(network)
                for name, network in networks.items()
            },
            "discriminator_steps": self.discriminator_steps,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """A trainer from what `get_config` gave."""
        config = dict(config)
        networks = [
            keras.saving.deserialize_keras_object(
                config.pop(name), custom_objects=custom_objects
            )
            for name in ("generator", "discriminator")
        ]
        return cls(*networks, **config)

    @property
    def metrics(self):
        """The mean losses of an epoch."""
        return list(self._losses_of.values())

    def reset_metrics(self):
        """Begins the losses and the noise of an evaluation anew."""
        super().reset_metrics()
        self.evaluation_seed_generator.state.assign(self._evaluation_start)

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

    def test_step(self, data):
        """The losses of a batch as it is, without a step."""
        images, labels = data
        drawn = self._draw(labels, self.evaluation_seed_generator, training=False)
        real, fake = (
            self._score(given, labels, training=False) for given in (images, drawn)
        )
        self._log("discriminator", hinge_discriminator_loss(real, fake), labels)
        self._log("generator", hinge_generator_loss(fake), labels)
        return {metric.name: metric.result() for metric in self.metrics}

    def _log(self, name, loss, labels):
        # By its images: the last batch may have less.
        self._losses_of[name].update_state(loss, sample_weight=ops.shape(labels)[0])

    def _draw(self, labels, seed_generator, training=True):
        (shape,) = (x.shape for x in self.generator.inputs if x.name == "noise")
        size = (ops.shape(labels)[0], shape[1])
        noise = keras.random.normal(size, dtype="float32", seed=seed_generator)
        return self.generator({"noise": noise, "labels": labels}, training=training)

    def _score(self, images, labels, training=True):
        inputs = {"images": images, "labels": labels}
        return ops.cast(self.discriminator(inputs, training=training), "float32")

    def _discriminate(self, images, labels):
        drawn = ops.stop_gradient(self._draw(labels, self.seed_generator))

        def loss():
            real, fake = self._score(images, labels), self._score(drawn, labels)
            return hinge_discriminator_loss(real, fake)

        value = _step(self.discriminator, self.discriminator_optimizer, loss)
        self._log("discriminator", value, labels)

    def _generate(self, labels):
        def loss():
            drawn = self._draw(labels, self.seed_generator)
            return hinge_generator_loss(self._score(drawn, labels))

        value = _step(self.generator, self.generator_optimizer, loss)
        self._log("generator", value, labels)


def _step(network, optimizer, loss):
    """One step of a network down a loss, a function; returns the loss."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss()
        scaled = optimizer.scale_loss(value)
    weights = network.trainable_weights
    gradients = tape.gradient(scaled, [weight.value for weight in weights])
    optimizer.apply(gradients, weights)
    return value
