"""Adversarial training of a generator and a discriminator.

Legend: B batch.
"""

import keras
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.kernels.replicas import mean_loss
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.losses.adversarial import hinge_discriminator_loss, hinge_generator_loss


@keras.saving.register_keras_serializable("keras_attn")
class AdversarialTrainer(keras.Model):
    """Trains a generator and a discriminator by alternating steps.

    The discriminator learns four times as fast as the generator (the "two time-scale
    update rule"), both by Adam without momentum. `evaluate` and `validation_data`
    compute the same two losses without an update, each time from the same noise. In
    float16 the loss is scaled. Needs the TensorFlow backend.

    Args:
        generator: A model from `noise` (B, latent) and `labels` (B,) to images.
        discriminator: A model from `images` and `labels` to scores (B, 1).
        discriminator_steps: Discriminator steps per generator step.
        seed: Seed of the noise.
        **kwargs: `name`, … of a Keras model.

    Raises:
        ValueError: If the generator or discriminator does not have these inputs.
        RuntimeError: If the Keras backend is not TensorFlow.

    Example:
        ```python
        from keras_attn import models, training

        sizes = {"image_size": 16, "base_dim": 8, "attention_size": 8, "num_classes": 3}
        generator = models.build_sagan_generator(**sizes)
        judge = models.build_sagan_discriminator(**sizes)
        trainer = training.AdversarialTrainer(generator, judge)
        trainer.compile()  # Then `fit(images, labels)`.
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
        # Separate, so that validation does not affect training.
        self.evaluation_seed_generator = keras.random.SeedGenerator(seed)
        self._evaluation_start = ops.convert_to_numpy(
            self.evaluation_seed_generator.state
        )
        self._mean_losses = {
            name: keras.metrics.Mean(name=f"{name}_loss")
            for name in ("generator", "discriminator")
        }
        self.built = True  # Both networks are built.

    def compile(
        self,
        generator_optimizer=None,
        discriminator_optimizer=None,
        *,
        auto_scale_loss=True,
        **kwargs,
    ):
        """Sets the optimizers.

        Args:
            generator_optimizer: Default: Adam at 0.0001, with β₁ = 0 and β₂ = 0.9.
            discriminator_optimizer: Default: the same at 0.0004.
            auto_scale_loss: Whether to wrap the optimizer of a network that computes in
                float16 in a `LossScaleOptimizer`, as Keras does.
            **kwargs: Arguments of `keras.Model.compile` other than losses and
                optimizer.
        """
        super().compile(optimizer=None, **kwargs)
        self.generator_optimizer = _built_optimizer(
            generator_optimizer, 1e-4, self.generator, auto_scale_loss
        )
        self.discriminator_optimizer = _built_optimizer(
            discriminator_optimizer, 4e-4, self.discriminator, auto_scale_loss
        )

    def get_compile_config(self):
        """Returns the argument of `compile_from_config`."""
        if not self.compiled:
            return None
        optimizers = (self.generator_optimizer, self.discriminator_optimizer)
        return {"optimizers": [keras.optimizers.serialize(each) for each in optimizers]}

    def compile_from_config(self, config):
        """Compiles with the optimizers of `get_compile_config`."""
        self.compile(*map(keras.optimizers.deserialize, config["optimizers"]))

    def get_config(self):
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "generator": keras.saving.serialize_keras_object(self.generator),
            "discriminator": keras.saving.serialize_keras_object(self.discriminator),
            "discriminator_steps": self.discriminator_steps,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates a trainer from the result of `get_config`."""
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
        """Mean losses of the epoch."""
        return list(self._mean_losses.values())

    def reset_metrics(self):
        """Resets the losses and the noise of the evaluation."""
        super().reset_metrics()
        self.evaluation_seed_generator.state.assign(self._evaluation_start)

    def call(self, inputs, training=None):
        """Generates images."""
        return self.generator(inputs, training=training)

    def train_step(self, data):
        """Updates the discriminator, then the generator."""
        images, labels = data
        for _ in range(self.discriminator_steps):
            self._update_discriminator(images, labels)
        self._update_generator(labels)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        """Computes the losses of a batch without an update."""
        images, labels = data
        generated = self._generate(
            labels, self.evaluation_seed_generator, training=False
        )
        real, fake = (
            self._score(given, labels, training=False) for given in (images, generated)
        )
        self._log("discriminator", hinge_discriminator_loss(real, fake), labels)
        self._log("generator", hinge_generator_loss(fake), labels)
        return {metric.name: metric.result() for metric in self.metrics}

    def _log(self, name, loss, labels):
        # Weighted by the number of images: the last batch may be smaller, and leave a
        # replica of `tf.distribute` without any.
        count = ops.shape(labels)[0]
        loss = ops.where(count > 0, loss, ops.zeros_like(loss))
        self._mean_losses[name].update_state(loss, sample_weight=count)

    def _generate(self, labels, seed_generator, training=True):
        (shape,) = (x.shape for x in self.generator.inputs if x.name == "noise")
        size = (ops.shape(labels)[0], shape[1])
        noise = keras.random.normal(size, dtype="float32", seed=seed_generator)
        return self.generator({"noise": noise, "labels": labels}, training=training)

    def _score(self, images, labels, training=True):
        inputs = {"images": images, "labels": labels}
        return ops.cast(self.discriminator(inputs, training=training), "float32")

    def _update_discriminator(self, images, labels):
        generated = ops.stop_gradient(self._generate(labels, self.seed_generator))

        def loss():
            real, fake = self._score(images, labels), self._score(generated, labels)
            return hinge_discriminator_loss(real, fake)

        self._update("discriminator", loss, labels)

    def _update_generator(self, labels):
        def loss():
            generated = self._generate(labels, self.seed_generator)
            return hinge_generator_loss(self._score(generated, labels))

        self._update("generator", loss, labels)

    def _update(self, name, compute_loss, labels):
        """Updates a network by one step of its optimizer, and logs the mean loss."""
        import tensorflow as tf

        network, optimizer = getattr(self, name), getattr(self, f"{name}_optimizer")
        rows = ops.shape(labels)[0]
        with tf.GradientTape() as tape:
            loss = compute_loss()
            # The gradients of replicas are added up.
            of_all = mean_loss(loss * ops.cast(rows, loss.dtype), rows)
            scaled = optimizer.scale_loss(of_all)
        weights = network.trainable_weights
        gradients = tape.gradient(scaled, [weight.value for weight in weights])
        optimizer.apply(gradients, weights)
        self._log(name, loss, labels)


def _built_optimizer(optimizer, default_rate, network, auto_scale_loss):
    """An optimizer for a network, with a scaled loss if it computes in float16."""
    optimizer = keras.optimizers.get(
        optimizer or keras.optimizers.Adam(default_rate, beta_1=0.0, beta_2=0.9)
    )
    scaling = keras.optimizers.LossScaleOptimizer
    in_float16 = any(layer.compute_dtype == "float16" for layer in network.layers)
    if auto_scale_loss and in_float16 and not isinstance(optimizer, scaling):
        optimizer = scaling(optimizer)
    if not optimizer.built:
        optimizer.build(network.trainable_variables)
    return optimizer
