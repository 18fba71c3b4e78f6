"""Mends `keras.RematScope`, which Keras 3.15 cannot run on most layers.

Inside a `RematScope` Keras hands the call of a layer to `tf.recompute_grad` or
`jax.checkpoint` as it is, and these take tensors alone:

- `training=True`, a slice or a string is no tensor: in a graph TensorFlow refuses
  keyword arguments, and JAX turns the boolean into an array. So no compiled fit of a
  functional model works, whatever its layers are.
- TensorFlow adds a number to every argument and asks for the gradient of every output,
  which a boolean mask does not have.
- The second call runs during the backward pass, outside of the model's call: without
  its autocast, its `training` and its Keras masks, and with a dropout seed and moving
  averages that the first call has changed already. The gradient would be that of
  another dropout mask.

`install` puts a function in the place of Keras' that hands over the floating-point
tensors alone, and runs the second call as the first one was run.
"""

import contextlib
import copy
import functools

import keras
from keras import tree

# What Keras keeps of the calls that a call is part of, by thread.
_CALL_STATE = ("autocast_scope", "current_call_ctx")


def install() -> None:
    """Replaces `keras.remat`, which `RematScope` calls, on TensorFlow and JAX."""
    from keras.src import backend

    if keras.backend.backend() in ("tensorflow", "jax"):
        backend.core.remat = functools.partial(rematerialize, backend.core.remat)


def rematerialize(checkpoint, function):
    """The same function, whose activations are computed again in the backward pass.

    Args:
        checkpoint: The backend's: of a function of tensors, to a list of tensors.
        function: Of anything; it may be the method of a layer.

    Returns:
        A function.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        layer = getattr(function, "__self__", None)
        layer = layer if isinstance(layer, keras.layers.Layer) else None
        if _is_needless(layer):
            return function(*args, **kwargs)
        run = _on_jax if keras.backend.backend() == "jax" else _on_tensorflow
        return run(checkpoint, function, layer, args, kwargs)

    return call


def _is_needless(layer):
    """Whether a call is better left as it is."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    if in_symbolic_scope():  # Shapes alone are asked for.
        return True
    if isinstance(layer, keras.Model) and layer._remat_mode.mode == "full":
        return True  # Each of its layers computes itself again.
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf
    from tensorflow.python.ops.control_flow_util_v2 import in_while_loop_defun

    # TensorFlow cannot differentiate it there: the cell of a recurrent layer, which
    # computes itself again as a whole.
    return in_while_loop_defun(tf.compat.v1.get_default_graph())


def _on_tensorflow(checkpoint, function, layer, args, kwargs):
    given = tree.flatten((args, kwargs))
    floats = [index for index, value in enumerate(given) if _is_float(value)]
    if not floats and (layer is None or not layer.trainable_variables):
        return function(*args, **kwargs)  # Nothing has a gradient.
    as_first_time = _call_state(layer)
    first = []  # What the first call returns, until it is handed on.
    is_first = True

    def call(*tensors):
        nonlocal is_first
        values = _replaced(given, floats, tensors)
        call_args, call_kwargs = tree.pack_sequence_as((args, kwargs), values)
        if is_first:
            is_first = False
            first.append(function(*call_args, **call_kwargs))
            return list(filter(_is_float, tree.flatten(first[0])))
        with as_first_time():
            again = function(*call_args, **call_kwargs)
        return list(filter(_is_float, tree.flatten(again)))

    found = checkpoint(call)(*(given[index] for index in floats))
    outputs = first.pop()
    values = tree.flatten(outputs)
    floats_out = [index for index, value in enumerate(values) if _is_float(value)]
    return tree.pack_sequence_as(outputs, _replaced(values, floats_out, found))


def _call_state(layer):
    """A context in which the layer is called as it would be now."""
    from keras.src.backend.common import global_state

    now = {name: global_state.get_global_attribute(name) for name in _CALL_STATE}
    now["current_call_ctx"] = copy.copy(now["current_call_ctx"])
    variables = [] if layer is None else layer.non_trainable_variables
    before = [(variable, _value(variable)) for variable in variables]

    @contextlib.contextmanager
    def restored():
        # What the call assigns is dropped: the first call has assigned it already.
        scope = keras.StatelessScope(before, initialize_variables=False)
        with _global_state(now), scope if before else contextlib.nullcontext():
            yield

    return restored


def _on_jax(checkpoint, function, layer, args, kwargs):
    given = tree.flatten((args, kwargs))
    arrays = [index for index, value in enumerate(given) if keras.ops.is_tensor(value)]
    variables = [] if layer is None else layer.variables
    outputs, changed = None, []

    def call(before, *tensors):
        nonlocal outputs, changed
        values = _replaced(given, arrays, tensors)
        call_args, call_kwargs = tree.pack_sequence_as((args, kwargs), values)
        state = zip(variables, before, strict=True)
        # What is assigned inside would leave JAX's trace, so it is returned; what is
        # not assigned is not, because a scan around this could not hold it.
        scope = keras.StatelessScope(state, initialize_variables=False)
        first = [scope.get_current_value(variable) for variable in variables]
        with scope if variables else contextlib.nullcontext():
            outputs = function(*call_args, **call_kwargs)
        last = [scope.get_current_value(variable) for variable in variables]
        changed = [i for i, value in enumerate(last) if value is not first[i]]
        found = list(filter(keras.ops.is_tensor, tree.flatten(outputs)))
        return found, [last[i] for i in changed]

    before = [_value(variable) for variable in variables]
    found, after = checkpoint(call)(before, *(given[index] for index in arrays))
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
    """The values with tensors at some indices, which get the Keras masks there."""
    from keras.src.backend.common import masking

    values = list(values)
    for index, tensor in zip(indices, tensors, strict=True):
        mask = masking.get_keras_mask(values[index])
        if mask is not None and tensor is not values[index]:
            masking.set_keras_mask(tensor, mask)
        values[index] = tensor
    return values


def _value(variable):
    """A variable's value, as a tensor of the variable's own precision."""
    with _global_state({"autocast_scope": None}):
        # A copy: on TensorFlow the value is the variable, which is assigned to later.
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
