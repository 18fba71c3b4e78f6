"""The cost of a model before it is trained: FLOPs and memory, counted from its graph.

The model, its gradients and its optimizer are built as a TensorFlow graph, in which
every tensor has a shape and none is allocated. The graph is then read:

    FLOPs         two per multiply-add of matrix products and convolutions, forward and
                  backward; everything else is a few percent of a Transformer
    weights       as Keras stores them: in float32 under a `mixed_` policy
    gradients     one for each trainable weight, in its dtype
    optimizer     the variables of the optimizer
    activations   the tensors of the forward pass that the backward pass reads, and the
                  outputs; the scores of long sequences, which are attended to in
                  parts, are computed again, and what they are made of is kept; FLOPs
                  are of all scores, once
    cache         the state of a generative model between two tokens

With several devices, weights, gradients, optimizer and the rows of the batch are
divided evenly among them (fully sharded data parallelism: Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, stage 3); buffers for gathered weights are not counted.

Legend: B batch, T length.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import keras

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.kernels.lean_attention import SCOPE as PARTS
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.models.catalog.registry import create
from keras_attn.models.plans.step_graph import (
    dtype_policy,
    has_tokens,
    row_length,
    trace,
)

DTYPES = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
OPTIMIZERS = ("adamw", "adam", "adafactor", "sgd", "lion", "rmsprop")
_CONVOLUTION = re.compile(r"(Conv[23]D|DepthwiseConv2dNative)(Backprop\w+)?")
# Operations with products or inner graphs that `_flops` may have no rule for.
_UNCOUNTED = ("MatMul", "Conv2", "Conv3", "Einsum", "While", "PartitionedCall")
# Operations whose output shares the memory of the input.
_VIEWS = ("Reshape", "Identity", "Squeeze", "ExpandDims", "StopGradient")


@dataclass(frozen=True)
class Plan:
    """The cost of one step: FLOPs of all devices together, bytes of one device.

    Attributes:
        name: Registry name of the model, or what `plan_model` was given.
        batch: B, rows of all devices together.
        sequence: T, tokens per row (on each side of an encoder-decoder); 1 for images.
        dtype: The dtype policy.
        optimizer: Name of the optimizer.
        devices: Number of devices that share the work.
        parameters: Number of parameters.
        forward_flops: FLOPs of the forward pass, per batch.
        training_flops: FLOPs of the forward and backward pass, per batch.
        weights: Bytes.
        gradients: Bytes.
        optimizer_state: Bytes.
        activations: Bytes kept for the backward pass, if each operation stores its
            output, as in TensorFlow without XLA.
        inputs: Bytes of the inputs of the model.
        cache: Bytes of the state of generation, for B rows of T tokens; None for a
            model that does not generate.
        has_tokens: Whether a row consists of T tokens.
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
    inputs: int
    cache: int | None
    has_tokens: bool

    @property
    def forward_flops_per_token(self) -> float:
        """FLOPs of the forward pass for one of the B·T tokens."""
        return self.forward_flops / (self.batch * self.sequence)

    @property
    def training_flops_per_token(self) -> float:
        """FLOPs of the forward and backward pass for one of the B·T tokens."""
        return self.training_flops / (self.batch * self.sequence)

    @property
    def training_memory(self) -> int:
        """Bytes per device of what training keeps if each operation is run by itself.

        That is TensorFlow without XLA, on a CPU or a GPU: weights, gradients, optimizer
        and activations. It is a lower bound. The arrays that an operation needs while
        it runs, memory that the allocator keeps, and the libraries come on top.
        """
        return self.weights + self.gradients + self.optimizer_state + self.activations

    @property
    def generation_memory(self) -> int | None:
        """Bytes per device during generation: weights and cache."""
        return None if self.cache is None else self.weights + self.cache


def plan(
    name: str,
    /,
    *,
    batch: int = 1,
    sequence: int | None = None,
    dtype: str | None = "float32",
    optimizer: str = "adamw",
    devices: int = 1,
    **overrides,
) -> Plan:
    """Counts the cost of `create(name, **overrides)` without allocating the model.

    Args:
        name: A name from `list_models()`.
        batch: B, rows per step; a multiple of `devices`.
        sequence: T, tokens per row. Default: the model's number of positions, or 128.
            The size of images is the model's `image_size`.
        dtype: One of `DTYPES`, Keras' names of dtype policies; None: the current one.
        optimizer: One of `OPTIMIZERS`, Keras' names.
        devices: Number of devices that share the work.
        **overrides: Arguments of the model's builder.

    Returns:
        A `Plan`.

    Raises:
        ValueError: If `name`, `dtype` or `optimizer` is unknown, the sizes do not fit,
            or the model has products that cannot be counted.
        RuntimeError: If the Keras backend is not TensorFlow, whose graphs are read.

    Example:
        ```python
        from keras_attn import models

        plan = models.plan("bert_tiny", batch=64, dtype="mixed_bfloat16")
        print(plan.parameters, plan.weights, plan.activations, plan.training_flops)
        ```
    """
    return plan_model(
        lambda: create(name, **overrides),
        name,
        batch=batch,
        sequence=sequence,
        dtype=dtype,
        optimizer=optimizer,
        devices=devices,
    )


def plan_model(
    build: Callable[[], keras.Model],
    name: str,
    *,
    batch: int = 1,
    sequence: int | None = None,
    dtype: str | None = "float32",
    optimizer: str = "adamw",
    devices: int = 1,
) -> Plan:
    """`plan` for the model that a function builds.

    Args:
        build: Returns the model; called in a graph, where its weights take no memory.
        name: For `Plan.name`.
        batch: As in `plan`, like all the arguments below.
        sequence: As in `plan`.
        dtype: As in `plan`; None also for a model with its own policies.
        optimizer: As in `plan`.
        devices: As in `plan`.
    """
    _check_arguments(batch, sequence, dtype, optimizer, devices)
    import tensorflow as tf

    rows = batch // devices
    graph = tf.Graph()
    with graph.as_default(), dtype_policy(dtype):
        model = build()
        length = row_length(model, sequence)
        cache = _cache_bytes(model, rows, length)
        variables = model.trainable_variables
        traced = trace(model, graph, rows, length)
        trainer = keras.optimizers.get(optimizer)
        trainer.build(variables)
    forward, backward = traced.forward, traced.backward
    forward_flops = sum(map(_flops, forward)) * devices
    return Plan(
        name=name,
        batch=batch,
        sequence=length,
        dtype=dtype or _get_policy(model),
        optimizer=optimizer,
        devices=devices,
        parameters=model.count_params(),
        forward_flops=forward_flops,
        training_flops=forward_flops + sum(map(_flops, backward)) * devices,
        weights=_share(_variable_bytes(model.weights), devices),
        gradients=_share(_variable_bytes(variables), devices),
        optimizer_state=_share(_variable_bytes(trainer.variables), devices),
        activations=sum(
            map(_tensor_bytes, [*_kept(forward, backward), *traced.outputs])
        ),
        inputs=sum(map(_tensor_bytes, traced.inputs)),
        cache=cache,
        has_tokens=has_tokens(model),
    )


def _check_arguments(batch, sequence, dtype, optimizer, devices):
    require_tensorflow("`plan`")
    if dtype is not None:
        check_choice("dtype", dtype, DTYPES)
    check_choice("optimizer", optimizer, OPTIMIZERS)
    check_positive("batch", batch)
    check_positive("devices", devices)
    if batch % devices:
        raise ValueError(
            "`batch` must be a multiple of `devices`, among which it is split. "
            f"Received: batch={batch}, devices={devices}"
        )
    if sequence is not None:
        check_positive("sequence", sequence)


def _get_policy(model) -> str:
    """The most frequent policy of the layers with weights."""
    names = Counter(
        layer.dtype_policy.name
        for layer in model._flatten_layers()
        # The policy of a model itself says nothing about its layers.
        if layer.weights and not isinstance(layer, keras.Model)
    )
    return max(names, key=names.__getitem__, default=model.dtype_policy.name)


def _cache_bytes(model, rows, length):
    """Bytes of the state between two steps; None if the model does not generate."""
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


def _kept(forward, backward):
    """Tensors of the forward pass that the backward pass reads, each once."""
    of_forward = {operation.name for operation in forward}
    found = {}
    for operation in backward:
        in_parts = _is_in_parts(operation)
        for tensor in operation.inputs:
            tensors = _entries(tensor) if in_parts else [tensor]
            for each in map(_without_view, tensors):
                is_kept = each.op.name in of_forward and each.op.inputs
                # Shapes cost nothing, nor do the tensors of unknown shape that a fused
                # norm keeps for other devices; weights are already counted, and sharded
                # weights are gathered again.
                is_free = each.op.type == "Shape" or each.shape.rank is None
                if is_kept and not is_free and not _is_weight(each):
                    found[each.name] = each
    return list(found.values())


def _is_in_parts(operation) -> bool:
    """Whether an operation is in the scope of attention in parts."""
    scopes = operation.name.split("/")
    return any(re.fullmatch(rf"{PARTS}(_\d+)*", each) for each in scopes)


def _without_view(tensor):
    """The tensor whose memory this one shares."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[0]
    return tensor


def _entries(tensor):
    """The tensors from which attention in parts is recomputed; others unchanged.

    The gradient reads tensors of the forward pass; its own are in the scope too.
    """
    entries, stack, seen = [], [tensor], set()
    while stack:
        each = stack.pop()
        if each.name in seen:
            continue
        seen.add(each.name)
        if _is_in_parts(each.op) and each.op.inputs:
            stack += each.op.inputs
        else:
            entries.append(each)
    return entries


def _is_weight(tensor) -> bool:
    """Whether a tensor is a variable, or its cast or transposed copy."""
    while tensor.op.type in ("Cast", "Transpose"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp"


def _flops(operation) -> int:
    """Two per multiply-add of a matrix product or a convolution, otherwise 0."""
    kind = operation.type
    if kind == "MatMul" or kind.startswith("BatchMatMul"):
        is_transposed = "transpose_a" if kind == "MatMul" else "adj_x"
        inner = -2 if operation.get_attr(is_transposed) else -1
        return 2 * _size(operation.outputs[0]) * operation.inputs[0].shape[inner]
    if kind == "Einsum" and b"..." not in operation.get_attr("equation"):
        terms = operation.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {}
        for term, tensor in zip(terms, operation.inputs, strict=True):
            sizes.update(zip(term, tensor.shape, strict=True))
        return 2 * math.prod(sizes.values())
    if _CONVOLUTION.fullmatch(kind):
        return _convolution_flops(operation)
    if any(part in kind for part in _UNCOUNTED):
        raise ValueError(
            "The model can't be planned: the rules do not count the products of its "
            f"operation `{kind}`. Received: operation={operation.name!r}"
        )
    return 0


def _convolution_flops(operation) -> int:
    """FLOPs of a convolution, or of one of its gradients, which has equally many."""
    kind = operation.type
    is_gradient, is_of_kernel = "Backprop" in kind, "BackpropFilter" in kind
    kernel = operation.outputs[0].shape if is_of_kernel else operation.inputs[1].shape
    convolved = operation.inputs[2] if is_gradient else operation.outputs[0]
    axes = 2 if kind.startswith("Depthwise") else len(kernel) - 1
    return 2 * _size(convolved) * math.prod(kernel[:axes])


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
