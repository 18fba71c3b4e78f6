"""Fixes `keras.RematScope`, which fails for most layers in Keras 3.15 and 3.16.

Inside a `RematScope` Keras passes the arguments of a layer's call unchanged to
`tf.recompute_grad` or `jax.checkpoint`, which accept only tensors:

- `training=True`, slices and strings are not tensors. In a graph TensorFlow rejects
  keyword arguments, and JAX turns the boolean into an array, so no functional model can
  be trained in compiled mode.
- TensorFlow adds a number to every argument and computes the gradient of every output,
  which a boolean mask does not have.
- The recomputation runs in the backward pass, outside the model's call: without its
  autocast, `training` and Keras masks, and with the dropout seed and moving averages
  that the forward pass has updated. It would use a different dropout mask.

`install` replaces Keras' function with one that passes only floating-point tensors, and
restores the state of the forward pass for the recomputation.
"""

import contextlib
import copy
import functools

import keras
from keras import tree

from keras_attn.kernels.runtime import infers_shapes, is_tensorflow

# Keras' thread-local state of the enclosing calls.
_CALL_STATE = ("autocast_scope", "current_call_ctx")


def install() -> None:
    """Replaces `keras.remat`, which `RematScope` calls, on TensorFlow and JAX."""
    from keras.src import backend

    if keras.backend.backend() in ("tensorflow", "jax"):
        # Keras 3.16 has `ops` where 3.15 has `core`.
        module = backend.core if hasattr(backend, "core") else backend.ops
        module.remat = functools.partial(rematerialize, module.remat)


def rematerialize(checkpoint, function):
    """Wraps a function so that its activations are recomputed in the backward pass.

    Args:
        checkpoint: The backend's transformation of a function from tensors to a list of
            tensors.
        function: Any function, such as the `call` method of a layer.

    Returns:
        A function with the same arguments and outputs.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        layer = getattr(function, "__self__", None)
        layer = layer if isinstance(layer, keras.layers.Layer) else None
        if _runs_as_is(layer):
            return function(*args, **kwargs)
        run = _on_jax if keras.backend.backend() == "jax" else _on_tensorflow
        return run(checkpoint, function, layer, args, kwargs)

    return call


def _runs_as_is(layer):
    """Whether a call must or may keep its activations."""
    if infers_shapes():
        return True
    if isinstance(layer, keras.Model) and layer._remat_mode.mode == "full":
        return True  # Each of its layers is recomputed by itself.
    if not is_tensorflow():
        return False
    import tensorflow as tf
    from tensorflow.python.ops.control_flow_util_v2 import in_while_loop_defun

    # TensorFlow cannot differentiate `recompute_grad` in a loop: here the layer is the
    # cell of a recurrent layer, which is recomputed as a whole.
    return in_while_loop_defun(tf.compat.v1.get_default_graph())


def _on_tensorflow(checkpoint, function, layer, args, kwargs):
    arguments = tree.flatten((args, kwargs))
    floats = [index for index, value in enumerate(arguments) if _is_float(value)]
    if not floats and (layer is None or not layer.trainable_variables):
        return function(*args, **kwargs)  # Nothing has a gradient.
    forward_state = _call_state(layer)
    forward_outputs = []
    is_forward = True

    def call(*tensors):
        nonlocal is_forward
        values = _replaced(arguments, floats, tensors)
        call_args, call_kwargs = tree.pack_sequence_as((args, kwargs), values)
        if is_forward:
            is_forward = False
            forward_outputs.append(function(*call_args, **call_kwargs))
            return list(filter(_is_float, tree.flatten(forward_outputs[0])))
        with forward_state():
            recomputed = function(*call_args, **call_kwargs)
        return list(filter(_is_float, tree.flatten(recomputed)))

    differentiable = checkpoint(call)(*(arguments[index] for index in floats))
    outputs = forward_outputs.pop()
    values = tree.flatten(outputs)
    indices = [index for index, value in enumerate(values) if _is_float(value)]
    return tree.pack_sequence_as(outputs, _replaced(values, indices, differentiable))


def _call_state(layer):
    """A context manager that restores the current state of the layer's call."""
    from keras.src.backend.common import global_state

    now = {name: global_state.get_global_attribute(name) for name in _CALL_STATE}
    now["current_call_ctx"] = copy.copy(now["current_call_ctx"])
    variables = [] if layer is None else layer.non_trainable_variables
    before = [(variable, _value(variable)) for variable in variables]

    @contextlib.contextmanager
    def restored():
        # Assignments are dropped: the forward pass has already made them.
        scope = keras.StatelessScope(before, initialize_variables=False)
        with _global_state(now), scope if before else contextlib.nullcontext():
            yield

    return restored


def _on_jax(checkpoint, function, layer, args, kwargs):
    arguments = tree.flatten((args, kwargs))
    arrays = [i for i, value in enumerate(arguments) if keras.ops.is_tensor(value)]
    variables = [] if layer is None else layer.variables
    outputs, changed = None, []

    def call(before, *tensors):
        nonlocal outputs, changed
        values = _replaced(arguments, arrays, tensors)
        call_args, call_kwargs = tree.pack_sequence_as((args, kwargs), values)
        state = zip(variables, before, strict=True)
        # Values that are assigned inside must be returned to leave JAX's trace. Other
        # values must not be returned: an enclosing scan could not carry them.
        scope = keras.StatelessScope(state, initialize_variables=False)
        first = [scope.get_current_value(variable) for variable in variables]
        with scope if variables else contextlib.nullcontext():
            outputs = function(*call_args, **call_kwargs)
        last = [scope.get_current_value(variable) for variable in variables]
        changed = [i for i, value in enumerate(last) if value is not first[i]]
        found = list(filter(keras.ops.is_tensor, tree.flatten(outputs)))
        return found, [last[i] for i in changed]

    before = [_value(variable) for variable in variables]
    found, after = checkpoint(call)(before, *(arguments[index] for index in arrays))
    for index, value in zip(changed, after, strict=True):
        variables[index].assign(value)
    values = tree.flatten(outputs)
    arrays_out = [i for i, value in enumerate(values) if keras.ops.is_tensor(value)]
    for index, array in zip(arrays_out, found, strict=True):
        values[index] = array
    return tree.pack_sequence_as(outputs, values)


def _is_float(value):
    return keras.ops.is_tensor(value) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(value.dtype)
    )


def _replaced(values, indices, tensors):
    """Copies a list with new tensors at some indices, which get the old Keras masks."""
    from keras.src.backend.common import masking

    values = list(values)
    for index, tensor in zip(indices, tensors, strict=True):
        mask = masking.get_keras_mask(values[index])
        if mask is not None and tensor is not values[index]:
            masking.set_keras_mask(tensor, mask)
        values[index] = tensor
    return values


def _value(variable):
    """The value of a variable as a tensor, without autocast."""
    with _global_state({"autocast_scope": None}):
        # A copy, because TensorFlow's value is the variable, which changes later.
        return keras.ops.copy(variable.value)


@contextlib.contextmanager
def _global_state(values):
    from keras.src.backend.common import global_state

    before = {name: global_state.get_global_attribute(name) for name in values}
    for name, value in values.items():
        global_state.set_global_attribute(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)
