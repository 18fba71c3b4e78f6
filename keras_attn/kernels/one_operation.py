"""A function of several operations as one node of a functional model."""

import functools
from collections.abc import Callable

import keras


def one_operation(function: Callable) -> Callable:
    """Makes a function one operation of a functional model, named after the function.

    Without it `model.summary()` and `plot_model` have a row for each line of the
    function, such as eight for the positions of tokens. Outside of functional models
    nothing changes.

    Args:
        function: Of tensors, each a positional argument, to one tensor. A saved model
            has its name, so that it must stay as it is.
    """
    operation = type(
        "".join(word.capitalize() for word in function.__name__.split("_")),
        (keras.Operation,),
        {
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "call": lambda self, *tensors: function(*tensors),
        },
    )
    keras.saving.register_keras_serializable("keras_attn")(operation)

    @functools.wraps(function)
    def apply(*tensors):
        is_symbolic = any(keras.backend.is_keras_tensor(tensor) for tensor in tensors)
        return (operation() if is_symbolic else function)(*tensors)

    return apply
