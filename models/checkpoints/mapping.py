"""How a checkpoint family names its weights: `Weight`, `Family` and their helpers.

A `Weight` ties one variable of ours to the tensors of a file that hold it:

```python
Weight(("bert.pooler.dense.weight",), layer.kernel, read=np.transpose, write=...)
dense("bert.pooler.dense", layer)      # that, and the bias
query_key_value("…attention.self", attention)
```

Keys are written as in a model with a head, with the prefix (`bert.pooler.…`). A
`Family` adds the rest: the classes it reads, how its model is built from `config.json`,
and which tensors of a file are not needed. Each module of `families/` defines the
`Family` of one or more model types, and `families/__init__.py` lists them; nothing else
depends on a particular family.

`read` takes the arrays of `keys`, in order, and returns the variable's value; `write`
takes the variable's value and returns a tuple, one array per key. Both must use only
views (transposes, splits, reshapes): the shapes expected in a file are found by writing
an array that takes no memory.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from keras_attn.layers.adaptation.kept import kept_in
from keras_attn.layers.adaptation.low_rank import LowRankKernel, get_base
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.layers.embeddings.token_embedding import OutputBias
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.folder import FILES, Files, preview
from keras_attn.models.checkpoints.tensors import Index
from keras_attn.models.parts.functional import numbered_names

# A regular expression, and its replacement.
Rename = tuple[str, str | Callable[[re.Match[str]], str]]


# The dense layers after the pooling of a sentence encoder.
SENTENCE_PROJECTION = "sentence_projection_"


class Joined:
    """Several variables of ours that a file stores as one tensor, side by side.

    Represents them as the `variable` of a `Weight`.

    Args:
        variables: The variables, which differ at most in the size of the last axis.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self.variables = tuple(variables)
        self.path, self.dtype = variables[0].path, variables[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all together."""
        last = sum(variable.shape[-1] for variable in self.variables)
        return (*self.variables[0].shape[:-1], last)

    def assign(self, value) -> None:
        """Gives each variable its part of the value."""
        ends = np.cumsum([variable.shape[-1] for variable in self.variables])
        parts = np.split(value, ends[:-1], axis=-1)
        for variable, part in zip(self.variables, parts, strict=True):
            variable.assign(part)


def get_variables(weight: "Weight") -> tuple:
    """The variables of a weight: one, or those that are joined."""
    variable = weight.variable
    return variable.variables if isinstance(variable, Joined) else (variable,)


@dataclass(frozen=True)
class Weight:
    """One of our variables, and the tensors of a file that it is made of.

    Attributes:
        keys: Keys of the tensors, with the prefix that a model with a head gives them.
        variable: Our variable, or several that are joined; a kernel that has LoRA
            weights or is quantized can only be written.
        read: Maps the tensors, in the order of `keys`, to the variable's value.
        write: Maps the variable's value to the tensors.
        accepts: Whether `read` can also use a single tensor of a given other shape.
        resizes: Whether `read` can resize a single tensor of a given shape. That
            changes the values, so it is accepted only if the caller asks for a
            different image size.
        parts: Maps a part of the variable to the parts of the tensors from which `read`
            makes it; to None if that needs whole tensors.
    """

    keys: tuple[str, ...]
    variable: keras.Variable | Joined
    read: Callable[..., np.ndarray] = field(default=lambda array: array)
    write: Callable[[np.ndarray], Sequence[np.ndarray]] = field(
        default=lambda array: (array,)
    )
    accepts: Callable[[tuple[int, ...]], bool] = field(default=lambda shape: False)
    resizes: Callable[[tuple[int, ...]], bool] = field(default=lambda shape: False)
    parts: Callable[[Index], Sequence[Index] | None] = field(default=lambda index: None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Key to the shape that its tensor must have."""
        # All strides are zero, so it takes four bytes for any shape.
        placeholder = np.broadcast_to(np.float32(0), self.variable.shape)
        parts = self.write(placeholder)
        return {key: part.shape for key, part in zip(self.keys, parts, strict=True)}


def check_complete(model: keras.Model, weights: Sequence[Weight]) -> None:
    """Raises unless `weights` cover the model's variables, each exactly once.

    Raises:
        ValueError: If variables have no key; the message names them.
    """
    mapped = [id(each) for weight in weights for each in get_variables(weight)]
    known = set(mapped)
    for weight in weights:
        for kernel in get_variables(weight):
            if isinstance(kernel, LowRankKernel | QuantizedKernel):
                known.update(map(id, (*kernel.weights, get_base(kernel))))
    known.update(id(x) for kept in kept_in(model) for x in kept.weights.weights)
    missing = [
        variable.path
        for variable in model.weights
        # A counter, which is an integer, is not learned.
        if id(variable) not in known and "int" not in variable.dtype
    ]
    if missing or len(mapped) != len(set(mapped)):
        raise ValueError(
            "Each weight of the model must have exactly one key in a checkpoint of "
            "its family. Received: "
            + (f"no key for {preview(missing)}" if missing else "two keys for a weight")
        )


def same(key: str, variable) -> Weight:
    """A tensor that equals the variable."""
    return Weight((key,), variable, parts=lambda index: (index,))


def transposed(key: str, variable, axes: tuple[int, ...] = (1, 0)) -> Weight:
    """A tensor that is the transposed variable, as PyTorch stores its kernels.

    Args:
        key: Key of the tensor.
        variable: Our variable.
        axes: Axes of the tensor in the order of the variable's.
    """
    inverse = tuple(map(axes.index, range(len(axes))))
    return Weight(
        (key,),
        variable,
        lambda array: np.transpose(array, axes),
        lambda array: (np.transpose(array, inverse),),
        parts=lambda index: (tuple(index[axis] for axis in inverse),),
    )


def reshaped(key: str, variable, shape: tuple[int, ...]) -> Weight:
    """A tensor of another shape, with the numbers in the same order."""
    return Weight(
        (key,),
        variable,
        lambda array: array.reshape(variable.shape),
        lambda array: (array.reshape(shape),),
    )


def tables(layers: Mapping[str, Any], named: Mapping[str, str]) -> list[Weight]:
    """The tables of embeddings, by layer and key, of those layers that there are."""
    found = {key: layers[name] for name, key in named.items() if name in layers}
    return [same(key, layer.embeddings) for key, layer in found.items()]


def weight_normed(name: str, layer) -> list[Weight]:
    """A `Linear` whose weight is `g v / |v|`, with one g for all of v."""
    kernel = Weight(
        (f"{name}.weight_g", f"{name}.weight_v"),
        layer.kernel,
        lambda g, v: np.transpose(g * v / np.linalg.norm(v)),
        lambda array: (np.array(np.linalg.norm(array), array.dtype), array.T),
    )
    return [kernel, same(f"{name}.bias", layer.bias)]


def dense(name: str, layer) -> list[Weight]:
    """A dense layer or projection of ours that is a `Linear`: transposed in PyTorch."""
    weights = [transposed(f"{name}.weight", layer.kernel)]
    return weights + ([] if layer.bias is None else [same(f"{name}.bias", layer.bias)])


def conv1d(name: str, layer) -> list[Weight]:
    """GPT's `Conv1D`: the kernel is laid out as ours."""
    return [same(f"{name}.weight", layer.kernel), same(f"{name}.bias", layer.bias)]


def convolution(name: str, layer, axes=(2, 3, 1, 0)) -> list[Weight]:
    """PyTorch's `Conv2d`: the axes of the channels come before rows and columns."""
    kernel = transposed(f"{name}.weight", layer.kernel, axes)
    return [kernel] + ([] if layer.bias is None else [same(f"{name}.bias", layer.bias)])


def depthwise_convolution(name: str, layer) -> list[Weight]:
    """PyTorch's `Conv2d` with one group per channel."""
    return convolution(name, layer, (2, 3, 0, 1))


def norm(name: str, layer) -> list[Weight]:
    """A layer normalization."""
    return [same(f"{name}.weight", layer.gamma), same(f"{name}.bias", layer.beta)]


def batch_norm(name: str, layer) -> list[Weight]:
    """A batch normalization, with its moving mean and variance."""
    return [
        *norm(name, layer),
        same(f"{name}.running_mean", layer.moving_mean),
        same(f"{name}.running_var", layer.moving_variance),
    ]


def image_layer(name: str, layer) -> list[Weight]:
    """A layer of a network of convolutions, by its kind."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return batch_norm(name, layer)
    if isinstance(layer, keras.layers.GroupNormalization):
        return norm(name, layer)
    is_dense = isinstance(layer, keras.layers.Dense)
    return (dense if is_dense else convolution)(name, layer)


def resnet_weights(
    layers: Mapping[str, Any], renames: Sequence[Rename], prefix: str = ""
) -> list[Weight]:
    """The convolutions and norms of a ResNet of `models.parts.backbones`.

    Args:
        layers: The layers of a model by name.
        renames: Patterns in our names of its layers, and what makes keys of them.
        prefix: What the keys begin with, such as `"backbone."`.
    """
    weights = []
    for name, layer in layers.items():
        if name.startswith(("stem_", "stage_")) and layer.weights:
            weights += image_layer(prefix + renamed(name, renames), layer)
    return weights


def patch_embedding(model, convolution_key: str, norm_key: str) -> list[Weight]:
    """The convolution that embeds patches, and the norm after it."""
    layers = layers_by_name(model)
    return [
        *convolution(convolution_key, layers["patch_embedding"].projection),
        *norm(norm_key, layers["embeddings_norm"]),
    ]


def query_key_value(
    name: str, attention, parts: Sequence[str] = ("query", "key", "value")
) -> list[Weight]:
    """The input projections of an attention: three `Linear` of equal width in a file.

    They are one projection of ours, side by side.
    """
    count, layer = len(parts), attention.query_key_value
    kernel = Weight(
        tuple(f"{name}.{part}.weight" for part in parts),
        layer.kernel,
        lambda *arrays: np.concatenate([array.T for array in arrays], axis=1),
        lambda array: [part.T for part in np.split(array, count, axis=1)],
        parts=lambda index: count * (index[::-1],) if index[1] == slice(None) else None,
    )
    if layer.bias is None:
        return [kernel]
    keys = [f"{name}.{part}.bias" for part in parts]
    return [kernel, concatenated(keys, layer.bias, axis=0)]


def attention_output(name: str, attention) -> list[Weight]:
    """The output projection of an attention, a `Linear`."""
    return dense(name, attention.output_projection)


def concatenated(keys: Sequence[str], variable, axis: int) -> Weight:
    """Tensors that are the variable once they are concatenated along an axis."""
    return Weight(
        tuple(keys),
        variable,
        lambda *arrays: np.concatenate(arrays, axis),
        lambda array: np.split(array, len(keys), axis),
        parts=lambda index: (
            len(keys) * (index,) if index[axis] == slice(None) else None
        ),
    )


def head_weights(model: keras.Model, named: Mapping[str, str]) -> list[Weight]:
    """The weights of the head's layers.

    Args:
        model: The model.
        named: Name of a layer to the key of its tensors. Layers that the model lacks
            are skipped.
    """
    weights = []
    for layer in model.layers:
        name = named.get(layer.name)
        if layer.name.startswith(SENTENCE_PROJECTION):
            # transformers has none: sentence-transformers has a file for each.
            name = f"{layer.name}.linear"
        if name is None:
            continue
        if isinstance(layer, OutputBias):
            weights.append(same(name, layer.bias))
        elif isinstance(layer, keras.layers.LayerNormalization):
            weights += norm(name, layer)
        else:
            weights += dense(name, layer)
    return weights


def layers_by_name(model) -> dict[str, Any]:
    """The layers of a model by name; none for an object that is not a model."""
    return {layer.name: layer for layer in getattr(model, "layers", ())}


def stages_of(names: Collection[str], end: str, kind: str = "block") -> list[list[str]]:
    """For each stage, the names up to `end` of the layers of each block.

    Args:
        names: Names of layers, such as `"stage_0_block_0_conv_0"`.
        end: What follows the number of a block in the name of a layer of each block.
        kind: What a block is called.
    """
    stages: list[list[str]] = []
    while blocks := numbered_names(names, f"stage_{len(stages)}_{kind}_", end):
        stages.append(blocks)
    return stages


def has_only(layers: Mapping[str, Any], starts: tuple[str, ...]) -> bool:
    """Whether the names of all layers with weights begin with one of `starts`."""
    return all(
        name.startswith(starts) for name, layer in layers.items() if layer.weights
    )


def renamed(key: str, renames: Sequence[Rename]) -> str:
    """The key after all replacements, one after the other."""
    for pattern, replacement in renames:
        key = re.sub(pattern, replacement, key)
    return key


def with_keys(weights: Sequence[Weight], renames: Sequence[Rename]) -> list[Weight]:
    """The same weights, whose keys have the names of another format."""
    return [
        replace(weight, keys=tuple(renamed(key, renames) for key in weight.keys))
        for weight in weights
    ]


@dataclass(frozen=True)
class Family:
    """The functions and tables that read and write checkpoints of one model type.

    Attributes:
        model_type: The `model_type` in `config.json`.
        tasks: Every task that `build` accepts.
        build: `(config, task, overrides) -> model`.
        find_task: The task of a model of this family; None for any other model.
        config: A model's fields of `config.json`, except `architectures`.
        weights: Every weight of a model.
        architectures: Class in `config.json` to the task it is read as.
        prefix: Prefix of the body's keys; a file may omit it.
        heads: Prefixes of the full keys of heads, and of parts that only some heads
            have, such as the pooler. A file may have them even if a model does not.
        also_saved_as: Task to the class it is written as, for tasks that no class of
            `architectures` is read as, or more than one.
        buffers: Patterns for full keys whose tensors are not learned.
        tied: Task to the tensors that duplicate another: `{copy: original}`.
        renames: Patterns in the keys of old files, and their replacements, each a
            string or a function of the match.
        renames_for: Maps all keys of a file to such pairs, for old keys of some files
            that are current keys of others.
        fields_for: Maps all keys of a file to fields of the family that differ for it,
            such as `build` of another head.
        unread: Maps a config and a task to prefixes of full keys that a model of this
            task does not depend on.
        default_task: The task that a `config.json` without `architectures` means. None
            if the format always has `architectures`.
        library: The library whose naming this is, and whose models are identified by
            what `config` returns; None for transformers.
        files: Names of the files to write.
        modules: Patterns in keys, and what makes the names of the modules of
            transformers 5 from them, where these differ.
    """

    model_type: str
    tasks: tuple[str, ...]
    build: Callable[[Config, str, dict], keras.Model]
    find_task: Callable[[keras.Model], str | None]
    config: Callable[[keras.Model], dict]
    weights: Callable[[keras.Model], list[Weight]]
    architectures: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    heads: tuple[str, ...] = ()
    also_saved_as: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    tied: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    renames: tuple[Rename, ...] = ()
    renames_for: Callable[[Collection[str]], tuple[Rename, ...]] | None = None
    fields_for: Callable[[Collection[str]], dict[str, Any]] | None = None
    unread: Callable[[Config, str], tuple[str, ...]] = lambda config, task: ()
    default_task: Callable[[Config], str] | None = None
    library: str | None = None
    files: Files = FILES
    modules: tuple[Rename, ...] = ()

    @property
    def saved_as(self) -> dict[str, str]:
        """Task to the class it is written as."""
        read_as = {task: name for name, task in self.architectures.items()}
        return {**read_as, **self.also_saved_as}

    @property
    def bare(self) -> str | None:
        """The class of an encoder, whose keys have no prefix."""
        return self.saved_as.get("encoder")

    def identity(self, task: str) -> dict[str, Any]:
        """The fields of `config.json` that identify the model, besides `config`'s."""
        if self.library == "torchvision":
            # This library has no configurations of its own.
            return {"library": self.library}
        if self.library is not None:
            return {}
        return {"architectures": [self.saved_as[task]], "model_type": self.model_type}

    def for_keys(self, keys: Collection[str]) -> "Family":
        """The same family, with what a file with these keys needs."""
        fields = {} if self.fields_for is None else self.fields_for(keys)
        if self.renames_for is not None:
            fields["renames"] = self.renames + self.renames_for(keys)
        return replace(self, **fields)

    def is_head(self, key: str) -> bool:
        """Whether a full key belongs to a head."""
        return key.startswith((*self.heads, SENTENCE_PROJECTION))

    def full_key(self, key: str) -> str:
        """The key with its prefix and its current name."""
        key = renamed(key, self.renames)
        if key.startswith(self.prefix) or self.is_head(key):
            return key
        return self.prefix + key

    def module_key(self, key: str) -> str:
        """The key that begins with the name of a module of transformers 5."""
        return renamed(key, self.modules)

    def is_buffer(self, key: str) -> bool:
        """Whether the tensor of a full key is not learned."""
        return any(re.fullmatch(pattern, key) for pattern in self.buffers)
