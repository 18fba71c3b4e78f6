"""ONNX, through tf2onnx: for ONNX Runtime on servers, desktops and in browsers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import keras
import tensorflow as tf

from keras_attn.export.errors import ExportError, RefusedError, missing_extra
from keras_attn.export.files import ONNX_OUTPUT_NAMES, ONNX_WEIGHTS
from keras_attn.export.formats import onnx_rewrites, onnx_weights
from keras_attn.export.signatures import Signature
from keras_attn.silence import silence

# Protobuf's limit of a message, and so of an ONNX file.
_LARGEST_MESSAGE = 2**31 - 1
_XLA, _UNMARKED = "_XlaMustCompile", "__unmarked"


def write(signatures: list[Signature], functions: dict, path: Path) -> tuple[str, ...]:
    """Converts traced signatures to ONNX.

    Large weights are inputs of what tf2onnx converts, and become initializers when the
    graph is written, one after the other: see `onnx_weights`.

    One signature becomes one file if it has less than 2 GiB, which is what protobuf
    allows. A larger one, or several signatures, become a folder: one graph per
    signature, and `weights.data` with every large tensor once, however many graphs
    use it.

    Args:
        signatures: What was traced.
        functions: Concrete functions by signature name.
        path: File or folder to make.

    Returns:
        Notes for the report.

    Raises:
        RefusedError: Operators that ONNX lacks.
        ExportError: tf2onnx failed, or the checker refused what it made.
    """
    _, onnx = _packages()
    notes: list[str] = []
    # Without their large weights the graphs are small: all fit in memory.
    graphs = []
    for signature in signatures:
        function = functions[signature.name]
        lifted = onnx_weights.liftable(signature, function)
        model = _convert(signature, function, lifted, notes)
        graphs.append((signature.name, model, lifted))
    if len(graphs) == 1:
        [(_, model, lifted)] = graphs
        if onnx_weights.file_size(model, lifted) <= _LARGEST_MESSAGE:
            onnx_weights.write_file(model, lifted, path)
            _check(onnx, path)
            return tuple(notes)
    path.mkdir()
    with onnx_weights.WeightFile(path / ONNX_WEIGHTS) as weights:
        for name, model, lifted in graphs:
            weights.take_from(model, lifted)
            (path / f"{name}.onnx").write_bytes(model.SerializeToString())
    for name in functions:
        _check(onnx, path / f"{name}.onnx")
    return tuple(notes)


def operators(path: Path) -> dict[str, int]:
    """Counts the operators of an ONNX file or folder, inside loops too."""
    _, onnx = _packages()
    files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    counts: Counter[str] = Counter()
    for file in files:
        model = onnx.load(file, load_external_data=False)
        counts.update(node.op_type for node in _nodes(model.graph))
    return dict(counts)


def _packages():
    try:
        import onnx
        import tf2onnx
    except ImportError as error:
        raise missing_extra(error.name or "tf2onnx") from error
    return tf2onnx, onnx


def _convert(
    signature: Signature,
    function,
    lifted: Mapping[str, keras.Variable],
    notes: list[str],
):
    """Converts one signature to an `onnx.ModelProto`.

    Args:
        signature: What to convert.
        function: Its concrete function, for inputs and outputs.
        lifted: Weights that come in as inputs, by name.
        notes: Where to add what was renamed.
    """
    name = signature.name
    tf2onnx, onnx = _packages()
    specs = dict(function.structured_input_signature[1])
    for key, variable in lifted.items():
        specs[key] = onnx_weights.spec(key, variable)
    call = _inlined(_traced(signature, specs, lifted) if lifted else function)
    # One ONNX graph has one name space for what goes in and what comes out.
    names = {
        key: f"{key}_out" if key in specs else key
        for key in function.structured_outputs
    }

    def renamed(*tensors):
        outputs = call(dict(zip(specs, tensors, strict=True)))
        # The identity keeps an output that is an input apart from it.
        return {names[key]: tf.identity(value) for key, value in outputs.items()}

    wrapper = tf.function(renamed, autograph=False)

    def converted():
        kept, once = onnx_rewrites.reshapes_kept(), onnx_rewrites.nodes_visited_once()
        with silence(), kept, once:
            return tf2onnx.convert.from_function(
                wrapper,
                input_signature=list(specs.values()),
                custom_op_handlers=dict(onnx_rewrites.HANDLERS),
            )

    try:
        try:
            with onnx_rewrites.optimized_in_place():
                model, _ = converted()
        except Exception:  # tf2onnx raises bare `Exception`s of every kind.
            # With copies a pass that fails is left out.
            model, _ = converted()
    except Exception as error:
        raise ExportError(f"tf2onnx could not convert `{name}`: {error}") from error
    _refuse_unknown(onnx, model)
    _keep_constants(onnx, model, wrapper.get_concrete_function(*specs.values()))
    for value in model.graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.dim_param = "batch" if axis == 0 else f"{value.name}_{axis}"
    entry = model.metadata_props.add(key=ONNX_OUTPUT_NAMES)
    entry.value = json.dumps({new: old for old, new in names.items()})
    notes += [
        f"`{name}` gives `{old}` as `{new}`: it takes an input of that name"
        for old, new in names.items()
        if old != new
    ]
    return model


def _traced(signature: Signature, specs: dict, lifted: Mapping[str, keras.Variable]):
    """Traces a signature with some of its weights as inputs beside its own."""

    def run(**tensors):
        return onnx_weights.call_with(signature, lifted, tensors)

    return tf.function(run, autograph=False).get_concrete_function(**specs)


def _inlined(function) -> Callable[[dict], dict]:
    """The function, dictionary in and out, with nothing left for XLA to compile.

    A function inside that is marked for XLA is kept in one piece, and what is in it
    stays unseen. Keras' own grouped convolution is such a function.
    """
    graph_def = function.graph.as_graph_def()
    if not any(_XLA in node.attr for node in graph_def.node):
        return lambda inputs: function(**inputs)
    # Not public; `tf.lite` and tf2onnx freeze with it too.
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    frozen = convert_variables_to_constants_v2(function)
    graph_def = frozen.graph.as_graph_def()
    _unmark(graph_def)
    names = [tensor.name for tensor in frozen.inputs]
    keys = [name.split(":")[0] for name in names]
    # TensorFlow flattens a dictionary in the order of its sorted keys.
    flat = zip(sorted(function.structured_outputs), frozen.outputs, strict=True)
    outputs = {key: tensor.name for key, tensor in flat}
    pruned = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    ).prune(names, outputs)
    return lambda inputs: pruned(*(inputs[key] for key in keys))


def _unmark(graph_def) -> None:
    """Lets TensorFlow look into every function of a graph, in place."""
    functions = graph_def.library.function
    for function in functions:
        # Under its own name it would clash with the function it was.
        function.signature.name += _UNMARKED
    for node in (*graph_def.node, *(n for f in functions for n in f.node_def)):
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name:
                    called.name += _UNMARKED
    for owner in (*graph_def.node, *functions):
        for mark in (_XLA, "_noinline"):
            owner.attr.pop(mark, None)


def _keep_constants(onnx, model, function) -> None:
    """Writes down the tensors a layer holds, which tf2onnx takes for inputs."""
    held = {inner.name: outer for outer, inner in function.graph.captures}
    for value in list(model.graph.input):
        if value.name in held:
            array = held[value.name].numpy()
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(array, value.name)
            )
            model.graph.input.remove(value)


def _nodes(graph) -> Iterator:
    """Every node of a graph and of the graphs inside its loops and branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _refuse_unknown(onnx, model) -> None:
    """tf2onnx logs what it cannot map, and writes it down all the same."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    unknown = {}
    for node in _nodes(model.graph):
        try:
            onnx.defs.get_schema(
                node.op_type, versions.get(node.domain, 1), node.domain
            )
        except onnx.defs.SchemaError:
            unknown.setdefault(node.op_type, node.name)
    if unknown:
        raise RefusedError(
            "ONNX has no form of " + ", ".join(f"`{op}`" for op in unknown),
            tuple(unknown),
            tuple(unknown.values()),
        )


def _check(onnx, path: Path) -> None:
    try:
        # By path: the checker then finds external tensors, and has no 2 GB limit.
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ExportError(f"ONNX's checker refused {path.name}: {error}") from error
