"""The registry of models: list, describe, create and count parameters by name."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import keras

from keras_attn.models.parts.keras_state import undone, without_allocating


@dataclass(frozen=True)
class ModelCard:
    """What is published about a model.

    Attributes:
        name: Registry name, as in `create(name)`.
        family: Family, usually the name of its file in `models/`.
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
class _Entry:
    card: ModelCard
    builder: Callable[..., keras.Model]
    variant: str


_REGISTRY: dict[str, _Entry] = {}


def register(
    card: ModelCard, builder: Callable[..., keras.Model], variant: str
) -> None:
    """Registers `builder(variant)` as `card.name`.

    Raises:
        ValueError: if the name is taken.
    """
    if card.name in _REGISTRY:
        raise ValueError(
            f"`card.name` is registered already. Received: name={card.name!r}"
        )
    _REGISTRY[card.name] = _Entry(card, builder, variant)


def register_variants(
    builder: Callable[..., keras.Model],
    published: Mapping[str, tuple[int | None, str]],
    *,
    title: str,
    paper: str,
    task: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    name: str | None = None,
    family: str | None = None,
) -> None:
    """Registers variants of one builder, whose cards differ in published figures only.

    ```python
    register_variants(
        build_swin,
        {
            "tiny": (28_288_354, "ImageNet 81.3"),
        },
        title="Swin {variant}, attention within shifted windows",
        ...
    )
    ```

    Args:
        builder: The builder, called as `builder(variant)`.
        published: Number of parameters and notes of each variant; see `ModelCard`.
        title: One-line description; `{variant}` is replaced by the name of the
            variant, with ", " in place of "_".
        paper: Authors, year and arXiv id; the year is its first number.
        task: As in `ModelCard`, like `inputs` and `outputs`.
        inputs: Shape and meaning of each input, by name.
        outputs: Shape and meaning of each output, by name.
        name: Registry name; `{variant}` is replaced by the name of the variant.
            Default: `"swin_{variant}"` for `build_swin`.
        family: As in `ModelCard`. Default: the name of the builder's module.

    Raises:
        ValueError: if a name is taken, or `paper` has no year.
    """
    name = name or builder.__name__.removeprefix("build_") + "_{variant}"
    year = re.search(r"\d{4}", paper)
    if year is None:
        raise ValueError(f"`paper` must contain its year. Received: paper={paper!r}")
    for variant, (parameters, notes) in published.items():
        card = ModelCard(
            name=name.format(variant=variant),
            family=family or builder.__module__.rpartition(".")[2],
            title=title.format(variant=variant.replace("_", ", ")),
            paper=paper,
            year=int(year[0]),
            task=task,
            parameters=parameters,
            inputs=inputs,
            outputs=outputs,
            notes=notes,
        )
        register(card, builder, variant)


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern, such as `"rnnsearch_*"`, in order.

    Args:
        pattern: A shell pattern; `*` is any text.
    """
    return sorted(fnmatch.filter(_REGISTRY, pattern))


def describe(name: str) -> ModelCard:
    """The card of a model.

    Args:
        name: A name from `list_models()`.

    Raises:
        ValueError: for an unknown name; the message suggests similar names.
    """
    return _entry(name).card


def create(name: str, /, **overrides) -> keras.Model:
    """Builds a model at its published size.

    Args:
        name: A name from `list_models()`.
        **overrides: Arguments of the model's builder that differ from the published
            ones.

    Returns:
        A functional `keras.Model` with newly initialized weights.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an override that is not an argument of the builder.

    Example:
        ```python
        model = create("rnnsearch_50", source_vocabulary_size=8000)
        ```
    """
    entry = _entry(name)
    return entry.builder(entry.variant, **overrides)


def count_parameters(name: str, /, **overrides) -> int:
    """The number of parameters of `create(name, **overrides)`.

    The model is built without allocating its weights. Weights that are not trained
    count as well: the positions of an MAE, the running means of a batch norm.

    Args:
        name: A name from `list_models()`.
        **overrides: Arguments of the model's builder that differ from the published
            ones.
    """
    entry = _entry(name)
    with undone(), without_allocating():
        return entry.builder(entry.variant, **overrides).count_params()


def _entry(name: str) -> _Entry:
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), _REGISTRY, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"`name` must be a registered model: {hint}"
            f"`list_models()` lists them. Received: name={name!r}"
        )
    return _REGISTRY[name]
