"""ONNX, through tf2onnx: for ONNX Runtime on servers, desktops and in browsers."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import keras
import tensorflow as tf

from keras_attn.export import metadata, seals
from keras_attn.export.errors import ExportError, RefusedError, in_one_line
from keras_attn.export.formats import (
    onnx_folding,
    onnx_integers,
    onnx_rewrites,
    onnx_weights,
)
from keras_attn.export.portable_operations import portable_operations
from keras_attn.export.runtimes.onnx import (
    DESCRIPTION,
    INDEX_RANGES,
    OUTPUT_NAMES,
    WEIGHTS,
    graph_files,
)
from keras_attn.export.signatures import Signature, TracedModel
from keras_attn.export.silence import silence
from keras_attn.extras import requires_extra

# Protobuf's limit of a message, and so of an ONNX file.
_LARGEST_MESSAGE = 2**31 - 1
_XLA, _UNMARKED = "_XlaMustCompile", "__unmarked"


def write(traced: TracedModel, path: Path) -> tuple[str, ...]:
    """Converts a traced model to ONNX.

    Large weights are inputs of the graph that tf2onnx converts, and become
    initializers while the graph is written, see `onnx_weights`.

    One signature becomes one file if it has less than 2 GiB, protobuf's limit. A
    larger one, or several signatures, become a folder: one graph per signature, and
    `weights.data` with every large tensor once, however many graphs use it.

    Returns:
        Notes for the report.

    Raises:
        RefusedError: If ONNX does not have an operator.
        ExportError: If tf2onnx failed, or ONNX' checker rejected its result.
    """
    onnx = _packages()[1]
    notes: list[str] = []
    # Without their large weights the graphs are small, so all fit in memory.
    graphs = []
    for signature in traced.signatures:
        function = traced.functions[signature.name]
        lifted = onnx_weights.liftable(signature, function, traced.integers)
        model = _convert(signature, function, lifted, notes)
        weights = onnx_weights.take_inputs(model, lifted)
        onnx_folding.fold(model, weights)
        model.graph.name = signature.name
        in_integers = traced.quantization is not None
        notes += onnx_integers.replace(
            model, weights, traced.integers, in_integers=in_integers
        )
        graphs.append((signature.name, model, weights))
    text = metadata.to_json(traced.signatures)
    description = traced.description.to_json()
    for file in _write_graphs(graphs, path):
        try:
            # By path: the checker then finds external tensors, and has no 2 GB limit.
            onnx.checker.check_model(str(file))
        except onnx.checker.ValidationError as error:
            raise ExportError(f"ONNX's checker refused {file.name}: {error}") from error
        for key, value in ((INDEX_RANGES, text), (DESCRIPTION, description)):
            if value is not None:
                _append_metadata(onnx, file, key, value)
        _append_metadata(onnx, file, seals.ONNX_KEY, seals.ROOM)
    seals.seal(path)
    return tuple(notes)


def _write_graphs(graphs: list[tuple], path: Path) -> list[Path]:
    """Writes `(name, model, weights)` to a file or folder; returns the files."""
    if len(graphs) == 1:
        [(_, model, weights)] = graphs
        if onnx_weights.file_size(model, weights) <= _LARGEST_MESSAGE:
            onnx_weights.write_file(model, weights, path)
            return [path]
    path.mkdir()
    with onnx_weights.WeightFile(path / WEIGHTS) as file:
        for name, model, weights in graphs:
            file.take_from(model, weights)
            (path / f"{name}.onnx").write_bytes(model.SerializeToString())
    return [path / f"{name}.onnx" for name, _, _ in graphs]


def _append_metadata(onnx, file: Path, key: str, text: str) -> None:
    addition = onnx.ModelProto()
    addition.metadata_props.add(key=key, value=text)
    with file.open("ab") as opened:
        # Concatenated protobuf messages are one message with the fields of both.
        opened.write(addition.SerializeToString())


def _packages():
    with requires_extra("export", "ONNX"):
        import onnx
        import tf2onnx
    return tf2onnx, onnx


def _convert(
    signature: Signature,
    function,
    lifted: Mapping[str, keras.Variable],
    notes: list[str],
):
    """Converts one signature to an `onnx.ModelProto`.

    Args:
        signature: The signature.
        function: Its concrete function.
        lifted: Weights to pass as inputs, by name.
        notes: Takes a note for each renamed output.
    """
    name, onnx = signature.name, _packages()[1]
    specs = dict(function.structured_input_signature[1])
    for key, variable in lifted.items():
        specs[key] = onnx_weights.spec(key, variable)
    call = _inlined(_traced(signature, specs, lifted) if lifted else function)
    # In an ONNX graph inputs and outputs share one name space.
    taken = {key.lower() for key in specs}
    names = {
        key: f"{key}_out" if key.lower() in taken else key
        for key in function.structured_outputs
    }
    notes += [
        f"output `{old}` of `{name}` is renamed `{new}` in the graph, which has an "
        "input of that name"
        for old, new in names.items()
        if old != new
    ]

    def renamed(*tensors):
        outputs = call(dict(zip(specs, tensors, strict=True)))
        # The identity gives an output that is also an input its own tensor.
        return {names[key]: tf.identity(value) for key, value in outputs.items()}

    wrapper = tf.function(renamed, autograph=False)
    model = _run_tf2onnx(name, wrapper, list(specs.values()))
    # TensorFlow makes the names of a function's inputs lower case.
    _rename_inputs(model.graph, {key.lower(): key for key in specs})
    # TensorFlow sorts the outputs of a function, and its inputs, by name.
    _reorder(model.graph.input, (*signature.inputs, *lifted))
    _reorder(model.graph.output, names.values())
    _refuse_unknown_operators(onnx, model)
    _restore_constants(onnx, model, wrapper.get_concrete_function(*specs.values()))
    for value in model.graph.input:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.dim_param = "batch" if axis == 0 else f"{value.name}_{axis}"
    entry = model.metadata_props.add(key=OUTPUT_NAMES)
    entry.value = json.dumps({new: old for old, new in names.items()})
    return model


def _rename_inputs(graph, names: Mapping[str, str]) -> None:
    """Gives the inputs of a graph other names, in place, wherever they are used."""
    changed = {each.name: names.get(each.name, each.name) for each in graph.input}
    for value in graph.input:
        value.name = changed[value.name]
    for node in _nodes(graph):
        node.input[:] = [changed.get(used, used) for used in node.input]


def _reorder(values, names: Iterable[str]) -> None:
    """Sorts the inputs or the outputs of a graph into the order of `names`, in place.

    Inputs of other names, such as constants that tf2onnx makes inputs, come last.
    """
    places = {name: place for place, name in enumerate(names)}
    values.sort(key=lambda value: places.get(value.name, len(places)))


def _run_tf2onnx(name: str, function, specs: list[tf.TensorSpec]):
    """Converts a `tf.function`; returns an `onnx.ModelProto`."""
    tf2onnx = _packages()[0]

    def convert():
        kept, once = onnx_rewrites.reshapes_kept(), onnx_rewrites.nodes_visited_once()
        with silence(), kept, once:
            return tf2onnx.convert.from_function(
                function,
                input_signature=specs,
                custom_op_handlers=dict(onnx_rewrites.HANDLERS),
            )[0]

    try:
        try:
            with onnx_rewrites.optimized_in_place():
                return convert()
        except Exception:  # tf2onnx raises plain `Exception`s.
            # With copies, a pass that fails is skipped.
            return convert()
    except Exception as error:
        raise ExportError(
            f"tf2onnx could not convert `{name}`: {in_one_line(error)}"
        ) from error


def _traced(signature: Signature, specs: dict, lifted: Mapping[str, keras.Variable]):
    """Traces a signature with some of its weights as additional inputs."""

    def run(**tensors):
        return onnx_weights.call_with(signature, lifted, tensors)

    with portable_operations():
        return tf.function(run, autograph=False).get_concrete_function(**specs)


def _inlined(function) -> Callable[[dict], dict]:
    """The function, dictionary in and out, without inner functions compiled by XLA.

    tf2onnx does not look into an inner function that is marked for XLA. Keras' grouped
    convolution is one.
    """
    graph_def = function.graph.as_graph_def()
    if not any(_XLA in node.attr for node in graph_def.node):
        return lambda inputs: function(**inputs)
    # Not public; `tf.lite` and tf2onnx also use it.
    from tensorflow.python.framework.convert_to_constants import (
        convert_variables_to_constants_v2,
    )

    frozen = convert_variables_to_constants_v2(function)
    graph_def = frozen.graph.as_graph_def()
    _remove_xla_marks(graph_def)
    names = [tensor.name for tensor in frozen.inputs]
    keys = [name.split(":")[0] for name in names]
    # TensorFlow flattens a dictionary in the order of its sorted keys.
    flat = zip(sorted(function.structured_outputs), frozen.outputs, strict=True)
    outputs = {key: tensor.name for key, tensor in flat}
    pruned = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph_def, name=""), []
    ).prune(names, outputs)
    return lambda inputs: pruned(*(inputs[key] for key in keys))


def _remove_xla_marks(graph_def) -> None:
    """Makes every function of a graph an ordinary one, in place."""
    functions = graph_def.library.function
    for function in functions:
        # Renamed, because the original function is registered under its own name.
        function.signature.name += _UNMARKED
    for node in (*graph_def.node, *(n for f in functions for n in f.node_def)):
        for attribute in node.attr.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name:
                    called.name += _UNMARKED
    for owner in (*graph_def.node, *functions):
        for mark in (_XLA, "_noinline"):
            owner.attr.pop(mark, None)


def _restore_constants(onnx, model, function) -> None:
    """Makes a layer's constant tensors, which tf2onnx makes inputs, initializers."""
    held = {inner.name: outer for outer, inner in function.graph.captures}
    for value in list(model.graph.input):
        if value.name in held:
            array = held[value.name].numpy()
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(array, value.name)
            )
            model.graph.input.remove(value)


def _nodes(graph) -> Iterator:
    """Every node of a graph, loops and branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _refuse_unknown_operators(onnx, model) -> None:
    """Raises for operators that tf2onnx could not map: it only logs them."""
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
            "ONNX has no equivalent of " + ", ".join(f"`{op}`" for op in unknown),
            tuple(unknown.values()),
        )


def _nodes_in(path: Path) -> Iterator:
    """Every node of an ONNX file or folder."""
    onnx = _packages()[1]
    for file in graph_files(path).values():
        yield from _nodes(onnx.load(file, load_external_data=False).graph)


def count_operators(path: Path) -> dict[str, int]:
    """Counts the operators of an ONNX file or folder; operators in loops count once."""
    return dict(Counter(node.op_type for node in _nodes_in(path)))


def read_quantization(path: Path) -> str | None:
    """`"int8_dynamic"` if a product rounds what it multiplies to 8 bits."""
    rounds = any(map(onnx_integers.computes_in_integers, _nodes_in(path)))
    return "int8_dynamic" if rounds else None
