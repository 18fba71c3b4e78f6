"""The registry of models: list, describe, create and count parameters by name.

The model files fill it: each has `CARDS` beside its `VARIANTS`, which
`@registered(CARDS, VARIANTS)` adds together with the builder.
"""

import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import keras

from keras_attn.checks.arguments import did_you_mean
from keras_attn.docstrings.arguments import descriptions
from keras_attn.models.catalog.cards import ModelCard, with_published_sizes
from keras_attn.models.catalog.variants import with_sizes
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.parts.preprocessing_sizes import fields_for_size


@dataclass(frozen=True)
class Entry:
    """A model of the registry: `builder(variant)` has this card."""

    card: ModelCard
    builder: Callable[..., keras.Model]
    variant: str


_REGISTRY: dict[str, Entry] = {}
_Builder = TypeVar("_Builder", bound=Callable[..., keras.Model])


def registered(
    cards: Mapping[str, ModelCard], sizes: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[_Builder], _Builder]:
    """Registers a builder, with its sizes, as the one that builds these models.

    ```python
    VARIANTS = {"tiny": {"hidden_dim": 96, ...}, ...}
    CARDS = model_cards("swin_{variant}", {"tiny": 28_288_354, ...}, ...)


    @registered(CARDS, VARIANTS)
    def build_swin(variant="tiny", *, ...): ...
    ```

    Args:
        cards: Cards by the name of the variant: `create(card.name)` calls
            `build(variant)`.
        sizes: Sizes of the same variants; see `with_sizes`, which decorates the builder
            with them. None for a builder that has none.

    Returns:
        A decorator for the builder.

    Raises:
        ValueError: If a card's name is already registered; raised at decoration.
        TypeError: If a size is not an argument of the builder; raised at decoration.
    """

    def register(build: Any) -> Any:
        if sizes is not None:
            build = with_sizes(sizes)(build)
        family = build.__module__.rpartition(".")[2]
        for variant, card in cards.items():
            if card.name in _REGISTRY:
                raise ValueError(
                    "`cards` must have names that are not registered yet. "
                    f"Received: name={card.name!r}"
                )
            card = card if card.family else replace(card, family=family)
            card = with_published_sizes(card, (sizes or {}).get(variant, {}))
            _REGISTRY[card.name] = Entry(card, build, variant)
        return build

    return register


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern, such as `"rnnsearch_*"`, in order.

    Args:
        pattern: A shell pattern; `*` matches any text.
    """
    return sorted(fnmatch.filter(_REGISTRY, pattern))


def describe(name: str) -> ModelCard:
    """The card of a model.

    Args:
        name: A name from `list_models()`.

    Raises:
        ValueError: If `name` is unknown; the message suggests similar names.
    """
    return entry(name).card


def builder_arguments(name: str) -> dict[str, tuple[Any, str]]:
    """The value in this model, and the description, of each argument of its builder.

    Args:
        name: A name from `list_models()`.
    """
    found = entry(name)
    sizes = getattr(found.builder, "sizes", {}).get(found.variant, {})
    words = descriptions(inspect.getdoc(found.builder) or "")
    return {
        each.name: (sizes.get(each.name, each.default), words.get(each.name, ""))
        for each in inspect.signature(found.builder).parameters.values()
        if each.name not in ("variant", "name")
    }


def create(name: str, /, **overrides) -> keras.Model:
    """Builds a model at its published size.

    A model of images has the `preprocessing` of its card, for the size of its inputs:
    how the published weights are given images when they are evaluated; of segmenters
    the normalization alone. It is saved and exported with the model. Set it to None, or
    to another one, for a model that learns from images prepared in another way.

    Args:
        name: A name from `list_models()`.
        **overrides: Arguments of the model's builder that differ from the published
            ones.

    Returns:
        A functional `keras.Model` with newly initialized weights.

    Raises:
        ValueError: If `name` is unknown.
        TypeError: If an override is not an argument of the builder.

    Example:
        ```python
        from keras_attn import models

        vit = models.create("vit_tiny_patch16", image_size=64, num_classes=3)
        ```
    """
    found = entry(name)
    model = found.builder(found.variant, **overrides)
    fields = found.card.preprocessing
    shapes = {tensor.name: tuple(tensor.shape) for tensor in model.inputs}
    *sides, channels = shapes.get("images", (None,))[1:] or (None,)
    # Gray images are not what it describes.
    if fields is not None and channels == 3:
        model.preprocessing = (
            fields if None in sides else fields_for_size(fields, sides)
        )
    return model


def count_parameters(name: str, /, **overrides) -> int:
    """The number of parameters of `create(name, **overrides)`.

    The model is built without allocating its weights. Weights that are not trained
    count as well: the positions of an MAE, the running means of a batch norm.

    Args:
        name: A name from `list_models()`.
        **overrides: Arguments of the model's builder that differ from the published
            ones.
    """
    found = entry(name)
    with undone(), without_allocating():
        return found.builder(found.variant, **overrides).count_params()


def entry(name: str) -> Entry:
    """The card, builder and variant of a model.

    Raises:
        ValueError: If `name` is unknown; the message suggests similar names.
    """
    if name not in _REGISTRY:
        raise ValueError(
            f"`name` must be a registered model: {did_you_mean(name, _REGISTRY)}"
            f"`list_models()` lists them. Received: name={name!r}"
        )
    return _REGISTRY[name]
