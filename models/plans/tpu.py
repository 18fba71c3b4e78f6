"""Compiles the programs of a model for TPUs, on a machine without one.

libtpu has the compiler of Cloud TPUs, and needs no TPU to compile for a given topology.
What it returns is what a TPU would run: its text (HLO, after all optimizations), the
memory per device, and FLOPs. It reports programs that do not fit into the memory of a
chip, and operations that a TPU does not have. Nothing is computed, so this says nothing
about the numbers or the speed on a TPU.

A program is data-parallel, as with `keras.distribution.DataParallel`: weights are
replicated, and the rows of the batch are divided evenly among the devices.

Example:
    In a process with the variables of `environment()`, set before Keras is imported:

    ```python
    model = models.create("gpt2_small")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = {"token_ids": ids, "padding_mask": mask}  # Arrays, or their specs.
    program = compile_training_step(model, batch, labels, topology="v5e:2x2")
    program.memory.temp_size_in_bytes, program.flops, program.text
    ```

Legend: B batch, T length.
"""

import functools
import importlib.util
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.compiled import CompiledLoop, get_compilations
from keras_attn.decoding.inputs import (
    as_arrays,
    check_beams,
    check_end_tokens,
    check_length,
    check_strategy,
    check_token,
    prepare,
    required_length,
)
from keras_attn.decoding.loop import Settings, random_numbers
from keras_attn.decoding.strategies import Greedy
from keras_attn.kernels.devices import divided_rows
from keras_attn.models.parts.keras_state import without_allocating

_INSTALL = 'pip install "keras-attn[tpu]"'
_LIBRARY = "TPU_LIBRARY_PATH"
_TOPOLOGY = re.compile(r"v\d+\w*:(\d+)x(\d+)(?:x(\d+))?")
# Without a TPU, libtpu would look for one for minutes; and two processes, each of which
# only compiles, do not compete for anything.
_COMPILE_ONLY = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
_BATCH = "batch"


@dataclass(frozen=True)
class TpuProgram:
    """A program that is compiled for TPUs.

    Attributes:
        compiled: JAX's `jax.stages.Compiled`.
        topology: Name of the topology.
        devices: Number of devices. A chip of v2, v3 and v4 has two of them.
        seconds: How long tracing and compilation took.
    """

    compiled: Any
    topology: str
    devices: int
    seconds: float

    @functools.cached_property
    def text(self) -> str:
        """HLO of the optimized program, which every device runs."""
        return self.compiled.as_text()

    @property
    def memory(self) -> Any:
        """Bytes per device, as JAX counts them.

        `argument_size_in_bytes`, `output_size_in_bytes`, `alias_size_in_bytes` (of the
        outputs that take the place of arguments), and `temp_size_in_bytes`.
        """
        return self.compiled.memory_analysis()

    @property
    def bytes_per_device(self) -> int:
        """Memory of one device: arguments, outputs and temporary tensors."""
        memory = self.memory
        return (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        )

    @property
    def cost(self) -> Mapping[str, float]:
        """`"flops"`, `"bytes accessed"` and more, per device, as XLA estimates them.

        The body of a loop is counted once, for any number of iterations.
        """
        return self.compiled.cost_analysis()

    @property
    def flops(self) -> float:
        """FLOPs per device; see `cost`."""
        return self.cost["flops"]


def environment() -> dict[str, str]:
    """The environment variables of a process that compiles for TPUs without one.

    They must be set before Keras is imported. The process computes on the CPU.

    Raises:
        ImportError: If libtpu is not installed.
    """
    library = {_LIBRARY: str(_library())}
    return {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", **_COMPILE_ONLY, **library}


def compile_forward(
    model: keras.Model, inputs: Any, *, topology: str = "v5e:1x1"
) -> TpuProgram:
    """Compiles a call of a model at inference.

    Args:
        model: The model. Its weights need not be allocated.
        inputs: Arrays, or anything else with a `shape` and a `dtype`, such as
            `jax.ShapeDtypeStruct`, in the structure that the model is called with. The
            first axis is B, of all devices together.
        topology: Generation and number of chips along each axis, such as `"v5e:1x1"`
            (one chip), `"v5e:2x2"`, `"v6e:4x4"` or `"v5p:2x2x1"`.

    Raises:
        ImportError: If libtpu is not installed.
        RuntimeError: If the backend is not JAX; JAX's own error if the program does not
            fit into the memory of a chip.
        ValueError: If libtpu does not know the topology, or B is not a multiple of the
            number of devices.
    """
    _require_jax()

    def forward(weights, inputs):
        return model.stateless_call(*weights, inputs, training=False)[0]

    return _compile(topology, forward, [_weights(model), inputs], sharded=[False, True])


def compile_training_step(
    model: keras.Model,
    inputs: Any,
    labels: Any = None,
    *,
    sample_weight: Any = None,
    topology: str = "v5e:1x1",
) -> TpuProgram:
    """Compiles a training step: loss, gradients, update of the weights, metrics.

    Args:
        model: A model on which `compile` was called.
        inputs: As in `compile_forward`.
        labels: As for `fit`; None for a model that needs none.
        sample_weight: As for `fit`.
        topology: As in `compile_forward`.

    Raises:
        ImportError: As in `compile_forward`.
        RuntimeError: As in `compile_forward`.
        ValueError: As in `compile_forward`, and if the model has no optimizer.
    """
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "`model` must have an optimizer and a loss: call its `compile` first. "
            f"Received: model={model.name!r}, optimizer=None"
        )
    _require_jax()
    import jax

    data = jax.tree.map(_spec, (inputs, labels, sample_weight))
    with without_allocating():
        # Creates the variables of the optimizer and the metrics, as `fit` does.
        model._symbolic_build(data_batch=data)
        state = (
            *_weights(model),
            _specs(model.optimizer.variables),
            _specs(model.metrics_variables),
        )
    return _compile(
        topology,
        lambda state, data: model.train_step(state, data),
        [state, data],
        sharded=[False, True],
        updates_state=True,
    )


def compile_prefill(
    model: Any, inputs: Mapping, *, max_length: int, topology: str = "v5e:1x1"
) -> TpuProgram:
    """Compiles the first call of decoding, which reads the prompt.

    Args:
        model: A generative model (one with `incremental()`) or its `IncrementalPair`.
        inputs: All inputs of `prefill` by name, with the masks, as in
            `compile_forward`.
        max_length: Length of the key/value caches: tokens of prompt and continuation.
        topology: As in `compile_forward`.

    Raises:
        ImportError: As in `compile_forward`.
        RuntimeError: As in `compile_forward`.
        TypeError: If `model` can't decode.
        ValueError: As in `compile_forward`.
    """
    prefill: Any = _decoding_functions(model, max_length).prefill
    return compile_forward(prefill, dict(inputs), topology=topology)


def compile_step(
    model: Any, inputs: Mapping, *, max_length: int, topology: str = "v5e:1x1"
) -> TpuProgram:
    """Compiles one step of decoding, which reads a token for each row.

    Args:
        model: As in `compile_prefill`.
        inputs: As in `compile_prefill`: the state of the step follows from the prompt.
        max_length: As in `compile_prefill`.
        topology: As in `compile_forward`.

    Raises:
        ImportError: As in `compile_forward`.
        RuntimeError: As in `compile_forward`.
        TypeError: If `model` can't decode.
        ValueError: As in `compile_forward`.
    """
    functions = _decoding_functions(model, max_length)
    import jax

    prefill: Any = functions.prefill
    step: Any = functions.step
    inputs = jax.tree.map(_spec, dict(inputs))
    with without_allocating():
        outputs = jax.eval_shape(
            lambda weights, x: prefill.stateless_call(*weights, x, training=False)[0],
            _weights(prefill),
            inputs,
        )
    known = {**inputs, **outputs}
    batch = outputs["logits"].shape[0]

    def state_of(tensor):
        # Not the prompt, which has the same name.
        is_new = tensor.name == "token_ids" or tensor.name not in known
        shape = tuple(n or batch for n in tensor.shape)
        new = jax.ShapeDtypeStruct(shape, tensor.dtype)
        return new if is_new else known[tensor.name]

    state = {tensor.name: state_of(tensor) for tensor in step.inputs}
    return compile_forward(step, state, topology=topology)


def compile_generate(
    model: Any,
    inputs: Mapping,
    max_new_tokens: int,
    *,
    strategy: Any = None,
    start_token_id: int | None = None,
    end_token_id: Any = None,
    pad_token_id: int = 0,
    topology: str = "v5e:1x1",
) -> TpuProgram:
    """Compiles the whole loop of `decoding.generate`.

    Args:
        model: As in `compile_prefill`.
        inputs: Arrays by name, as for `generate`.
        max_new_tokens: As for `generate`, like all the arguments below.
        strategy: `Greedy()` (default), `Sample(...)` or `Beam(...)`.
        start_token_id: The prompt of an encoder-decoder if `inputs` has none.
        end_token_id: The token that ends a row, or several.
        pad_token_id: Written to a row after it has ended.
        topology: As in `compile_forward`.

    Raises:
        ImportError: As in `compile_forward`.
        RuntimeError: As in `compile_forward`.
        TypeError: As in `generate`.
        ValueError: As in `compile_forward` and `generate`.
    """
    strategy = Greedy() if strategy is None else strategy
    check_positive("max_new_tokens", max_new_tokens)
    check_strategy(strategy, None)
    inputs = as_arrays(inputs)
    length = required_length(model, inputs, max_new_tokens)
    functions = _decoding_functions(model, length)
    check_beams(functions, strategy)
    inputs = prepare(functions, inputs, start_token_id, pad_token_id)
    batch, prompt_length = inputs[functions.prompt].shape
    check_length(functions.max_length, functions.prompt, prompt_length, max_new_tokens)
    settings = Settings(
        strategy,
        max_new_tokens,
        check_end_tokens(end_token_id, functions.new_vocabulary),
        check_token("pad_token_id", pad_token_id, functions.new_vocabulary),
    )
    loop = CompiledLoop(functions, settings)
    loop.built = True  # Its two models are.
    own = loop.own_inputs(inputs, random_numbers(settings, batch), settings)
    rows = {name: value for name, value in own.items() if value.ndim >= 2}
    shared = {name: value for name, value in own.items() if value.ndim < 2}

    def generate(weights, rows, shared):
        return loop.stateless_call(*weights, {**rows, **shared})[0]

    return _compile(
        topology,
        generate,
        [_weights(loop), {**inputs, **rows}, shared],
        sharded=[False, True, False],
        # XLA would join some of them.
        returns_rows=True,
    )


def _compile(
    topology, function, arguments, sharded, *, returns_rows=False, updates_state=False
):
    """Compiles `function` of trees of arrays or specs, of which some have rows."""
    _require_jax()
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = _mesh(topology)
    replicated = NamedSharding(mesh, PartitionSpec())
    of_rows = NamedSharding(mesh, PartitionSpec(_BATCH))

    def placed(tree, has_rows):
        def place(value):
            spec = _spec(value)
            if has_rows:
                _check_rows(spec, topology, mesh.size)
            where = of_rows if has_rows else replicated
            return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=where)

        return jax.tree.map(place, tree)

    arguments = [placed(*pair) for pair in zip(arguments, sharded, strict=True)]
    options: dict[str, Any] = {"out_shardings": of_rows} if returns_rows else {}
    if updates_state:
        # The new state takes the place of the old one, as in `fit`.
        options = {"donate_argnums": 0, "out_shardings": (None, replicated)}
    start = time.perf_counter()
    # Inside the scope, the ends of Keras' own scopes allocate nothing.
    with without_allocating(), divided_rows(mesh, _BATCH):
        lowered = jax.jit(function, **options).trace(*arguments).lower()
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    return TpuProgram(compiled, topology, mesh.size, seconds)


def _check_rows(spec, topology, devices):
    if not spec.shape or spec.shape[0] % devices:
        raise ValueError(
            f"The batch must be a multiple of the {devices} devices of {topology!r}, "
            f"among which its rows are divided. Received: shape={spec.shape}"
        )


def _mesh(topology: str):
    """The devices of a topology, along one axis."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    found = _TOPOLOGY.fullmatch(topology) if isinstance(topology, str) else None
    if found is None:
        raise ValueError(
            "`topology` must be a generation and the number of chips along each axis, "
            'such as "v5e:2x2", "v5e:1x1" or "v5p:2x2x1". '
            f"Received: topology={topology!r}"
        )
    if jax.default_backend() != "tpu":
        os.environ.setdefault(_LIBRARY, str(_library()))
        for name, value in _COMPILE_ONLY.items():
            os.environ.setdefault(name, value)
    bounds = [int(n or 1) for n in found.groups()]
    # A host has 2 x 2 chips; a topology of fewer is a part of one.
    options = {}
    if any(n % 2 for n in bounds[:2]) and max(bounds) <= 4:
        options["chips_per_host_bounds"] = tuple(bounds)
    try:
        devices = topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"libtpu does not know the `topology`: {error}. "
            f"Received: topology={topology!r}"
        ) from error
    return Mesh(np.array(devices), (_BATCH,))


def _library() -> Path:
    """The file of libtpu: `TPU_LIBRARY_PATH`, or the installed package's."""
    given = os.environ.get(_LIBRARY)
    if given:
        if not Path(given).is_file():
            raise ImportError(
                f"`{_LIBRARY}` must be the path of libtpu.so. Received: {given!r}"
            )
        return Path(given)
    found = importlib.util.find_spec("libtpu")
    if found is None or found.origin is None:
        raise ImportError(
            f"Compiling for TPUs needs `libtpu`, which is not installed: {_INSTALL}"
        )
    return Path(found.origin).with_name("libtpu.so")


def _require_jax():
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "Compiling for TPUs needs Keras' JAX backend: set KERAS_BACKEND=jax before "
            f"Keras is imported. Received: backend={keras.backend.backend()!r}"
        )


def _decoding_functions(model, length):
    _require_jax()
    with without_allocating():
        return get_compilations(model).decoding_functions(model, length)


def _weights(model):
    """Specs of the trainable and the other variables of a model."""
    return (_specs(model.trainable_variables), _specs(model.non_trainable_variables))


def _specs(variables):
    return [_spec(variable) for variable in variables]


def _spec(value):
    """The shape and dtype of an array or a variable."""
    import jax

    return jax.ShapeDtypeStruct(
        tuple(value.shape), keras.backend.standardize_dtype(value.dtype)
    )
