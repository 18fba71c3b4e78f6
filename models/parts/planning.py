"""The cost of a model before it is trained: FLOPs and memory, counted from its graph.

The model, its gradients and its optimizer are built as a TensorFlow graph, in which
every tensor has a shape and none is allocated. The graph is then read:

    FLOPs         two per multiply-add of matrix products and convolutions, forward and
                  backward; everything else is a few percent of a Transformer
    weights       as Keras stores them: in float32 under a `mixed_` policy
    gradients     one for each trainable weight, in its dtype
    optimizer     the variables of the optimizer
    activations   the tensors of the forward pass that the backward pass reads, and the
                  outputs; nothing is recomputed to save memory, so attention keeps all
                  its scores (in blocks, which long sequences use, it needs less)
    temporary     what a step that XLA compiles for a TPU stores at its peak, besides
                  weights and optimizer: `step_memory.py` has the rules
    cache         the state of a generative model between two tokens

With several devices, weights, gradients, optimizer and the rows of the batch are
divided evenly among them (fully sharded data parallelism: Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, stage 3); buffers for gathered weights are not counted.

Legend: B batch, T length.
"""

import contextlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_attn.checks import check_choice, check_positive
from keras_attn.indices import length_ranges
from keras_attn.input_checks import MASKED_INPUTS
from keras_attn.kernels.blocked_attention import whole_scores
from keras_attn.kernels.recompute import SCOPE
from keras_attn.kernels.runtime import require_tensorflow
from keras_attn.models.parts.functional import input_structure
from keras_attn.models.parts.registry import create
from keras_attn.models.parts.step_memory import is_in, peak_memory

DTYPES = ("float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
OPTIMIZERS = ("adamw", "adam", "adafactor", "sgd", "lion", "rmsprop")
# The length of a row if the number of positions is unlimited.
_DEFAULT_LENGTH = 128
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
        temporary: Bytes that a step compiled by XLA for a TPU needs at its peak besides
            weights and optimizer: activations and gradients.
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
    temporary: int
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
    def compiled_memory(self) -> int:
        """Bytes per device of a training step that XLA compiles for a TPU.

        Weights and optimizer, inputs, and what the step stores at its peak. XLA stores
        fewer tensors than TensorFlow does without it, and pads them to whole tiles.
        """
        return self.weights + self.optimizer_state + self.inputs + self.temporary

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
        models.plan("gpt3_175b", dtype="mixed_bfloat16", devices=64, batch=64)
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
        length = _length(model, sequence)
        cache = _cache_bytes(model, rows, length)
        variables = model.trainable_variables
        traced = _trace(model, graph, rows, length)
        trainer = keras.optimizers.get(optimizer)
        trainer.build(variables)
    forward, backward = traced.forward, traced.backward
    forward_flops = sum(map(_flops, forward)) * devices
    in_loops = [
        each
        for each in forward
        if is_in(each, traced.loops) and not is_in(each, [SCOPE])
    ]
    return Plan(
        name=name,
        batch=batch,
        sequence=length,
        dtype=dtype or _policy_of(model),
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
        temporary=peak_memory(
            [*forward, *backward],
            traced.seeds,
            {tensor.name for tensor in _kept(in_loops, backward)},
        ),
        inputs=sum(map(_tensor_bytes, traced.inputs)),
        cache=cache,
        has_tokens=_has_tokens(model),
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


@dataclass(frozen=True)
class _Traced:
    """The graph of a training step without its loss.

    Attributes:
        inputs: Of the model.
        outputs: Of the model.
        forward: The operations of the forward pass.
        backward: Those of the backward pass.
        seeds: The output for each operation that stands for its gradient.
        loops: Names of the layers whose loops are unrolled.
    """

    inputs: list[Any]
    outputs: list[Any]
    forward: list[Any]
    backward: list[Any]
    seeds: dict[str, Any]
    loops: list[str]


def _trace(model, graph, rows, length) -> _Traced:
    import tensorflow as tf

    loops = []
    for layer in model._flatten_layers():
        if getattr(layer, "unroll", None) is False:
            layer.unroll = True  # The graph of a loop hides the number of its steps.
            loops.append(layer.name)
    start = len(graph.get_operations())
    inputs = keras.tree.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
        input_specs(model, rows, length),
    )
    with whole_scores():
        outputs = keras.tree.flatten(model(inputs, training=True))
    middle = len(graph.get_operations())
    differentiable = [each for each in outputs if each.dtype.is_floating]
    gradients = [
        tf.compat.v1.placeholder(each.dtype, each.shape) for each in differentiable
    ]
    with warnings.catch_warnings():
        # Harmless, because nothing is computed here.
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        tf.gradients(
            differentiable,
            [weight.value for weight in model.trainable_variables],
            gradients,
        )
    operations = graph.get_operations()
    return _Traced(
        keras.tree.flatten(inputs),
        outputs,
        operations[start:middle],
        operations[middle:],
        {
            gradient.op.name: output
            for gradient, output in zip(gradients, differentiable, strict=True)
        },
        loops,
    )


def input_specs(model: keras.Model, rows: int, sequence: int | None = None) -> Any:
    """Shapes and dtypes of a batch, in the structure that the model is called with.

    Args:
        model: The model.
        rows: B.
        sequence: T, tokens per row; None: as `plan` has it.

    Returns:
        A structure of `keras.KerasTensor`.
    """
    length = _length(model, sequence) if _has_tokens(model) else 1
    # The positions of DALL·E are those of a caption and an image together.
    limits = length_ranges(model) if length == getattr(model, "max_length", 0) else {}

    def spec(tensor):
        masked = MASKED_INPUTS.get(tensor.name, (tensor.name,))[0]
        _, end = limits.get(masked, (1, None))
        size = min(length, end - 1) if end else length
        return keras.KerasTensor(
            (rows, *(n or size for n in tensor.shape[1:])), tensor.dtype
        )

    return keras.tree.map_structure(spec, input_structure(model))


@contextlib.contextmanager
def dtype_policy(dtype: str | None) -> Iterator[None]:
    """Makes a dtype policy the current one; None: the current one stays.

    Args:
        dtype: One of `DTYPES`.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype or before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _policy_of(model) -> str:
    """The most frequent policy of the layers with weights."""
    names = Counter(
        layer.dtype_policy.name
        for layer in model._flatten_layers()
        # The policy of a model itself says nothing about its layers.
        if layer.weights and not isinstance(layer, keras.Model)
    )
    return max(names, key=names.__getitem__, default=model.dtype_policy.name)


def _has_tokens(model) -> bool:
    """Whether the rows of the inputs may have any length."""
    return any(None in tensor.shape[1:] for tensor in model.inputs)


def _length(model, sequence):
    """Tokens per row; 1 for a model of images."""
    if any(len(x.shape) == 4 and None in x.shape[1:] for x in model.inputs):
        raise ValueError(
            "`image_size` must be given to plan a model of images of any size. "
            "Received: image_size=None"
        )
    if _has_tokens(model):
        return sequence or _positions(model) or _DEFAULT_LENGTH
    if sequence is not None:
        raise ValueError(
            "`sequence` is for models of tokens; for a model of images, override "
            f"`image_size`. Received: sequence={sequence}"
        )
    return 1


def _positions(model):
    """The maximum number of tokens of a row, if the model sets a limit."""
    limit = getattr(model, "max_length", None)
    if limit is not None:
        return limit
    layer = next((x for x in model.layers if x.name == "position_embedding"), None)
    return getattr(layer, "max_sequence_length", None)


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
        for tensor in operation.inputs:
            while tensor.op.type in _VIEWS:
                tensor = tensor.op.inputs[0]
            is_kept = tensor.op.name in of_forward and tensor.op.inputs
            # Shapes cost nothing, nor do the tensors of unknown shape that a fused
            # norm keeps for other devices; weights are already counted, and sharded
            # weights are gathered again.
            is_free = tensor.op.type == "Shape" or tensor.shape.rank is None
            if is_kept and not is_free and not _is_weight(tensor):
                found[tensor.name] = tensor
    return list(found.values())


def _is_weight(tensor) -> bool:
    """Whether a tensor is a variable, or its cast or transposed copy."""
    while tensor.op.type in ("Cast", "Transpose"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp"


def _flops(operation) -> int:
    """Two per multiply-add of a matrix product or a convolution, otherwise 0."""
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
    if _CONVOLUTION.fullmatch(kind):
        return _convolution_flops(operation)
    if any(part in kind for part in _UNCOUNTED):
        raise ValueError(
            f"The model can't be planned: there is no rule to count the products of "
            f"its operation `{kind}`. Received: operation={operation.name!r}"
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
