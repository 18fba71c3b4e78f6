"""Weights that an adapter has as a whole, such as a head, beside the base's."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attn.layers.adaptation.low_rank import LowRankKernel, LowRankUpdate
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.layers.adaptation.tracking import named, set_untracked, unlocked

_PARTS = (LowRankKernel, LowRankUpdate, QuantizedKernel)


class KeptWeights(keras.layers.Layer):
    """The values of a layer's weights, for each adapter, that are not in use.

    An adapter may have weights as a whole, as PEFT's `modules_to_save`. The layer
    computes with its own variables: with the adapter's values while the adapter is on,
    and with the base's otherwise. The other values are here, and change places with
    those in use whenever the adapter is switched.

    Attributes:
        values: Adapter to name of a weight to the variable with its other value.
        is_on: Adapter to 1 if the layer's own variables have its values now, else 0.
    """

    values: dict[str, dict[str, Any]]
    is_on: dict[str, Any]

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # They are weights of this layer without these dictionaries.
        set_untracked(self, "values", {})
        set_untracked(self, "is_on", {})
        self.built = True

    def add(self, adapter: str, weight: keras.Variable) -> None:
        """Lets an adapter have a weight as a whole; it starts as the weight's value."""
        with unlocked(self):
            if adapter not in self.values:
                self.values[adapter] = {}
                self.is_on[adapter] = self._add(f"{adapter}_is_on", (), "float32")
            kept = self._add(f"{adapter}_{weight.name}", weight.shape, weight.dtype)
        kept.assign(weight)
        self.values[adapter][weight.name] = kept

    def has(self, adapter: str) -> bool:
        """Whether the layer's own variables have an adapter's values now."""
        is_on = self.is_on[adapter]
        # In the graph of a plan a variable that is made there has no value but its
        # first one; TensorFlow's own error would not say so.
        if getattr(is_on._value, "_in_graph_mode", False):
            return False
        return bool(ops.convert_to_numpy(is_on))

    def _add(self, name, shape, dtype):
        return self.add_weight(
            name=name, shape=shape, initializer="zeros", dtype=dtype, trainable=False
        )


class Kept(NamedTuple):
    """A layer, and the weights that adapters have of it as a whole.

    Attributes:
        layer: The layer.
        weights: What is kept of it.
    """

    layer: keras.layers.Layer
    weights: KeptWeights

    def own(self, adapter: str) -> dict[str, keras.Variable]:
        """The layer's variables that an adapter has as a whole, by name."""
        names = self.weights.values.get(adapter, {})
        return {x.name: x for x in own_weights(self.layer) if x.name in names}

    def pairs(self, adapter: str) -> Iterator[tuple[keras.Variable, Any]]:
        """Each of these variables, and the one with its other value."""
        for name, variable in self.own(adapter).items():
            yield variable, self.weights.values[adapter][name]

    def switch(self, adapters: Sequence[str]) -> None:
        """Switches adapters on and all others off; those that are on train."""
        values = self.weights.values
        adapters = [name for name in adapters if name in values]
        # First all that go, so that what comes is exchanged for the base's values.
        for name in sorted(values, key=adapters.__contains__):
            if self.weights.has(name) != (name in adapters):
                self._exchange(name)
                self.weights.is_on[name].assign(float(name in adapters))
        trained = {id(x) for each in adapters for x in self.own(each).values()}
        if isinstance(self.layer, keras.layers.BatchNormalization):
            # Its statistics move only if an adapter has them, too.
            self.layer.trainable = {id(x) for x in own_weights(self.layer)} <= trained
        kept = {id(x) for name in self.weights.values for x in self.own(name).values()}
        for variable in self.layer._trainable_variables:
            if id(variable) in kept:
                variable.trainable = id(variable) in trained

    def of_base(self) -> list[tuple[keras.Variable, Any]]:
        """Each variable that an adapter has, and its value in the base, a tensor."""
        found = {}
        for name, is_on in self.weights.is_on.items():
            is_on = ops.greater(ops.convert_to_tensor(is_on), 0)
            for variable, other in self.pairs(name):
                start = variable, ops.convert_to_tensor(variable)
                _, value = found.get(id(variable), start)
                value = ops.where(is_on, ops.convert_to_tensor(other), value)
                found[id(variable)] = variable, value
        return list(found.values())

    def _exchange(self, adapter):
        for variable, other in self.pairs(adapter):
            value = ops.copy(variable)
            variable.assign(other)
            other.assign(value)


def own_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The weights of a layer itself that are not quantized; no parts of a kernel."""
    if isinstance(layer, (KeptWeights, *_PARTS)):
        return []
    own = (*layer._trainable_variables, *layer._non_trainable_variables)
    return [x for x in own if "int" not in keras.backend.standardize_dtype(x.dtype)]


def kept_in(layer: keras.layers.Layer) -> list[Kept]:
    """The weights that adapters have as a whole, in a layer or model and inside it."""
    return [
        Kept(each, each.__dict__["kept_weights"])
        for each in layer._flatten_layers()
        if "kept_weights" in each.__dict__
    ]


def is_kept(layer: keras.layers.Layer, weight: keras.Variable) -> bool:
    """Whether an adapter has a weight of a layer as a whole."""
    kept = layer.__dict__.get("kept_weights")
    return kept is not None and any(weight.name in x for x in kept.values.values())


def keep(
    layer: keras.layers.Layer, adapter: str, weights: Sequence[keras.Variable]
) -> None:
    """Lets an adapter have weights of a layer as a whole, which start as they are.

    Args:
        layer: The layer.
        adapter: Name of the adapter.
        weights: Weights of the layer itself.
    """
    kept = layer.__dict__.get("kept_weights")
    if kept is None:
        kept = KeptWeights(dtype=layer.dtype_policy, name="kept")
        with unlocked(layer):
            layer.kept_weights = kept  # pyright: ignore[reportAttributeAccessIssue]
    with named(layer, "kept"):
        for weight in weights:
            if weight.name not in kept.values.get(adapter, {}):
                kept.add(adapter, weight)


def forget_kept(layer: keras.layers.Layer) -> None:
    """Leaves the weights of a layer, and inside it, as they are in use."""
    for owner, kept in kept_in(layer):
        with unlocked(owner):
            owner._tracker.untrack(kept)
            del owner.__dict__["kept_weights"]


def describe_kept(layer: keras.layers.Layer) -> dict[str, list[list[str]]]:
    """The description for `restore_kept`: number of a layer to adapters and names."""
    found = {}
    for index, each in enumerate(_owners(layer)):
        kept = each.__dict__.get("kept_weights")
        if kept is not None:
            found[str(index)] = [
                [adapter, *values] for adapter, values in kept.values.items()
            ]
    return found


def restore_kept(
    layer: keras.layers.Layer, description: dict[str, list[list[str]]]
) -> None:
    """Lets adapters have weights of a layer as a whole, as described."""
    owners = _owners(layer)
    for index, adapters in description.items():
        own = {x.name: x for x in own_weights(owners[int(index)])}
        for adapter, *names in adapters:
            keep(owners[int(index)], adapter, [own[name] for name in names])


def _owners(layer):
    # Without what a kernel may consist of, which a new layer does not have yet.
    return [x for x in layer._flatten_layers() if own_weights(x)]
