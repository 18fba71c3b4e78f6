"""A loss that a model computes itself, in addition to or instead of `compile`'s."""

from typing import Any

import keras

from keras_attn.models.parts.functional import Functional


class OwnLossModel(Functional):
    """A functional model whose `compute_loss` is all that it learns.

    `compile` takes no loss, because the model would not use it.
    """

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, *args, **kwargs):
        """Configures training as `keras.Model.compile` does.

        Args:
            optimizer: As in Keras.
            loss: None or `"auto"`.
            *args: The arguments after `loss`, as in Keras.
            **kwargs: The same by name.

        Raises:
            ValueError: If there is a loss.
        """
        if not (loss is None or (isinstance(loss, str) and loss == "auto")):
            raise ValueError(
                f"`loss` must be left out: a {type(self).__name__} computes its loss "
                f"itself, and would not use another. Received: loss={loss!r}"
            )
        super().compile(optimizer, None, *args, **kwargs)

    # Keras calls its own only if `compile` is its own.
    def compile_from_config(self, config: Any):
        """Compiles a loaded model as it was when it was saved."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)


def adds_compiled_loss(model: keras.Model, y: Any) -> bool:
    """Whether the loss of `compile` is added to the model's own: if there are labels.

    Args:
        model: The model.
        y: The labels of a batch, or None.

    Raises:
        ValueError: If `compile` has a loss and labels are missing.
    """
    if y is None and model.loss is not None:
        raise ValueError(
            f"`y` must have the labels of the loss given to `compile`. A "
            f"{type(model).__name__} computes its loss itself: to learn only from "
            f"that, compile without `loss`. Received: y=None, loss={model.loss!r}"
        )
    return y is not None
