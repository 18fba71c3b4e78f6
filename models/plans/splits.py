"""A table of how the weights of each kind of layer are divided among devices.

The first product of a pair is divided by columns and the second by rows, so a device
computes its own columns and rows, and the devices add up once per pair (Shoeybi et al.
2019, "Megatron-LM", arXiv:1909.08053, section 3):

`MultiHeadAttention`, `RelativeMultiHeadAttention`
    kernels of queries, keys and values by columns, of the output by rows: N/n heads
`MultiHeadAttention` with a fused kernel, `WindowAttention`
    the fused kernel by rows, for which `Projection` has the reason, and the output by
    rows: N/n heads
`FeedForward`
    `expand` by columns, `contract` by rows: 1/n of `mlp_dim`
`GlimpseAttention`
    kernels of query and value by columns, of the scores by rows: 1/n of `units`
embeddings with more rows than columns
    by rows, or else by columns: 1/n of the vocabulary
any other `Dense`
    by columns, or else by rows: 1/n of the outputs
`Conv2D`, transposed convolutions
    by channels of the output, or else of the input, never along rows and columns of the
    image: 1/n of the channels

All else is whole on every device: norms, biases of whole axes and other vectors,
positions and small tables, depthwise and grouped convolutions, which are small; and
everything inside a recurrent loop, because devices would wait for each other at every
step of it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras

from keras_attn import layers


class Group(NamedTuple):
    """Weights of one layer that are divided together.

    Attributes:
        ways: Name of a weight to the axis that is divided, the best way first; a
            projection inside the layer has "query/kernel". Names that the layer does
            not have are skipped.
        units: Sizes that must be divided without a rest besides those axes, such as a
            number of heads.
        argument: The builder's argument that determines the size, if the pair is what
            devices are there for: a size that they cannot share is then an error.
    """

    ways: tuple[dict[str, int], ...]
    units: tuple[int, ...] = ()
    argument: str | None = None


class Found(NamedTuple):
    """A layer, and the groups of its own weights."""

    layer: keras.layers.Layer
    groups: tuple[Group, ...]


# Their weights stay whole, also of all layers inside.
_LOOPS = (
    layers.AttentionRNN,
    layers.FrameAttentionRNN,
    layers.AttentionSpeller,
    layers.PyramidalBLSTM,
    keras.layers.RNN,
    keras.layers.Bidirectional,
)
_BY_COLUMNS = Group(({"kernel": 1, "bias": 0}, {"kernel": 0}))


def find_groups(model: keras.Model) -> Iterator[Found]:
    """Every layer of a model once, layers inside layers included."""
    seen: set[int] = set()

    def visit(layer, given, in_loop):
        if id(layer) in seen:
            return
        seen.add(id(layer))
        in_loop = in_loop or isinstance(layer, _LOOPS)
        groups = () if in_loop else given or _layer_groups(layer)
        yield Found(layer, groups)
        pair = {}
        if isinstance(layer, layers.FeedForward):
            pair = {
                id(layer.expand): Group(({"kernel": 1, "bias": 0},), (), "mlp_dim"),
                id(layer.contract): Group(({"kernel": 0},), (), "mlp_dim"),
            }
        for inner in layer._layers:
            group = pair.get(id(inner))
            yield from visit(inner, group and (group,), in_loop)

    yield from visit(model, None, False)


def weights_by_name(layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    """The weights of the layer and of projections inside it, by name."""
    inside = [x for x in layer._layers if isinstance(x, layers.Projection)]
    return {
        f"{each.name}/{weight.name}" if each in inside else weight.name: weight
        for each in (layer, *inside)
        for weight in each._trainable_variables + each._non_trainable_variables
    }


def is_fused(layer: keras.layers.Layer) -> bool:
    """Whether a layer has one kernel for queries, keys and values."""
    return getattr(layer, "query_key_value", None) is not None


def key_value_heads(layer: keras.layers.Layer) -> int:
    """The number of heads of the keys and values of an attention."""
    return getattr(layer, "num_key_value_heads", None) or layer.num_heads


def _layer_groups(layer) -> tuple[Group, ...]:
    for kind, groups in _TABLE.items():
        if isinstance(layer, kind):
            return groups(layer)
    return ()


def _attention(layer) -> tuple[Group, ...]:
    heads, groups = (layer.num_heads,), (key_value_heads(layer),)
    if is_fused(layer):
        output = {"output/kernel": 0}
        ways = ({"query_key_value/kernel": 0, **output}, output)
        return (Group(ways, heads, "num_heads"),)
    queries = {"query/kernel": 1, "query/bias": 0, "output/kernel": 0}
    others = ("key/kernel", "value/kernel", "position/kernel")
    keys = {**dict.fromkeys(others, 1), "key/bias": 0, "value/bias": 0}
    return (
        Group((queries,), heads, "num_heads"),
        # With fewer heads than devices, each needs the keys of all its queries.
        Group((keys,), groups, "num_heads" if groups == heads else None),
    )


def _glimpses(layer) -> tuple[Group, ...]:
    way = {"query/kernel": 1, "query/bias": 0, "value/kernel": 1, "score/kernel": 0}
    return (Group((way,)),)


def _convolution(layer) -> tuple[Group, ...]:
    if getattr(layer, "groups", 1) > 1:
        return ()
    return (Group(({"kernel": 3, "bias": 0}, {"kernel": 2})),)


def _transposed_convolution(layer) -> tuple[Group, ...]:
    # (rows, columns, channels of the output, channels of the input).
    return (Group(({"kernel": 2, "bias": 0}, {"kernel": 3})),)


def _tables(*names: str) -> Callable[..., tuple[Group, ...]]:
    def groups(layer):
        return tuple(
            Group(({weight.name: 0}, {weight.name: 1}))
            for weight in layer._trainable_variables + layer._non_trainable_variables
            if weight.name in names and weight.shape[0] > weight.shape[1]
        )

    return groups


_TABLE: dict[type | tuple[type, ...], Callable[..., tuple[Group, ...]]] = {
    (
        layers.MultiHeadAttention,
        layers.RelativeMultiHeadAttention,
        layers.WindowAttention,
    ): _attention,
    layers.GlimpseAttention: _glimpses,
    keras.layers.Dense: lambda layer: (_BY_COLUMNS,),
    (layers.TransposedConv2D, keras.layers.Conv2DTranspose): _transposed_convolution,
    keras.layers.Conv2D: _convolution,
    (layers.TokenEmbedding, keras.layers.Embedding): _tables("embeddings"),
    layers.CaptionEmbedding: _tables("token_embeddings"),
    layers.ImageCodeEmbedding: _tables("code_embeddings"),
    layers.CodeProjection: _tables("kernel"),
}
