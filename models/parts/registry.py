"""Every model by its name: what there is, what it is, how large it is."""

import difflib
import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field

import keras

from keras_attn.models.parts.keras_state import undone, without_allocating


@dataclass(frozen=True)
class ModelCard:
    """What is published about a model.

    Attributes:
        name: Registry name, as in `create(name)`.
        family: The file it lives in, `models/<family>.py`.
        title: One line for a list.
        paper: Authors, year, title and arXiv id.
        year: Of publication.
        task: What it is for.
        parameters: Published count, as the paper rounds it; None where it gives none.
        inputs: Input name to shape and meaning.
        outputs: Output name to shape and meaning.
        notes: What else the paper reports: training, scores.
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
class _Entry:
    card: ModelCard
    builder: Callable[..., keras.Model]
    variant: str


_REGISTRY: dict[str, _Entry] = {}


def register(
    card: ModelCard, builder: Callable[..., keras.Model], variant: str
) -> None:
    """Adds `builder(variant)` under `card.name`; called by each family's file.

    Raises:
        ValueError: if the name is taken.
    """
    if card.name in _REGISTRY:
        raise ValueError(
            f"`card.name` is registered already. Received: name={card.name!r}"
        )
    _REGISTRY[card.name] = _Entry(card, builder, variant)


def list_models(pattern: str = "*") -> list[str]:
    """Names of the models that match a shell pattern, such as `"rnnsearch_*"`."""
    return sorted(fnmatch.filter(_REGISTRY, pattern))


def describe(name: str) -> ModelCard:
    """The card of a model.

    Raises:
        ValueError: for an unknown name, naming the nearest ones.
    """
    return _entry(name).card


def create(name: str, /, **overrides) -> keras.Model:
    """Builds a model at its published size, but for what `overrides` says.

    Args:
        name: A name from `list_models()`.
        **overrides: Arguments of the model's builder.

    Returns:
        A functional `keras.Model` with fresh weights.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an override that the builder does not have.

    Example:
        ```python
        model = create("rnnsearch_50", source_vocabulary_size=8000)
        ```
    """
    entry = _entry(name)
    return entry.builder(entry.variant, **overrides)


def count_parameters(name: str, /, **overrides) -> int:
    """Parameters of `create(name, **overrides)`, allocating none of them.

    What is kept with them and not trained counts too: an MAE's positions, the running
    means of a batch norm.

    The model is built, but its weights are never given their first values.
    """
    entry = _entry(name)
    with undone(), without_allocating():
        return entry.builder(entry.variant, **overrides).count_params()


def _entry(name: str) -> _Entry:
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), _REGISTRY, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"`name` is no model of keras_attn: {hint}"
            f"`list_models()` names them all. Received: name={name!r}"
        )
    return _REGISTRY[name]
