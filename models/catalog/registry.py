"""The registry of models: list, describe, create and count parameters by name.

The model files fill it: each has `CARDS` beside its `VARIANTS`, which
`@registered(CARDS, VARIANTS)` adds together with the builder.
"""

import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import keras

from keras_attn.checks.arguments import did_you_mean
from keras_attn.docstrings.arguments import descriptions
from keras_attn.models.catalog.variants import with_sizes
from keras_attn.models.parts.keras_state import undone, without_allocating


@dataclass(frozen=True)
class ModelCard:
    """The published facts about a model.

    Attributes:
        name: Registry name, as in `create(name)`.
        family: Name of its file in `models/`, or of a related model's file.
        title: One-line description.
        paper: Authors, year and arXiv id.
        year: Year of publication.
        task: What the model is for, such as `"translation"`.
        parameters: Published number of parameters, rounded as in the paper; None if
            the paper gives none.
        inputs: Shape and meaning of each input, by name.
        outputs: Shape and meaning of each output, by name.
        notes: Other published figures: training, scores.
    """

    name: str
    family: str
    title: str
    paper: str
    year: int
    task: str
    parameters: int | None
    inputs: dict[str, str] = field(hash=False)
    outputs: dict[str, str] = field(hash=False)
    notes: str = ""


@dataclass(frozen=True)
class Entry:
    """A model of the registry: `builder(variant)` has this card."""

    card: ModelCard
    builder: Callable[..., keras.Model]
    variant: str


_REGISTRY: dict[str, Entry] = {}
_Builder = TypeVar("_Builder", bound=Callable[..., keras.Model])


def model_cards(
    name: str,
    published: Mapping[str, tuple[int | None, str]],
    *,
    title: str,
    paper: str,
    task: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    family: str = "",
) -> dict[str, ModelCard]:
    """The cards of several variants, which differ only in published figures.

    They are in a model's file, below the sizes of the same variants; see `registered`.

    Args:
        name: Name of each model; `{variant}` is replaced by the name of the variant.
        published: Number of parameters and notes of each variant; see `ModelCard`.
        title: One-line description; `{variant}` is replaced by the name of the
            variant, with ", " in place of "_".
        paper: Authors, year and arXiv id; the year is its first number.
        task: As in `ModelCard`, like `inputs` and `outputs`. Models of one task share
            these three: `models/catalog/tasks.py`.
        inputs: Shape, type and meaning of each input, by name.
        outputs: Shape and meaning of each output, by name.
        family: Name of a related model's file; default: the file of the builder.

    Returns:
        The cards by the names of the variants.

    Raises:
        ValueError: If `paper` has no year.
    """
    year = re.search(r"\d{4}", paper)
    if year is None:
        raise ValueError(f"`paper` must contain its year. Received: paper={paper!r}")
    return {
        variant: ModelCard(
            name=name.format(variant=variant),
            family=family,
            title=title.format(variant=variant.replace("_", ", ")),
            paper=paper,
            year=int(year[0]),
            task=task,
            parameters=parameters,
            inputs=inputs,
            outputs=outputs,
            notes=notes,
        )
        for variant, (parameters, notes) in published.items()
    }


def registered(
    cards: Mapping[str, ModelCard], sizes: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[_Builder], _Builder]:
    """Registers a builder, with its sizes, as the one that builds these models.

    ```python
    VARIANTS = {"tiny": {"hidden_dim": 96, ...}, ...}
    CARDS = model_cards(
        "swin_{variant}", {"tiny": (28_288_354, "ImageNet 81.3"), ...}, ...
    )


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
        model = create("rnnsearch_50", source_vocabulary_size=8000)
        ```
    """
    found = entry(name)
    return found.builder(found.variant, **overrides)


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
