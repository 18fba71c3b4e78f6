"""Which of a model's adapters are on: LoRA weights, and layers as a whole."""

import contextlib
from collections.abc import Iterator, Sequence

import keras

from keras_attn.layers.adaptation.kept import kept_in
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.layers.adaptation.paths import get_path


def set_adapters(model: keras.Model, names: str | Sequence[str] | None) -> None:
    """Switches the adapters of these names on, and all others off.

    The LoRA weights of adapters that are on train, and their sum is added to each
    kernel. A layer that trains as a whole, such as a head, belongs to its adapter: with
    another name, or None, it has the values of the base again. Functions that are
    compiled already follow; compile the model again before `fit`.

    Args:
        model: A model after `enable_lora`.
        names: One name or several. None = none: the model is its base.

    Raises:
        ValueError: If the model has no adapter of a name, or several of the names have
            the same layer as a whole.
    """
    chosen = as_tuple(names or ())
    known = adapter_names(model)
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"`names` must be names of adapters of this model, {known}. Received: "
                f"names={names!r}"
            )
    for kept in kept_in(model):
        owners = [name for name in dict.fromkeys(chosen) if kept.own(name)]
        both = [
            x for x in owners[1:] if kept.own(x).keys() & kept.own(owners[0]).keys()
        ]
        if both:
            raise ValueError(
                "Only one of `names` may have a layer as a whole. Received: "
                f"names={names!r}, of which {owners} have {get_path(kept.layer)!r}"
            )
    switch(model, chosen)


def adapter_names(model: keras.Model) -> list[str]:
    """The names of a model's adapters, sorted."""
    whole = {name for kept in kept_in(model) for name in kept.weights.values}
    return sorted(whole.union(update.name for update in updates_in(model)))


@contextlib.contextmanager
def only_adapter(model: keras.Model, name: str) -> Iterator[None]:
    """Within this block an adapter is on, and all others off; afterwards as before.

    Args:
        model: A model with an adapter of this name.
        name: Its name.
    """
    scales = [(x.scale, keras.ops.copy(x.scale)) for x in updates_in(model)]
    trainable = [(x, x.trainable) for x in model.weights]
    layers = [(x, x.trainable) for x in model._flatten_layers()]
    kept = [
        (each, [x for x in each.weights.values if each.weights.has(x)])
        for each in kept_in(model)
    ]
    switch(model, (name,))
    try:
        yield
    finally:
        for each, adapters in kept:
            each.switch(adapters)
        for scale, value in scales:
            scale.assign(value)
        for layer, before in layers:
            layer._trainable = before
        for variable, before in trainable:
            variable.trainable = before


def switch(model: keras.Model, names: Sequence[str]) -> None:
    """Switches adapters on and all others off, without checks.

    Args:
        model: The model.
        names: Names of adapters.
    """
    for update in updates_in(model):
        is_on = update.name in names
        update.switch(is_on)
        for kernel in (*update.a_kernels, *update.b_kernels):
            kernel.trainable = is_on
    for kept in kept_in(model):
        kept.switch(names)


@contextlib.contextmanager
def adapters_off(model: keras.Model) -> Iterator[None]:
    """Within this block the model is its base, without what any adapter has.

    Args:
        model: A model after `enable_lora`.

    Example:
        ```python
        import numpy as np
        from keras_attn import models, training

        policy = models.build_gpt(num_layers=1, hidden_dim=64, vocabulary_size=1000)
        training.enable_lora(policy, rank=4)
        batch = {"token_ids": np.array([[5, 3]]), "padding_mask": np.array([[1, 1]])}
        with training.adapters_off(policy):
            reference = policy(batch)  # (1, 2, 1000), as before training.
        ```
    """
    # Tensors, since a compiled step may switch them, too.
    off = [(x.scale, keras.ops.zeros(x.scale.shape)) for x in updates_in(model)]
    for kept in kept_in(model):
        off += kept.of_base()
    before = [(variable, keras.ops.copy(variable)) for variable, _ in off]
    for variable, value in off:
        variable.assign(value)
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def updates_in(layer: keras.layers.Layer) -> list[LowRankUpdate]:
    """The LoRA weights of a layer or model, and of layers inside it."""
    return [x for x in layer._flatten_layers() if isinstance(x, LowRankUpdate)]


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name, or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)
