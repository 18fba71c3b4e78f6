"""Several weights from one initializer, each with numbers of its own."""

import keras


def nth(initializer: keras.initializers.Initializer, index: int):
    """A copy of an initializer that draws the `index`-th weight of a layer.

    One initializer object draws the same numbers at every call, and so does a clone
    that was given a seed: two kernels of one layer would start out equal.
    """
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config["seed"] += index
    return type(initializer).from_config(config)
