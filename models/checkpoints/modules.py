"""Modules of transformers' model of today, and the parts of our kernels that they are.

Keys in files have the names that modules had in transformers 4; what adapts modules,
such as PEFT, uses their names of today (`Family.module_key`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attn.layers.adaptation.kernel_layer import KernelLayer, kernel_layers
from keras_attn.layers.adaptation.low_rank import (
    Columns,
    LowRankUpdate,
    get_base,
)
from keras_attn.models.checkpoints.mapping import Weight, get_variables
from keras_attn.models.checkpoints.saving import find_family

_DENSE = (".lora_A.weight", ".lora_B.weight")
_EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")
SUFFIXES = (*_DENSE, *_EMBEDDING)


class Module(NamedTuple):
    """A module of transformers' model, and the part of a kernel of ours that it is.

    Attributes:
        name: Its path in the model of the folder.
        layer: The layer with the kernel.
        columns: The columns of the kernel.
        keeps_axes: Whether its weight has our axes, as in GPT-2's `Conv1D`.
    """

    name: str
    layer: KernelLayer
    columns: Columns
    keeps_axes: bool

    @property
    def kernel(self) -> Any:
        """The kernel of ours."""
        return self.layer.adapted_kernel

    @property
    def suffixes(self) -> tuple[str, str]:
        """The suffixes of the name in the keys of A and B."""
        is_table = isinstance(self.layer, keras.layers.Embedding)
        return _EMBEDDING if is_table else _DENSE

    def update(self, name: str) -> LowRankUpdate | None:
        """The kernel's LoRA weights of a name."""
        return self.layer.updates.get(name)


class Modules:
    """The modules of a model, and its weights by the keys of today.

    Args:
        model: A model with a counterpart in transformers.

    Attributes:
        family: Its family.
        task: Its task.
        weights: The keys of each weight, and the weight.
        by_name: The modules that are parts of kernels, by name.
        owners: The layer of each kernel, by its id.

    Raises:
        ValueError: If the model has no counterpart.
    """

    def __init__(self, model: keras.Model):
        self.family, self.task = find_family(model, None)
        is_bare = self.family.saved_as.get(self.task) == self.family.bare
        prefix = self.family.prefix if is_bare else ""
        self.owners = {id(x.adapted_kernel): x for x in kernel_layers(model)}
        self.weights: list[tuple[list[str], Weight]] = []
        self.by_name: dict[str, Module] = {}
        for weight in self.family.weights(model):
            keys = [self.family.module_key(x).removeprefix(prefix) for x in weight.keys]
            self.weights.append((keys, weight))
            if id(weight.variable) in self.owners:
                owner = self.owners[id(weight.variable)]
                for module in _find_modules(keys, weight, owner):
                    self.by_name[module.name] = module

    def trained_as_a_whole(self) -> list[str]:
        """The modules that PEFT saves as a whole: heads, or modules of the body."""
        prefix, found = self.family.prefix, {}
        for keys, weight in self.weights:
            variables = get_variables(weight)
            bases = map(get_base, variables)
            if any(isinstance(x, keras.Variable) and x.trainable for x in bases):
                for key in keys:
                    in_body = not prefix or key.startswith(prefix)
                    parts = key.rpartition(".") if in_body else key.partition(".")
                    found[parts[0]] = key
        if "" in found:
            raise ValueError(
                "What trains as a whole must be in a module in transformers. Received: "
                f"{found['']!r}, which is a parameter of the model itself"
            )
        # PEFT compares the ends of names: "classifier" is "pre_classifier", too.
        alike = [x for x in self.names() if x not in found and x.endswith((*found,))]
        return [*found, *alike]

    def names(self) -> list[str]:
        """All modules with weights, and those that they are in."""
        names = {}
        for keys, _ in self.weights:
            for key in keys:
                parts = key.split(".")
                names |= {".".join(parts[:x]): None for x in range(1, len(parts))}
        return [*names]

    def check_ties(self, changed: set[int]) -> None:
        """Raises if the table of an output layer is among the variables.

        Args:
            changed: `id` of each variable that gets LoRA weights or new values.
        """
        tables = set(self.family.tied.get(self.task, {}).values())
        for _, weight in self.weights:
            if tables & set(weight.keys) and id(weight.variable) in changed:
                raise ValueError(
                    "The table of the token embedding must not be adapted: it is the "
                    "output layer, too, where PEFT keeps its old values. Leave it out "
                    "of `target_modules` and `modules_to_save`. Received: LoRA weights "
                    f"or new values of {weight.keys[0]!r}"
                )


def _find_modules(keys, weight, layer) -> Iterator[Module]:
    # Which columns of the kernel each tensor has, and along which axis.
    shape = weight.variable.shape
    numbers = np.broadcast_to(np.arange(shape[-1]), shape)
    for key, part in zip(keys, weight.write(numbers), strict=True):
        name, end = key.rpartition(".")[::2]
        if end == "weight":
            axis = int(np.argmax(part.strides))
            first, last = np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)[
                [0, -1], 0
            ]
            columns = (int(first), int(last) + 1)
            yield Module(name, layer, columns, axis == part.ndim - 1)
