"""What a model costs, before anyone pays for it: FLOPs and memory, counted.

The model, its gradients and its optimizer are built as a TensorFlow graph in which
every tensor has a shape and none has memory, and the graph is read:

    FLOPs         two for each multiply-add of the matrix products and convolutions,
                  forward and backward; all else is a few per cent of a Transformer
    weights       as Keras keeps them: in float32 under a `mixed_` policy
    gradients     one of each trainable weight, in its type
    optimizer     the variables of the optimizer itself
    activations   what the backward graph reads of the forward one, and the outputs;
                  nothing is computed twice to save memory
    cache         the state between two tokens of a generative model

On several devices weights, gradients and optimizer are shared out evenly among them,
and the rows of the batch too (fully sharded data parallelism: Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, stage 3); buffers for what is gathered are not counted.

Legend: B batch, T length.
"""

import contextlib
import math
import warnings
from dataclasses import dataclass
from typing import Any

import keras

from keras_attn.checks import check_positive
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.models.parts.registry import create

DTYPES = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
OPTIMIZERS = ("adamw", "adam", "adafactor", "sgd", "lion", "rmsprop")
# Where a model's positions have no end.
_DEFAULT_LENGTH = 128
# What has, or may have, products that no rule below is for.
_HIDING = ("MatMul", "Conv2", "Conv3", "Einsum", "While", "PartitionedCall")
# What gives another view of the same memory.
_VIEWS = ("Reshape", "Identity", "Squeeze", "ExpandDims", "StopGradient")


@dataclass(frozen=True)
class Plan:
    """The cost of one step; FLOPs are those of all devices, bytes of one.

    Attributes:
        name: Of the model.
        batch: B, rows of all devices together.
        sequence: T, tokens a row; of an encoder-decoder on either side. An image is a
            row of one.
        dtype: The policy it computes by.
        optimizer: What trains it.
        devices: That share the work.
        parameters: Trainable parameters.
        forward_flops: Of a batch.
        training_flops: Of a batch, forward and backward.
        weights: Bytes.
        gradients: Bytes.
        optimizer_state: Bytes.
        activations: Bytes that wait for the backward pass.
        cache: Bytes of the state of generation, at B rows of T tokens; None for a
            model that does not generate.
    """

    name: str
    batch: int
    sequence: int
    dtype: str
    optimizer: str
    devices: int
    parameters: int
    forward_flops: int
    training_flops: int
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    cache: int | None

    @property
    def forward_flops_per_token(self) -> float:
        """Of one of the B·T tokens."""
        return self.forward_flops / (self.batch * self.sequence)

    @property
    def training_flops_per_token(self) -> float:
        """Of one of the B·T tokens, forward and backward."""
        return self.training_flops / (self.batch * self.sequence)

    @property
    def training_memory(self) -> int:
        """Bytes of a device while the model is fitted."""
        return self.weights + self.gradients + self.optimizer_state + self.activations

    @property
    def generation_memory(self) -> int | None:
        """Bytes of a device while the model generates: weights and cache."""
        return None if self.cache is None else self.weights + self.cache


def plan(
    name: str,
    /,
    *,
    batch: int = 1,
    sequence: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adamw",
    devices: int = 1,
    **overrides,
) -> Plan:
    """Counts what `create(name, **overrides)` would cost, allocating none of it.

    Args:
        name: A name from `list_models()`.
        batch: B, rows of a step; a multiple of `devices`.
        sequence: T, tokens a row. Default: as many as the model has positions, or 128.
            A model of images has its own `image_size`.
        dtype: One of `DTYPES`, Keras' names of precision policies.
        optimizer: One of `OPTIMIZERS`, Keras' names.
        devices: Among which all is shared out.
        **overrides: Arguments of the model's builder.

    Returns:
        A `Plan`.

    Raises:
        ValueError: for an unknown name, type or optimizer, sizes that don't fit, or a
            model with products that nobody counts.
        RuntimeError: on another backend of Keras than TensorFlow, whose graphs are
            counted.

    Example:
        ```python
        models.plan("gpt3_175b", dtype="mixed_bfloat16", devices=64, batch=64)
        ```
    """
    require_tensorflow("`plan`")
    for argument, value, choices in (
        ("dtype", dtype, DTYPES),
        ("optimizer", optimizer, OPTIMIZERS),
    ):
        if value not in choices:
            raise ValueError(
                f"`{argument}` must be one of {', '.join(choices)}. "
                f"Received: {argument}={value!r}"
            )
    check_positive("batch", batch)
    check_positive("devices", devices)
    if batch % devices:
        raise ValueError(
            "`batch` must be a multiple of `devices`, which share its rows. "
            f"Received: batch={batch}, devices={devices}"
        )
    if sequence is not None:
        check_positive("sequence", sequence)
    import tensorflow as tf

    rows = batch // devices
    graph = tf.Graph()
    with graph.as_default(), _policy(dtype):
        model = create(name, **overrides)
        length = _length(model, sequence)
        cache = _cache_bytes(model, rows, length)
        for layer in model._flatten_layers():
            if getattr(layer, "unroll", None) is False:
                layer.unroll = True  # A loop hides how often it goes round.
        marks = [len(graph.get_operations())]
        inputs = {
            tensor.name: tf.compat.v1.placeholder(
                tensor.dtype, [rows, *(n or length for n in tensor.shape[1:])]
            )
            for tensor in model.inputs
        }
        given: Any = inputs
        if not isinstance(model.input, dict):
            (given,) = inputs.values()
        outputs = keras.tree.flatten(model(given, training=True))
        marks.append(len(graph.get_operations()))
        variables = model.trainable_variables
        with warnings.catch_warnings():
            # Nothing is made dense here: nothing is computed at all.
            warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
            tf.gradients(outputs, [variable.value for variable in variables])
        operations = graph.get_operations()
        forward, backward = operations[marks[0] : marks[1]], operations[marks[1] :]
        trainer = keras.optimizers.get(optimizer)
        trainer.build(variables)
    waiting = _waiting(forward, backward)
    forward_flops = sum(map(_flops, forward)) * devices
    return Plan(
        name=name,
        batch=batch,
        sequence=length,
        dtype=dtype,
        optimizer=optimizer,
        devices=devices,
        parameters=model.count_params(),
        forward_flops=forward_flops,
        training_flops=forward_flops + sum(map(_flops, backward)) * devices,
        weights=_share(_variable_bytes(model.weights), devices),
        gradients=_share(_variable_bytes(variables), devices),
        optimizer_state=_share(_variable_bytes(trainer.variables), devices),
        activations=sum(map(_tensor_bytes, [*waiting, *outputs])),
        cache=cache,
    )


@contextlib.contextmanager
def _policy(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _length(model, sequence):
    """Tokens of a row; one for a model of images, whose size is its own."""
    if any(x.name == "images" and None in x.shape[1:] for x in model.inputs):
        raise ValueError(
            "A model of images of any size is planned for one: override its "
            "`image_size` with the pixels of an image. Received: image_size=None"
        )
    if any(None in tensor.shape[1:] for tensor in model.inputs):
        return sequence or _positions(model) or _DEFAULT_LENGTH
    if sequence is not None:
        raise ValueError(
            "`sequence` is for models of tokens; of a model of images, override its "
            f"`image_size`. Received: sequence={sequence}"
        )
    return 1


def _positions(model):
    layer = next((x for x in model.layers if x.name == "position_embedding"), None)
    return getattr(layer, "max_sequence_length", None)


def _cache_bytes(model, rows, length):
    """Of what `step` hands on to itself; None where there is no `step`."""
    if not hasattr(model, "incremental"):
        return None
    pair = model.incremental(max_length=length)
    return sum(
        rows
        * math.prod(n or length for n in tensor.shape[1:])
        * _item_bytes(tensor.dtype)
        for tensor in pair.step.inputs
        if tensor.name != "token_ids"
    )


def _waiting(forward, backward):
    """Tensors of the forward graph that the backward one reads, each once."""
    of_forward = {operation.name for operation in forward}
    found = {}
    for operation in backward:
        for tensor in operation.inputs:
            while tensor.op.type in _VIEWS:
                tensor = tensor.op.inputs[0]
            kept = tensor.op.name in of_forward and tensor.op.inputs
            # Shapes and weights are kept anyway, and gathered anew if they are shared.
            if kept and tensor.op.type != "Shape" and not _is_weight(tensor):
                found[tensor.name] = tensor
    return list(found.values())


def _is_weight(tensor) -> bool:
    """Whether it is a variable, its copy in half precision, or transposed."""
    while tensor.op.type in ("Cast", "Transpose"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp"


def _flops(operation) -> int:
    """Two for each multiply-add of a matrix product or a convolution."""
    kind = operation.type
    if kind == "MatMul":
        inner = operation.inputs[0].shape[0 if operation.get_attr("transpose_a") else 1]
        return 2 * _size(operation.outputs[0]) * inner
    if kind.startswith("BatchMatMul"):
        inner = operation.inputs[0].shape[-2 if operation.get_attr("adj_x") else -1]
        return 2 * _size(operation.outputs[0]) * inner
    if kind == "Einsum" and b"..." not in operation.get_attr("equation"):
        terms = operation.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {}
        for term, tensor in zip(terms, operation.inputs, strict=True):
            sizes.update(zip(term, tensor.shape, strict=True))
        return 2 * math.prod(sizes.values())
    if kind == "DepthwiseConv2dNative":
        return (
            2 * _size(operation.outputs[0]) * math.prod(operation.inputs[1].shape[:2])
        )
    if kind.startswith("DepthwiseConv2dNativeBackprop"):
        by_input = "BackpropInput" in kind
        kernel = operation.inputs[1].shape if by_input else operation.outputs[0].shape
        return 2 * _size(operation.inputs[2]) * math.prod(kernel[:2])
    if kind in ("Conv2D", "Conv3D"):
        kernel = operation.inputs[1].shape
        return 2 * _size(operation.outputs[0]) * math.prod(kernel[:-1])
    if kind.startswith(("Conv2DBackprop", "Conv3DBackprop")):
        # Either gradient has the multiply-adds of the product it belongs to.
        by_input = "BackpropInput" in kind
        kernel = operation.inputs[1].shape if by_input else operation.outputs[0].shape
        return 2 * _size(operation.inputs[2]) * math.prod(kernel[:-1])
    if any(part in kind for part in _HIDING):
        raise ValueError(
            f"The model can't be planned: its operation `{kind}` has products that "
            f"nobody here counts. Received: operation={operation.name!r}"
        )
    return 0


def _size(tensor) -> int:
    return math.prod(tensor.shape)


def _tensor_bytes(tensor) -> int:
    return _size(tensor) * tensor.dtype.size


def _variable_bytes(variables) -> int:
    return sum(
        math.prod(variable.shape) * _item_bytes(variable.dtype)
        for variable in variables
    )


def _item_bytes(dtype) -> int:
    import tensorflow as tf

    return tf.as_dtype(keras.backend.standardize_dtype(dtype)).size


def _share(size: int, devices: int) -> int:
    return -(-size // devices)
