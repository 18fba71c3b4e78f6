"""The small language in which a family says how its weights are named in a file.

A `Weight` ties one variable of ours to the tensors that hold it:

```python
Weight(("bert.pooler.dense.weight",), layer.kernel, read=np.transpose, write=...)
dense("bert.pooler.dense", layer)      # that, and the bias
fused("…attention.self", ("query", "key", "value"), kernel, bias)
```

Keys are written as a model with a head has them, prefix and all (`bert.pooler.…`). A
`Family` adds what is around the weights: which classes it reads, how its model is
built from `config.json`, and which tensors of a file are of no use to us. A module of
this folder makes one `Family` a model type; `families.py` lists them. No other file
knows a family.

`read` takes the arrays of `keys`, in order, and gives the variable's; `write` takes the
variable's array and gives a tuple, one array a key. Both must be made of views
(transposes, splits, reshapes): the shapes expected in a file are found by writing an
array of no memory.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import keras
import numpy as np

from keras_attn.file_reading import shown
from keras_attn.layers.token_embedding import OutputBias
from keras_attn.models.checkpoints.config import Config
from keras_attn.ops import gelu_tanh

# Bounds of the numbers in a `config.json` that no axis of a weight is bound by.
MAX_SIZE = 2**31 - 1
MAX_IMAGE_SIZE = 8192
MAX_CLASSES = 100_000

# What transformers calls them; of two names the first is written.
ACTIVATIONS = {
    "gelu": keras.activations.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": keras.activations.relu,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
    "tanh": keras.activations.tanh,
}

# A pattern, and what takes its place.
Rename = tuple[str, str | Callable[[re.Match[str]], str]]


@dataclass(frozen=True)
class Weight:
    """One of our variables, and the tensors of a file that make it up.

    Attributes:
        keys: Of the tensors, with the prefix that a model with a head gives them.
        variable: Ours.
        read: The tensors, in the order of `keys`, to the variable's array.
        write: The variable's array to the tensors.
        accepts: Other shapes of a lone tensor that `read` can make the variable of.
        resizes: Further such shapes, which change what is read and so are accepted
            only where the caller asks for another image size.
    """

    keys: tuple[str, ...]
    variable: keras.Variable
    read: Callable[..., np.ndarray] = field(default=lambda array: array)
    write: Callable[[np.ndarray], Sequence[np.ndarray]] = field(
        default=lambda array: (array,)
    )
    accepts: Callable[[tuple[int, ...]], bool] = field(default=lambda shape: False)
    resizes: Callable[[tuple[int, ...]], bool] = field(default=lambda shape: False)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Key to the shape that its tensor must have."""
        # All of its strides are zero, so it takes four bytes at any shape.
        hollow = np.broadcast_to(np.float32(0), self.variable.shape)
        parts = self.write(hollow)
        return {key: part.shape for key, part in zip(self.keys, parts, strict=True)}


def same(key: str, variable) -> Weight:
    """A tensor that is the variable."""
    return Weight((key,), variable)


def transposed(key: str, variable) -> Weight:
    """A tensor that is the variable transposed, as PyTorch keeps its kernels."""
    return Weight((key,), variable, np.transpose, lambda array: (array.T,))


def linear(name: str, kernel, bias) -> list[Weight]:
    """PyTorch's `Linear`: the kernel is transposed. `bias` may be None."""
    weights = [transposed(f"{name}.weight", kernel)]
    return weights + ([] if bias is None else [same(f"{name}.bias", bias)])


def dense(name: str, layer) -> list[Weight]:
    """A `Dense` layer of ours that is a `Linear` there."""
    return linear(name, layer.kernel, layer.bias)


def conv1d(name: str, kernel, bias) -> list[Weight]:
    """GPT's `Conv1D`: the kernel is as ours."""
    return [same(f"{name}.weight", kernel), same(f"{name}.bias", bias)]


def convolution(name: str, layer) -> list[Weight]:
    """PyTorch's `Conv2d`: channels come before rows and columns."""
    kernel = Weight(
        (f"{name}.weight",),
        layer.kernel,
        lambda array: array.transpose(2, 3, 1, 0),
        lambda array: (array.transpose(3, 2, 0, 1),),
    )
    return [kernel] + ([] if layer.bias is None else [same(f"{name}.bias", layer.bias)])


def depthwise_convolution(name: str, layer) -> list[Weight]:
    """PyTorch's `Conv2d` with a group for each channel."""
    kernel = Weight(
        (f"{name}.weight",),
        layer.kernel,
        lambda array: array.transpose(2, 3, 0, 1),
        lambda array: (array.transpose(2, 3, 0, 1),),
    )
    return [kernel, same(f"{name}.bias", layer.bias)]


def norm(name: str, layer) -> list[Weight]:
    """A layer normalisation."""
    return [same(f"{name}.weight", layer.gamma), same(f"{name}.bias", layer.beta)]


def fused(name: str, parts: Sequence[str], kernel, bias) -> list[Weight]:
    """Several `Linear` of one width that are side by side in one kernel of ours.

    `bias` may be None.
    """
    count = len(parts)
    weights = [
        Weight(
            tuple(f"{name}.{part}.weight" for part in parts),
            kernel,
            lambda *arrays: np.concatenate([array.T for array in arrays], axis=1),
            lambda array: [part.T for part in np.split(array, count, axis=1)],
        )
    ]
    if bias is not None:
        weights.append(
            Weight(
                tuple(f"{name}.{part}.bias" for part in parts),
                bias,
                lambda *arrays: np.concatenate(arrays),
                lambda array: np.split(array, count),
            )
        )
    return weights


def head_weights(model, named: Mapping[str, str]) -> list[Weight]:
    """The weights of those layers in `named`, layer to key, that the model has."""
    weights = []
    for layer in model.layers:
        name = named.get(layer.name)
        if name is None:
            continue
        if isinstance(layer, OutputBias):
            weights.append(same(name, layer.bias))
        elif isinstance(layer, keras.layers.LayerNormalization):
            weights += norm(name, layer)
        else:
            weights += dense(name, layer)
    return weights


def head_task(model: keras.Model) -> str | None:
    """The task of an encoder with a head, by the head's layers; None for no such."""
    names = {layer.name for layer in model.layers}
    for task, layer in (
        ("masked_lm", "masked_lm_logits"),
        ("next_sentence", "next_sentence"),
        ("span_qa", "span"),
        ("sentence_encoder", "sentence_pooling"),
    ):
        if layer in names:
            return task
    if "classifier" in names:
        return "classifier" if len(model.output.shape) == 2 else "token_classifier"
    is_encoder = isinstance(model.output, dict) and "sequence_output" in model.output
    return "encoder" if is_encoder else None


@dataclass(frozen=True)
class Family:
    """Everything that reading and writing one model type takes.

    Attributes:
        model_type: As in `config.json`.
        architectures: Class in `config.json` to the task it is read as.
        saved_as: Task to the class it is written as.
        tasks: Every task that `build` takes.
        bare: The class whose keys have no prefix.
        prefix: Of the keys that are the body's; it may be missing in a file.
        heads: How the full keys of heads begin (and of what only some heads have,
            such as the pooler). A file may have them where a model does not.
        build: `(config, task, overrides) -> model`.
        task_of: The task of one of this family's models; None for any other model.
        config: What `config.json` says of a model, but for `architectures`.
        weights: Every weight of a model.
        buffers: Patterns of whole keys that hold nothing learned.
        tied: Task to the tensors that repeat another: `{copy: original}`.
        renames: Patterns in the keys of old files, and what they became, a text or a
            function of the match.
        renames_for: All keys of a file to such pairs, where the old keys of some files
            are new keys of others.
        default_task: The task that a `config.json` without `architectures` means. None
            where there are `architectures`.
    """

    model_type: str
    architectures: Mapping[str, str]
    saved_as: Mapping[str, str]
    tasks: tuple[str, ...]
    bare: str
    prefix: str
    heads: tuple[str, ...]
    build: Callable[[dict, str, dict], keras.Model]
    task_of: Callable[[keras.Model], str | None]
    config: Callable[[keras.Model], dict]
    weights: Callable[[keras.Model], list[Weight]]
    buffers: tuple[str, ...] = ()
    tied: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    renames: tuple[Rename, ...] = ()
    renames_for: Callable[[Collection[str]], tuple[Rename, ...]] | None = None
    default_task: Callable[[dict], str] | None = None

    def reading(self, keys: Collection[str]) -> "Family":
        """The same family, with the renames that a file of these keys needs."""
        if self.renames_for is None:
            return self
        return replace(self, renames=self.renames + self.renames_for(keys))

    def is_head(self, key: str) -> bool:
        """Whether a full key belongs to a head."""
        return key.startswith(self.heads)

    def full_key(self, key: str) -> str:
        """The key with its prefix and under its present name."""
        for pattern, present in self.renames:
            key = re.sub(pattern, present, key)
        if key.startswith(self.prefix) or self.is_head(key):
            return key
        return self.prefix + key

    def is_buffer(self, key: str) -> bool:
        """Whether a full key holds nothing learned."""
        return any(re.fullmatch(pattern, key) for pattern in self.buffers)


def get_size(config: Config, name: str, default: int, most: int | None = None) -> int:
    """A whole number above zero of `config.json`; absent, transformers' default.

    Args:
        config: What it says.
        name: The field.
        default: What transformers takes where it is absent.
        most: The largest that is sensible. Default: `config.max_size`.

    Raises:
        ValueError: for anything else.
    """
    return _check_size(config, name, config.get(name, default), most)


def get_num_blocks(config: Config, name: str, default: int) -> int:
    """A number of blocks of `config.json`: at most as many as the files have.

    Raises:
        ValueError: for anything else.
    """
    number = _check_size(config, name, config.get(name, default), MAX_SIZE)
    _check_blocks(config, name, number)
    return number


def get_sizes(config: Config, name: str, default: list[int]) -> tuple[int, ...]:
    """A list of whole numbers above zero, one a stage.

    Raises:
        ValueError: for anything else.
    """
    values = config.get(name, default)
    if not isinstance(values, list) or not values:
        raise ValueError(
            f"`{name}` in config.json must be a list, a number a stage. "
            f"Received: {name}={shown(values)}"
        )
    _check_blocks(config, name, len(values))
    return tuple(_check_size(config, name, value) for value in values)


def get_depths(config: Config, name: str, default: list[int]) -> tuple[int, ...]:
    """The number of blocks of each stage: together at most as many as the files have.

    Raises:
        ValueError: for anything else.
    """
    numbers = get_sizes(config, name, default)
    _check_blocks(config, name, sum(numbers))
    return numbers


def get_pair(
    config: Config, name: str, default: int, most: int | None = None
) -> tuple[int, int]:
    """A number of `config.json` for rows and columns, or one for each.

    Args:
        config: What it says.
        name: The field.
        default: What transformers takes where it is absent.
        most: The largest that is sensible. Default: `config.max_size`.

    Raises:
        ValueError: for anything else.
    """
    value = config.get(name, default)
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2:
        raise ValueError(
            f"`{name}` in config.json must be a number, or one for the rows and one "
            f"for the columns. Received: {name}={shown(value)}"
        )
    rows, columns = (_check_size(config, name, each, most) for each in pair)
    return rows, columns


def get_image_size(config: Config, name: str, default: int) -> tuple[int, int]:
    """Pixels of a `config.json`, rows and columns: no weight need have such an axis.

    Raises:
        ValueError: for anything else.
    """
    return get_pair(config, name, default, MAX_IMAGE_SIZE)


def _check_size(config, name, value, most=None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` in config.json must be a whole number above zero. "
            f"Received: {name}={shown(value)}"
        )
    if most is None and value > config.max_size:
        raise ValueError(
            f"`{name}` in config.json must be at most {config.max_size}, four times "
            f"the largest axis of the weights. Received: {name}={shown(value)}"
        )
    if most is not None and value > most:
        raise ValueError(
            f"`{name}` in config.json must be at most {most}. "
            f"Received: {name}={shown(value)}"
        )
    return value


def _check_blocks(config, name, number):
    if number > config.max_blocks:
        raise ValueError(
            f"`{name}` in config.json must be at most {config.max_blocks}, the number "
            f"of blocks in the weight files. Received: {name} of {number}"
        )


def one_or_two(pair) -> int | list[int]:
    """A pair as `config.json` has it: one number where both are the same."""
    return pair[0] if pair[0] == pair[1] else list(pair)


def get_number(
    config: Config, name: str, default: float, most: float | None = None
) -> float:
    """A number of at least zero of `config.json`; absent, transformers' default.

    Args:
        config: What it says.
        name: The field.
        default: What transformers takes where it is absent.
        most: The largest that is sensible. Default: `config.max_size`.

    Raises:
        ValueError: for anything else.
    """
    most = config.max_size if most is None else most
    value = config.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # False for NaN too, which JSON as Python reads it may hold.
    if not is_number or not 0 <= value <= most:
        raise ValueError(
            f"`{name}` in config.json must be a number of at least 0 and at most "
            f"{most:g}. Received: {name}={shown(value)}"
        )
    return float(value)


def get_epsilon(config: Config, name: str, default: float) -> float:
    """What a normalisation adds to the variance: at most 1.

    Raises:
        ValueError: for anything else.
    """
    return get_number(config, name, default, most=1.0)


def get_probability(config: Config, name: str, default: float) -> float:
    """A probability of dropping something: at least 0, and less than 1.

    Raises:
        ValueError: for anything else.
    """
    value = get_number(config, name, default, most=1.0)
    if value == 1.0:
        raise ValueError(
            f"`{name}` in config.json must be a probability in [0, 1). "
            f"Received: {name}={value}"
        )
    return value


def get_bool(config: Config, name: str, default: bool) -> bool:
    """True or false in `config.json`; absent, transformers' default.

    Raises:
        ValueError: for anything else.
    """
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(
            f"`{name}` in config.json must be true or false. "
            f"Received: {name}={shown(value)}"
        )
    return value


def get_choice(config: dict, name: str, choices: Mapping, default):
    """`choices` at what `config.json` says; absent, at transformers' default.

    Raises:
        ValueError: for what is not among the choices.
    """
    value = config.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` in config.json must be one of {', '.join(choices)}. "
            f"Received: {name}={shown(value)}"
        )
    return choices[value]


def activation_name(function, names: Mapping = ACTIVATIONS) -> str:
    """What transformers calls an activation.

    Raises:
        ValueError: for one that it has no name for.
    """
    for name, known in names.items():
        if known is function:
            return name
    raise ValueError(
        "`activation` must be one that transformers has a name for: "
        f"{', '.join(names)}. Received: activation={function!r}"
    )


def require(config: dict, supported: Mapping[str, tuple]) -> None:
    """Refuses a `config.json` that asks for what our model does not compute.

    Args:
        config: What it says.
        supported: Field to the values that we compute, the first of them the default.

    Raises:
        ValueError: naming the field.
    """
    for name, values in supported.items():
        value = config.get(name, values[0])
        if not any(value is each or value == each for each in values):
            listed = " or ".join(repr(each) for each in values)
            raise ValueError(
                f"`{name}` in config.json is supported as {listed} alone. "
                f"Received: {name}={shown(value)}"
            )


def get_num_labels(config: Config) -> int:
    """Classes of a head: `id2label`, or `num_labels`, or 2.

    The files may lack the head, so no axis bounds them.

    Raises:
        ValueError: for more than `MAX_CLASSES`, or no number.
    """
    labels = config.get("id2label")
    if isinstance(labels, dict) and labels:
        return _check_size(config, "id2label", len(labels), MAX_CLASSES)
    return get_size(config, "num_labels", 2, MAX_CLASSES)


def label_fields(count: int) -> dict[str, dict]:
    """What `config.json` says of a head of that many classes."""
    names = [f"LABEL_{index}" for index in range(count)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


# What a model of images is read as, without its top or with it.
IMAGE_TASKS = ("encoder", "classifier")


def top_arguments(config: dict, task: str, get_num_classes=get_num_labels) -> dict:
    """What the builder of a model of images is told of its top.

    Args:
        config: What the checkpoint says.
        task: One of `IMAGE_TASKS`.
        get_num_classes: `config` to the classes of its top; asked where there is one.
    """
    if task == "encoder":
        return {"include_top": False}
    return {"include_top": True, "num_classes": get_num_classes(config)}


def call_builders(builders: Sequence, arguments: Sequence[dict], overrides: dict):
    """Builds an encoder, and its head on it.

    Args:
        builders: The encoder's, then perhaps the head's, which takes an encoder first.
        arguments: What the checkpoint says, for each.
        overrides: What the caller says. It goes to every builder that has such an
            argument, but `name` to the last alone.

    Returns:
        The last one's model.

    Raises:
        TypeError: for an override that none of them has.
    """
    accepted = [inspect.signature(builder).parameters for builder in builders]
    for name, value in overrides.items():
        if not any(name in names for names in accepted):
            listed = " or ".join(f"`{builder.__name__}`" for builder in builders)
            raise TypeError(
                f"`{name}` is no argument of {listed}. Received: {name}={value!r}"
            )
    model: tuple = ()
    for builder, names, given in zip(builders, accepted, arguments, strict=True):
        chosen = {
            name: value
            for name, value in overrides.items()
            if name in names and (name != "name" or builder is builders[-1])
        }
        model = (builder(*model, **{**given, **chosen}),)
    return model[0]
