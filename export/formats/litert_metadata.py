"""Names of classes and normalization, where tools for LiteRT look for them.

LiteRT's Task Library and MediaPipe read a flatbuffer of metadata_schema.fbs, which is
the buffer `TFLITE_METADATA` of the model: for each output the name of a file of labels
in the ZIP archive behind the model, and for images the mean and deviation of a pixel.

    ModelMetadata > SubGraphMetadata > TensorMetadata of each input and output
    TensorMetadata > ImageProperties, NormalizationOptions, AssociatedFile
"""

from collections.abc import Sequence

import flatbuffers
import numpy as np

from keras_attn.export.description import LABELS_FILE, Description
from keras_attn.export.signature_info import SignatureInfo
from keras_attn.extras import requires_extra

_NAME = "TFLITE_METADATA"
# Above it, weights lie outside of the flatbuffer.
_MAX_BYTES = 2**31
# Of metadata_schema.fbs: members of unions and enumerations.
_IMAGE, _NORMALIZATION, _AXIS_LABELS = 2, 1, 2
_COLORS = {3: 1, 1: 2}  # RGB and gray, by the number of channels.


def with_metadata(
    content: bytes | bytearray, info: SignatureInfo, description: Description
) -> bytes | bytearray:
    """Adds the metadata to a model of one signature, if there are any.

    Args:
        content: The flatbuffer.
        info: Inputs and outputs of its signature.
        description: Names of classes and preprocessing.
    """
    if description == Description() or len(content) >= _MAX_BYTES:
        return content
    with requires_extra("export", "LiteRT"):
        from ai_edge_litert import schema_py_generated as schema
    model = schema.ModelT.InitFromPackedBuf(content)
    signature = model.signatureDefs[0]
    graph = model.subgraphs[signature.subgraphIndex]
    names = [
        {each.tensorIndex: each.name.decode() for each in maps}
        for maps in (signature.inputs, signature.outputs)
    ]
    buffer, entry = schema.BufferT(), schema.MetadataT()
    made = _model_metadata(
        [names[0].get(index, "") for index in graph.inputs],
        [names[1].get(index, "") for index in graph.outputs],
        info,
        description,
    )
    buffer.data = np.frombuffer(made, np.uint8)
    entry.name, entry.buffer = _NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or ()), entry]
    builder = flatbuffers.Builder(len(content) + len(made) + 1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return builder.Output()


def _model_metadata(
    inputs: Sequence[str],
    outputs: Sequence[str],
    info: SignatureInfo,
    description: Description,
) -> bytes:
    """`ModelMetadata`, of the tensors in the order of the graph."""
    builder = flatbuffers.Builder()
    tensors = []
    for name in inputs:
        shape = info.inputs[name].shape if name in info.inputs else ()
        fields = {0: builder.CreateString(name)}
        if description.preprocessing is not None and len(shape) == 4:
            fields |= _image(builder, shape[-1], description.preprocessing)
        tensors.append(_table(builder, fields))
    results = []
    for name in outputs:
        shape = info.outputs[name].shape if name in info.outputs else ()
        fields = {0: builder.CreateString(name)}
        count = len(description.class_names or ())
        if count and len(shape) > 1 and shape[-1] == count:
            file = _table(
                builder, {0: builder.CreateString(LABELS_FILE)}, {2: _AXIS_LABELS}
            )
            fields[6] = _vector(builder, [file])
        results.append(_table(builder, fields))
    graph = _table(
        builder, {2: _vector(builder, tensors), 3: _vector(builder, results)}
    )
    root = _table(
        builder,
        # The first version of a parser that knows all of these.
        {3: _vector(builder, [graph]), 7: builder.CreateString("1.0.0")},
    )
    builder.Finish(root, file_identifier=b"M001")
    return bytes(builder.Output())


def _image(builder: flatbuffers.Builder, channels: int | None, steps: dict) -> dict:
    """The content and the process units of a `TensorMetadata`, by their slots."""
    properties = _table(builder, {}, {0: _COLORS.get(channels or 0, 0)})
    # (pixel * scale - mean) / std, as (pixel - mean) / std.
    scaled = [
        np.atleast_1d(np.float32(np.divide(steps[name], steps["scale"])))
        for name in ("mean", "std")
    ]
    mean, std = map(builder.CreateNumpyVector, scaled)
    options = _table(builder, {0: mean, 1: std})
    unit = _table(builder, {1: options}, {0: _NORMALIZATION})
    return {
        3: _table(builder, {1: properties}, {0: _IMAGE}),
        4: _vector(builder, [unit]),
    }


def _table(
    builder: flatbuffers.Builder,
    offsets: dict[int, int],
    bytes_: dict[int, int] | None = None,
) -> int:
    """A table of objects and of one-byte numbers, by their slots in the schema."""
    numbers = bytes_ or {}
    builder.StartObject(1 + max([*offsets, *numbers]))
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    for slot, number in numbers.items():
        builder.PrependUint8Slot(slot, number, 0)
    return builder.EndObject()


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()
